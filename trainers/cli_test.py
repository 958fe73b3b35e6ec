"""Programs that share a command line end with a message alone."""

import pathlib
import subprocess
import sys

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
