"""Whatever is wrong with a run is said in one clear message."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from dpn import metrics
from input_pipeline import sources, testing
from trainers import log as report
from trainers import train, update
from trainers.testing import tiny_config

ROOT = pathlib.Path(__file__).parent.parent
ERRORS = [
  ({"input.batch_size": 6}, "config.input.batch_size=6 cannot be split over 4"),
  (
    {"total_step": 1},
    "Unknown key in config: 'total_step'.*mean 'total_steps'",
  ),
  ({"input.bach_size": 1}, "Unknown key of config.input 'bach_size'"),
  ({"input.data.splits": 1}, "Unknown key of data 'splits'"),
  ({"model.stemln": "dpn"}, "Unknown model option 'stemln'.*mean 'stem_ln'"),
  ({"model.stem_ln": "dnp"}, "Unknown stem_ln 'dnp'.*mean 'dpn'"),
  ({"model.variant": "X/16"}, "Unknown variant 'X'"),
  ({"model_name": "vitt"}, "Unknown model_name 'vitt'.*mean 'vit'"),
  ({"task": "classify"}, "Unknown task 'classify'"),
  ({"loss": "softmax"}, "Unknown loss 'softmax'.*mean 'softmax_xent'"),
  ({"optax": {"b3": 1}}, "Unknown argument of scale_by_adam.* 'b3'"),
  (
    {"schedule.decay": "x"},
    "Unknown argument of the 'cosine' schedule 'decay'",
  ),
  ({"mixup.q": 1}, "Unknown key in config.mixup: 'q'"),
  ({"mixup.scope": "host"}, "Unknown mixup.scope 'host'"),
  ({"mixup.fold_in": "data"}, "mixup.fold_in='data' is not supported"),
  ({"model_load": {"dontload": []}}, "config.model_load: 'dontload'"),
  ({"evals.test.pp": ""}, "config.evals.test: Unknown key 'pp'.*mean 'pp_fn'"),
  ({"evals.test.pp_fn": "flip"}, "config.evals.test: Unknown op 'flip'"),
  (
    {"evals.test.label_key": "label"},
    r"config.evals.test: Unknown label_key 'label'. Did you mean 'labels'",
  ),
  (
    {"evals.fewshot.label_key": "labels"},
    "config.evals.fewshot: Unknown label_key 'labels'. Did you mean 'label'",
  ),
  (
    {"evals.fewshot.representation_layer": "pre_logit"},
    "config.evals.fewshot: Unknown representation_layer 'pre_logit'",
  ),
  ({"input.pp": "flip_rl"}, "Unknown op 'flip_rl'. Did you mean 'flip_lr'"),
  ({"input.pp": 'keep("image")'}, "but no 'labels'. Let config.input.pp make"),
  ({"input": {}}, "config.input is missing"),
  ({"num_classes": None}, "config.num_classes is missing"),
  ({"lr": None}, "config.lr is missing"),
  ({"total_steps": None}, "No duration 'total'; expected one of total_steps"),
  ({"total_epochs": 1}, "Got total_steps, total_epochs; expected one"),
  ({"mesh": [("data", 3)]}, "config.mesh=.* does not fit 4 devices"),
  ({"sharding_strategy": [(".*", "fdsp")]}, "Unknown sharding rule 'fdsp'"),
  (
    {
      "input.data": {"name": "imagenet2012", "split": "train", "data_dir": "/x"}
    },
    "There is no TFDS directory /x",
  ),
]


@pytest.mark.parametrize(("changes", "message"), ERRORS)
def test_wrong_configs_leave_nothing_behind(tmp_path, changes, message):
  with pytest.raises(ValueError, match=message):
    train.train(tiny_config(**changes), str(tmp_path / "run"))
  assert not (tmp_path / "run").exists()


def test_a_batch_size_is_needed(tmp_path):
  config = tiny_config()
  del config.input["batch_size"]
  with pytest.raises(
    ValueError, match=r"config.input needs batch_size, it has"
  ):
    train.train(config, str(tmp_path / "run"))


@pytest.mark.parametrize(
  ("changes", "error", "message"),
  [
    ({"num_classes": 11}, ValueError, r"logits \(8, 11\) and labels \(8, 10\)"),
    ({"model_init": "no.npz"}, FileNotFoundError, "There is no file 'no.npz'"),
    ({"resume": "/nowhere"}, FileNotFoundError, "there is no /nowhere/checkp"),
  ],
)
def test_errors_after_building(tmp_path, changes, error, message):
  with pytest.raises(error, match=message):
    train.train(tiny_config(**changes), str(tmp_path / "run"))


def test_a_file_where_the_run_should_be(tmp_path):
  (tmp_path / "file").write_text("")
  for workdir in (tmp_path / "file", tmp_path / "file" / "run"):
    message = f"Cannot write to --workdir={workdir}: .*Give a directory in"
    with pytest.raises(OSError, match=message):
      train.train(tiny_config(), str(workdir))


def test_a_corrupt_image_is_named(tmp_path):
  rng = np.random.default_rng(0)
  images = [testing.jpeg(rng, 16, 16) for _ in range(8)]
  images[5] = images[5][:100]
  examples = [{"image": image, "label": 1} for image in images]
  features = {"image": "jpeg", "label": 10}
  testing.write_tfds(str(tmp_path), "tiny", {"train": examples}, features)
  changes = {
    "input.data": {"name": "tiny", "split": "train", "data_dir": str(tmp_path)},
    "input.pp": f"decode|{tiny_config().input.pp}",
    "evals": {},
  }
  with pytest.raises(ValueError, match=r"tiny.*:train, example 5: .*op decode"):
    train.train(tiny_config(**changes), str(tmp_path / "run"))


def _command_line(*args):
  return subprocess.run(
    [sys.executable, "-m", "trainers.train", *args],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )


def test_no_folder_for_checkpoints(tmp_path):
  """Orbax alone would say so late, and in a thread of its own."""
  (tmp_path / "checkpoints").write_text("")
  with pytest.raises(
    OSError, match=r"Cannot write checkpoints to .*/checkpoints"
  ):
    train.train(tiny_config(total_steps=1, evals={}), str(tmp_path))


@pytest.mark.parametrize("kind", ["jax.errors.JaxRuntimeError", "ValueError"])
def test_out_of_memory_names_three_knobs(tmp_path, kind):
  code = f"""
