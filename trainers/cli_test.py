"""Commands that share a command line: fields of configs, help, messages."""

import pathlib
import subprocess
import sys

import pytest
from absl import flags

from dpn.trainers import cli

ROOT = pathlib.Path(__file__).parent.parent


def _run(*args):
  command = [sys.executable, "-m", "dpn.trainers.train", *args]
  return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_wrong_config_is_a_message_alone(tmp_path):
  args = ["--config=configs/digits.py:stem=dpn", f"--workdir={tmp_path}/run"]
  message = "Error: Unknown config argument 'stem'. Did you mean 'stem_ln'"
  done = _run(*args)
  assert done.returncode == 1
  assert done.stderr.startswith(message)
  assert "Traceback" not in done.stderr
  assert "Traceback" in _run(*args, "--traceback").stderr
  assert not (tmp_path / "run").exists()


CONFIG = """
import ml_collections
def get_config(arg="lr=1"):
  return ml_collections.ConfigDict(
    {"model": {"width": 8, "depth": 2}, "mixup": None, "lr": float(arg[3:]),
     "on": False, "sizes": (1, 2), "evals": {"val": {}, "test": {}},
     "schedule": {"decay_type": "cosine"}, "wd_mults": [("x", 1.0)],
     "model_load": {"dont_check": ()}}
  )
"""
DTYPE = """
import jax.numpy as jnp
import ml_collections
def get_config():
  return ml_collections.ConfigDict({"optax": {"mu_dtype": jnp.bfloat16}})
"""


@pytest.fixture(name="path")
def _path(tmp_path):
  (tmp_path / "config.py").write_text(CONFIG)
  return str(tmp_path / "config.py")


def test_flags_set_fields_and_make_the_sections_they_need(path):
  config = cli.load_config(f"{path}:lr=2")
  words = ["--config.wandb.project=p", "RUN", "--config.mixup.p=0.2"]
  words += ["--config.model.norm_kw.eps=1e-5", "--config.model.width", "9"]
  words += ["--config.on", "--config.sizes=3,4"]
  words += ["--config.evals.val=None", "--other", "--config.model.depth=None"]
  words += ["--config.model_load.dont_check=['gelu']"]
  words += ["--config.wd_mults=[('.*', 2.0)]", "--config.lr_mults=[('a', 3)]"]
  words += ["--config.schedule=[('a', None), ('.*', {'warmup_steps': 5})]"]
  assert cli.with_fields(config, words) == ["RUN", "--other"]
  assert config.to_dict() == {
    "model": {"width": 9, "norm_kw": {"eps": 1e-5}, "depth": None},
    "mixup": {"p": 0.2},
    "wandb": {"project": "p"},
    "lr": 2.0,
    "on": True,
    "sizes": (3, 4),
    "evals": {"test": {}},
    "model_load": {"dont_check": ("gelu",)},
    "schedule": [("a", None), (".*", {"warmup_steps": 5})],
    "wd_mults": [(".*", 2.0)],
    "lr_mults": [("a", 3)],
  }
  with pytest.raises(ValueError, match=r"steps=7: schedule is a list in this"):
    cli.with_fields(config, ["--config.schedule.warmup_steps=7"])
  words = ["--config.schedule={'warmup_steps': 7}"]
  words += ["--config.model_init={'img': 'a'}"]
  assert cli.with_fields(config, words) == []
  assert config.schedule.warmup_steps == 7
  words = ["--config.model_init=runs/lit", "--config.model.depth=0.5"]
  words += [f"--config.{x}" for x in ("lr_mults=3", "on=None", "on=false")]
  assert cli.with_fields(config, words) == []
  assert config.model_init == "runs/lit"
  assert (config.model.depth, config.lr_mults) == (0.5, 3)
  assert config.on is False


def test_what_is_wrong_with_a_config(path, tmp_path):
  with pytest.raises(ValueError, match="could not convert string to float"):
    cli.load_config(f"{path}:lr=x")
  with pytest.raises(FileNotFoundError, match=r"No such file .*/none\.py'"):
    cli.load_config(str(tmp_path / "none.py"))
  (tmp_path / "empty.py").write_text("")
  with pytest.raises(ValueError, match="has no function get_config"):
    cli.load_config(str(tmp_path / "empty.py"))
  (tmp_path / "dtype.py").write_text(DTYPE)
  with pytest.raises(
    ValueError, match=r"config.optax.mu_dtype is <.*'bfloat16"
  ):
    cli.load_config(str(tmp_path / "dtype.py"))
  with pytest.raises(ValueError, match=r"in config.evals: 'vla'. Did you mean"):
    cli.with_fields(cli.load_config(path), ["--config.evals.vla=None"])
  with pytest.raises(ValueError, match=r"lr is a float in this config, and no"):
    cli.with_fields(cli.load_config(path), ["--config.lr.x=3"])
  with pytest.raises(flags.Error, match=r"--config.lr=x: could not convert"):
    cli.with_fields(cli.load_config(path), ["--config.lr=x"])


def test_a_config_may_name_what_is_trusted(tmp_path):
  """As configs/images.py does, which reads that of a run."""
  (tmp_path / "config.py").write_text(
    "from dpn import registry\n"
    "def get_config():\n"
    "  registry.check_names('run', {'model': {'norm': 'planted:X'}})\n"
    "  raise ValueError('trusted')\n"
  )
  args = [f"--config={tmp_path}/config.py", f"--workdir={tmp_path}/run"]
  assert "--trust planted" in _run(*args).stderr
  assert "Error: trusted" in _run(*args, "--trust=planted").stderr


def test_a_config_that_ends_the_program_has_failed(tmp_path):
  text = "import sys\ndef get_config():\n  sys.exit('no data')\n"
  (tmp_path / "config.py").write_text(text)
  with pytest.raises(SystemExit, match="no data"):
    cli.load_config(f"{tmp_path}/config.py")
  done = _run(f"--config={tmp_path}/config.py", f"--workdir={tmp_path}/run")
  assert (done.returncode, done.stderr.strip()) == (1, "no data")


def test_too_many_arguments(monkeypatch):
  run = lambda guarded, **unused: guarded(["diagnose", "a", "b"])
  monkeypatch.setattr(cli.app, "run", run)
  message = r"unexpected argument 'b'; expected flags and \[RUN\] only\."
  with pytest.raises(SystemExit, match=message):
    cli.run(pytest.fail, [], ["RUN"])
