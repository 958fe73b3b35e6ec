"""config.model_init and config.model_load, from whatever a path stands for."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from dpn import trees
from dpn.trainers import build, loop
from dpn.trainers.conftest import tiny_config
from dpn.weights import checkpoint

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="module", name="finished")
def _finished(tmp_path_factory):
  """Returns the folder of a finished run of two steps."""
  folder = tmp_path_factory.mktemp("run")
  loop.train(tiny_config(total_steps=2, evals={}), str(folder))
  return folder


def _start(tmp_path, **changes):
  """Returns the parameters that a run starts from, by name."""
  run = build.from_config(tiny_config(evals={}, **changes))
  nothing = checkpoint.Checkpointer(str(tmp_path / "checkpoints"))
  state, _, _ = build.initial_state(run, nothing)
  nothing.close()
  return {k: np.asarray(x) for k, x in trees.flatten(state.params).items()}


@pytest.mark.parametrize(
  "path", ["", "params.safetensors", "checkpoints", "checkpoints/2"]
)
def test_every_path_of_a_run(finished, tmp_path, path):
  want = safetensors.numpy.load_file(finished / "params.safetensors")
  got = _start(tmp_path, model_init=str(finished / path))
  assert got.keys() == want.keys()
  for name, x in want.items():
    np.testing.assert_array_equal(got[name], x, name)


@pytest.mark.parametrize("path", ["", "checkpoints"])
def test_another_model_is_refused(finished, tmp_path, path):
  changes = {"model_init": str(finished / path), "model.gelu": "exact"}
  with pytest.raises(ValueError, match="gelu: tanh in the file, exact in the"):
    _start(tmp_path, **changes)
  allowed = {"model_load": {"dont_check": ["gelu"]}}
  assert "head/kernel" in _start(tmp_path, **changes, **allowed)


def test_what_the_message_says_works_on_the_command_line(finished, tmp_path):
  """dont_check and dont_load are keys of a config like any other."""
  config = tiny_config(
    evals={},
    total_steps=0,
    model_init=str(finished),
    model_load={"dont_load": (), "dont_check": ()},
    **{"model.gelu": "exact", "num_classes": 10},
  )
  (tmp_path / "config.py").write_text(
    "import ml_collections\n\n\ndef get_config():\n"
    f"  return ml_collections.ConfigDict({config.to_dict()!r})\n"
  )

  def run(*more):
    return subprocess.run(
      [
        *(sys.executable, "-m", "dpn.trainers.train"),
        *(f"--config={tmp_path}/config.py", f"--workdir={tmp_path}/new"),
        *more,
      ],
      cwd=ROOT,
      capture_output=True,
      text=True,
    )

  refused = run()
  assert refused.returncode == 1
  assert "config.model_load.dont_check=['gelu']" in refused.stderr
  done = run(
    "--config.model_load.dont_check=['gelu']",
    "--config.model_load.dont_load=['head/.*']",
  )
  assert done.returncode == 0, done.stderr
  want = safetensors.numpy.load_file(finished / "params.safetensors")
  got = safetensors.numpy.load_file(tmp_path / "new/params.safetensors")
  for name, x in want.items():
    assert np.array_equal(got[name], x) == (not name.startswith("head/")), name
