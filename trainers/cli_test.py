"""Scripts that share a command line end with a message alone."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.parametrize(
  ("config", "message"),
  [
    ("configs/digits.py:stem_ln=dnp", "Unknown stem_ln 'dnp'. Did you mean"),
    ("configs/digist.py", "No such file or directory: 'configs/digist.py'"),
  ],
)
def test_a_wrong_config(config, message):
  run = lambda *more: subprocess.run(
    [sys.executable, "-m", "scripts.count", "--config", config, *more],
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  short, long = run(), run("--traceback")
  assert short.returncode == long.returncode == 1
  assert message in short.stderr
  assert "Traceback" not in short.stderr
  assert "Traceback" in long.stderr