import runpy, sys
import jax
from trainers import build
def compile(self):
  raise {kind}("RESOURCE_EXHAUSTED: Out of memory, 9 GiB")
build.Training.compile = compile
config = "--config=configs/digits.py:runlocal"
sys.argv[1:] = [config, "--config.evals={{}}", "--workdir={tmp_path}"]
runpy.run_module("trainers.train", run_name="__main__")
"""
  done = subprocess.run(
    [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
  )
  assert done.returncode == 1
  assert "Out of memory, 9 GiB" in done.stderr
  for knob in ("grad_accum", "model.remat_policy", "sharding_strategy"):
    assert f"config.{knob}=" in done.stderr
  assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
  ("last", "message"),
  [
    (np.nan, r"Bad\.\nNot finite now: params/b/c, opt_state\."),
    (-9.0, r"Bad\.\nNot finite now: opt_state\."),
  ],
)
def test_divergence_names_the_arrays(last, message):
  params = {"a": np.ones(2), "b": {"c": np.array([1, last])}}
  state = update.TrainState(1, params, {}, -np.inf)
  with (
    pytest.raises(metrics.NonFiniteError, match=message),
    train._naming_leaves(lambda: state),
  ):
    raise metrics.NonFiniteError("Bad.")


def test_divergence_on_the_command_line(tmp_path):
  done = _command_line(
    "--config=configs/digits.py:runlocal,seed=3",
    "--config.lr=1e30",
    "--config.model.depth=1",
    "--config.ckpt_steps=1",
    "--config.evals={}",
    f"--workdir={tmp_path}",
  )
  assert done.returncode == 1
  assert '"seed": 3,' in done.stdout
  assert "l2_params = inf" in done.stderr
  assert "at step 2; finite until step 1." in done.stderr
  assert "Finite still, but largest: params/" in done.stderr
  assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
  ("config", "message"),
  [
    (
      "digits.py:stem=dpn",
      "Unknown config argument 'stem'. Did you mean 'stem",
    ),
    ("digit.py", "configs/digit.py"),
  ],
)
def test_errors_on_the_command_line(tmp_path, config, message):
  workdir = tmp_path / "run"
  done = _command_line(f"--config=configs/{config}", f"--workdir={workdir}")
  assert done.returncode == 1
  assert done.stderr.startswith("Error: ")
  assert message in done.stderr
  assert "Traceback" not in done.stderr
  assert not workdir.exists()


def test_skipped_examples_are_counted_across_a_restart(tmp_path, monkeypatch):
  workdir = str(tmp_path)
  config = tiny_config(total_steps=10, log_training_steps=5, ckpt_steps=6)
  config.evals = {}
  config.num_classes = 9  # So the nines do not fit.
  config.input.pp = config.input.pp.replace("10", "9")
  config.input.on_error = "skip"

  source = sources.make(config.input.data.to_dict())
  nine = [source[i]["label"] == 9 for i in range(40)]
  # One stands in for each nine; where that is a nine, too, the one after it.
  per_epoch = sum(
    (nine + nine)[i : i + 40].index(False) for i in range(len(nine))
  )
  assert per_epoch >= 2

  take = report.Log.training
  with monkeypatch.context() as patch:
    patch.setattr(
      report.Log,
      "training",
      lambda log, step, *args: 1 / (step < 10) and take(log, step, *args),
    )
    with pytest.raises(ZeroDivisionError):
      train.train(config, workdir)
  train.train(config, workdir)
  rows = metrics.read(str(tmp_path / "metrics.jsonl"))
  counts = {row["step"]: row["skipped"] for row in rows}
  assert counts == {5: per_epoch, 10: 2 * per_epoch}
