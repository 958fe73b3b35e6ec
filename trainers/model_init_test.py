"""config.model_init and config.model_load, from whatever a path stands for."""

import numpy as np
import pytest

from dpn import trees
from dpn.trainers import build, conftest, loop
from dpn.trainers.conftest import tiny_config


@pytest.fixture(scope="module", name="finished")
def _finished(tmp_path_factory):
  """Returns the folder of a finished run of two steps."""
  folder = tmp_path_factory.mktemp("run")
  loop.train(tiny_config(total_steps=2, evals={}), str(folder))
  return folder


def _start(tmp_path, **changes):
  """Returns the parameters that a run starts from, by name."""
  run = build.from_config(tiny_config(evals={}, **changes))
  state, _, _ = conftest.start(run, tmp_path)
  return {k: np.asarray(x) for k, x in trees.flatten(state.params).items()}


@pytest.mark.parametrize(
  "path", ["", "params.safetensors", "checkpoints", "checkpoints/2"]
)
def test_every_path_of_a_run(finished, tmp_path, path):
  got = _start(tmp_path, model_init=str(finished / path))
  np.testing.assert_equal(got, conftest.params(finished))


@pytest.mark.parametrize("path", ["", "checkpoints"])
def test_another_model_is_refused(finished, tmp_path, path):
  changes = {"model_init": str(finished / path), "model.gelu": "exact"}
  with pytest.raises(ValueError, match="gelu: tanh in the file, exact in the"):
    _start(tmp_path, **changes)
  allowed = {"model_load": {"dont_check": ["gelu"]}}
  assert "head/kernel" in _start(tmp_path, **changes, **allowed)
