"""Every config builds, trains two steps and evaluates."""

import importlib
import pathlib

import numpy as np
import pytest

from dpn import metrics
from input_pipeline import testing
from trainers import train

FOLDER = pathlib.Path(__file__).parent
CONFIGS = sorted(
  path.stem
  for path in FOLDER.glob("*.py")
  if path.stem not in ("__init__", "common") and "_test" not in path.stem
)


@pytest.fixture(scope="module", autouse=True)
def _data(tmp_path_factory):
  """Data sets of a few made-up images, where TFDS looks for them."""
  folder = str(tmp_path_factory.mktemp("tfds"))
  testing.imagenet2012(folder, train=16, validation=8)
  image = testing.jpeg(np.random.default_rng(0), 32, 32)
  examples = [{"image": image, "label": i % 10} for i in range(8)]
  splits = {"train": examples, "test": examples}
  testing.write_tfds(folder, "cifar10", splits, {"image": "jpeg", "label": 10})
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("TFDS_DATA_DIR", folder)
    yield


def _config(name, arg):
  return importlib.import_module(f"configs.{name}").get_config(arg)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_trains_and_evaluates(name, tmp_path):
  config = _config(name, "runlocal")
  if config.input.data.name == "imagenet2012":
    config.model.variant = "mu/32"
  train.train(config, str(tmp_path))
  rows = metrics.read(str(tmp_path / "metrics.jsonl"))
  assert [row["step"] for row in rows] == [1, 2]
  assert {"loss", "lr", "l2_grads"} <= rows[0].keys()
  evaluated = {key.split("/")[0] for key in rows[1] if "/" in key}
  assert evaluated - {"grad_norm"} == set(config.evals)
  assert (tmp_path / "done.json").exists()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_says_how_to_run_it_and_what_to_expect(name):
  text = importlib.import_module(f"configs.{name}").__doc__
  assert "python -m trainers.train" in text
  assert f"--config configs/{name}.py" in text
  assert "--workdir" in text
  assert "Expected" in text


def test_finetuning_needs_a_model_to_start_from():
  with pytest.raises(ValueError, match="append init=/path/to/"):
    _config("finetune_i1k", None)
  assert _config("finetune_i1k", "init=a.npz").model_init == "a.npz"
