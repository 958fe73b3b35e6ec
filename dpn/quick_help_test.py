"""Tests that help needs none of the libraries that a command runs."""

import pathlib
import subprocess
import sys

import pytest

from dpn.scripts import main

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.parametrize("module", main.commands().values())
def test_help_is_shown_at_once(module, tmp_path):
  code = f"""
import atexit, runpy, sys
sys.path[0] = {str(ROOT)!r}
sys.argv[:] = ["-m", "--help"]
slow = {{"grain", "orbax.checkpoint", "tensorflow_datasets", "torch"}}
atexit.register(lambda: print("loaded:", *slow & sys.modules.keys()))
runpy.run_module({module[4:]!r}, run_name="__main__", alter_sys=True)
"""
  command = [sys.executable, "-c", code]
  done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
  assert (done.returncode, done.stderr) == (0, "")
  assert done.stdout.startswith("usage:") or "--config" in done.stdout
  assert done.stdout.endswith("loaded:\n")
  assert not [*tmp_path.iterdir()]
