"""Evaluators made from configs: their schedule, names and errors."""

import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from dpn import sharding
from evaluators import base

SIZES = {"total_steps": 200, "batch_size": 8, "data_size": 80}
PREDICT_FNS = {
  "predict": lambda variables, batch: (variables["params"] * batch["x"], {}),
  "loss": lambda variables, batch: {"x": variables["params"] * batch["x"]},
}


@pytest.fixture(name="section")
def _section(tmp_path):
  """Returns the config of a mean over 1, 2, 3."""
  np.savez(tmp_path / "a.npz", **{"test/x": np.float32([1, 2, 3])})
  data = {"name": f"arrays:{tmp_path}/a.npz", "split": "test"}
  return {"type": "mean", "data": data, "pp_fn": "", "log_steps": 5}


def _make(sections, **config):
  config = {"evals": sections, **config}
  return base.from_config(config, PREDICT_FNS, sharding.make_mesh(), SIZES)


def test_names_and_schedules(section):
  evaluators = _make(
    {
      "own": section,
      "default": {**section, "log_steps": None},
      "epochs": {**section, "log_steps": None, "log_epochs": 2},
      "percent": {**section, "log_steps": None, "log_percent": 0.1},
    },
    log_eval_steps=7,
  )
  assert {e.name: e.every_steps for e in evaluators} == {
    "own": 5,
    "default": 7,
    "epochs": 20,
    "percent": 20,
  }
  got = evaluators[0].run({"params": jnp.float32(10)})
  assert got == {"own/x": pytest.approx(20.0)}
  assert isinstance(got["own/x"], float)


def test_no_evaluators():
  assert _make(None) == []


def test_pred_chooses_what_is_measured(section):
  predict = {"double": lambda variables, batch: {"x": 2 * batch["x"]}}
  config = {"evals": {"e": {**section, "pred": "double"}}}
  [e] = base.from_config(config, predict, sharding.make_mesh(), SIZES)
  assert e.run({"params": ()}) == {"e/x": 4.0}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"type": "clasification"}, "Unknown type.*mean 'classification'"),
    ({"type": None}, "Unknown type None"),
    ({"pred": "predicts"}, "Unknown pred 'predicts'.*mean 'predict'"),
    ({"pp": "decode"}, "Unknown key 'pp'.*mean 'pp_fn'"),
    ({"predict_fn": 1}, "Unknown key 'predict_fn'"),
    ({"log_steps": None}, "how often it runs is missing"),
    ({"log_steps": 0}, "how often it runs is missing"),
    ({"log_epochs": 1}, "Got log_steps, log_epochs; expected one"),
    ({"batch_size": 6}, "batch_size=6 cannot be split over 4 devices"),
    ({"pp_fn": "flip_rl"}, "Unknown op 'flip_rl'. Did you mean 'flip_lr'"),
    ({"data": {"name": "imagenet"}}, "needs a name and a split"),
    ({"type": "classification", "loss_name": "xent"}, "Unknown loss 'xent'"),
  ],
)
def test_errors_name_the_evaluator(section, changes, message):
  with pytest.raises(ValueError, match=rf"^config.evals.val: .*{message}"):
    _make({"val": {**section, **changes}})


def test_missing_arguments_are_named(section):
  del section["data"]
  with pytest.raises(
    ValueError, match=r"evals.val: data is missing; mean need"
  ):
    _make({"val": section})


def test_every_evaluator_can_be_named():
  folder = pathlib.Path(base.__file__).parent
  modules = {
    path.stem for path in folder.glob("*.py") if "_test" not in path.stem
  }
  assert set(base.TYPES) == modules - {"__init__", "base"}
