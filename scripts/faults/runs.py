"""Runs that are trained in processes of their own, to do them harm."""

import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAGS = (
  "--config=configs/digits.py:epochs=4",
  "--config.model.depth=1",
  "--config.ckpt_steps=5",
  "--config.log_training_steps=5",
  "--config.deterministic=True",  # matters on GPUs only
)
ENVIRONMENT = {
  "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "cpu"),
  "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
RESULTS = ("metrics.jsonl", "params.safetensors")
HANGS_AFTER_SECS = 600
# trainers.train, some of whose parts are others.
PATCHED = """
import runpy, sys
from unittest import mock
from dpn import registry
for target, path in {patches!r}.items():
  mock.patch(target, registry.import_path("patch", path)).start()
sys.argv[0] = "dpn.trainers.train"
runpy.run_module("dpn.trainers.train", run_name="__main__")
"""


class Runs:
  """Training runs in folders below `root`, each with its output in a log.

  What is not as it should be raises an AssertionError.
  """

  def __init__(
    self,
    root: pathlib.Path,
    *,
    kills: int = 0,
    seed: int = 0,
    build: Mapping[str, str] | None = None,
    dtype: str = "float32",
  ):
    """Trains the undisturbed run, named "reference".

    Args:
      root: where the runs are.
      kills: how often `sigkill` kills.
      seed: of the moments.
      build: what is patched in all runs, as in `start`.
      dtype: of matrix products.
    """
    self.root, self.build = root, build or {}
    self.flags = [*FLAGS, f"--config.model.dtype_mm={dtype}"]
    self.kills, self.random = kills, random.Random(seed)  # of `sigkill`
    self.train("warm")  # fills the compilation cache
    begin = time.monotonic()
    self.train("reference")
    self.secs = time.monotonic() - begin
    self.assert_same("warm")

  def start(
    self,
    run: str,
    *flags: str,
    patches: Mapping[str, str] | None = None,
    **kw,
  ) -> subprocess.Popen:
    """Starts training in the folder `run`; its output goes to `run`.log.

    `patches` are from dotted names to what takes their place, "module:name".
    """
    patches = {**self.build, **(patches or {})}
    program = ["-m", "dpn.trainers.train"]
    if patches:
      program = ["-c", PATCHED.format(patches=patches)]
    workdir = f"--workdir={self.root / run}"
    cache = {"JAX_COMPILATION_CACHE_DIR": str(self.root / "compiled")}
    with open(self._log(run), "a") as log:
      return subprocess.Popen(
        [sys.executable, *program, *self.flags, workdir, *flags],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT | cache,
        **{"stdout": log, "stderr": subprocess.STDOUT, **kw},
      )

  def train(self, run: str, *flags: str, fails: str | None = None, **kw) -> str:
    """Trains to the end, or to an error that says `fails`; returns the log."""
    process = self.start(run, *flags, **kw)
    try:
      output, _ = process.communicate(timeout=HANGS_AFTER_SECS)
    finally:
      process.kill()
    text = self.log(run) + (output or b"").decode()
    code = process.returncode
    assert code == (fails is not None), f"ended with {code}: {text[-300:]}"
    assert (fails or "") in text, f"did not say {fails!r}: {text[-300:]}"
    return text

  def wait_for(self, process: subprocess.Popen, run: str, text: str):
    """Returns as soon as the log contains the text."""
    while text not in self.log(run):
      assert process.poll() is None, f"ended before {text!r}"
      time.sleep(0.01)

  def assert_same(self, run: str):
    """Checks that a run's results are bit for bit those of the reference."""
    for name in RESULTS:
      a, b = (self.root / r / name for r in (run, "reference"))
      assert a.read_bytes() == b.read_bytes(), f"{name} differs"

  def checkpoints(self, run: str) -> list[pathlib.Path]:
    """Returns a run's complete checkpoints, the latest last."""
    folders = (self.root / run / "checkpoints").glob("[0-9]*")
    complete = [p for p in folders if p.name.isdigit()]
    return sorted(complete, key=lambda p: int(p.name))

  def unfinished_saves(self, run: str) -> set[str]:
    folder = self.root / run / "checkpoints"
    return {p.name for p in folder.glob("*orbax-checkpoint-tmp*")}

  def copy_unfinished(self, run: str):
    """Makes a run that is the reference before it was marked as done."""
    shutil.copytree(self.root / "reference", self.root / run)
    (self.root / run / "done.json").unlink()

  def log(self, run: str) -> str:
    """Returns what a run has printed."""
    return self._log(run).read_text()

  def _log(self, run):
    return self.root / f"{run}.log"
