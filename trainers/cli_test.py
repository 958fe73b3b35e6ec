"""Programs that share a command line end with a message alone."""

import pathlib
import subprocess
import sys

import ml_collections

from dpn.trainers import cli

ROOT = pathlib.Path(__file__).parent.parent


def _run(tmp_path, config, *more):
  done = subprocess.run(
    [
      *(sys.executable, "-m", "dpn.trainers.train"),
      *(f"--config=configs/{config}", f"--workdir={tmp_path / 'run'}"),
      *more,
    ],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 1
  assert not (tmp_path / "run").exists()
  return done.stderr


def test_a_wrong_config(tmp_path):
  short = _run(tmp_path, "digits.py:stem=dpn")
  message = "Error: Unknown config argument 'stem'. Did you mean 'stem_ln'"
  assert short.startswith(message)
  assert "Traceback" not in short
  assert "Traceback" in _run(tmp_path, "digits.py:stem=dpn", "--traceback")


def test_no_config(tmp_path):
  said = _run(tmp_path, "digist.py")
  assert "No such file or directory: 'configs/digist.py'" in said
  assert "Traceback" not in said


def test_a_flag_makes_the_section_it_needs():
  config = ml_collections.ConfigDict({"model": {"width": 8}, "mixup": None})
  words = ["--config.wandb.project=p", "--config.mixup.p=0.2", "--config.lr=1"]
  words += ["--config.model.norm_kw.eps=1e-5", "--config.model.width=9"]
  config = cli._with_sections(config, words)
  assert config.to_dict() == {
    "model": {"width": 8, "norm_kw": {}},
    "mixup": {},
    "wandb": {},
  }
