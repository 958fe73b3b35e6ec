"""Faults of a run: signals, settings, and code that fails."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

from dpn.input_pipeline import sources
from dpn.input_pipeline.sources import arrays
from dpn.scripts.faults.runs import HANGS_AFTER_SECS, Runs
from dpn.weights import checkpoint

BROKEN_EVALUATOR = f"--config.evals.test.data.name={__name__}:Broken"
BROKEN_LOGGING = {
  "dpn.timing.peak_memory_bytes": f"{__name__}:fail",
  "dpn.boards.tensorboard._record": f"{__name__}:fail",
}


def fail(*unused, **kw):
  raise OSError("broken on purpose")


class Broken(sources.Source):
  """Digits of which only the first few can be read."""

  def __init__(self, split: str):
    self._digits = arrays.open_split("digits", split)
    self.name = "broken"

  def __len__(self):
    return len(self._digits)

  def __getitem__(self, index):
    if index > 10:
      raise OSError("the disk has gone")
    return self._digits[index]


def sigterm(runs: Runs):
  """SIGTERM: exit status 0 with a checkpoint, then the same bits."""
  process = runs.start("sigterm")
  runs.wait_for(process, "sigterm", "First step")
  process.send_signal(signal.SIGTERM)
  assert process.wait(timeout=30) == 0, f"ended with {process.returncode}"
  assert runs.checkpoints("sigterm"), "no checkpoint"
  runs.train("sigterm")
  runs.assert_same("sigterm")


def sigkill(runs: Runs):
  """SIGKILL at random moments, every other in a save; then the same bits."""
  in_save = 0
  for i in range(runs.kills):
    process = runs.start("sigkill")
    if i % 2:  # while one of the checkpoints, chosen at random, is written
      saves, seen = runs.random.randint(1, 3), set()
      while process.poll() is None and len(seen) < saves:
        seen |= runs.unfinished_saves("sigkill")
        time.sleep(0.001)
    else:
      with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=runs.random.uniform(0.3, 1) * runs.secs)
    process.kill()
    process.wait()
    in_save += bool(runs.unfinished_saves("sigkill"))
    if (runs.root / "sigkill" / "done.json").exists():
      runs.assert_same("sigkill")
      shutil.rmtree(runs.root / "sigkill")
  runs.train("sigkill")
  runs.assert_same("sigkill")
  print(f"{in_save} of {runs.kills} kills interrupted a save.")


def sigterm_in_export(runs: Runs):
  """SIGTERM while the parameters are exported: the run is finished."""
  runs.copy_unfinished("asked")
  ask = {"dpn.weights.checkpoint.save_params": f"{__name__}:ask_and_save"}
  runs.train("asked", patches=ask)
  assert (runs.root / "asked" / "done.json").exists(), "did not finish"
  runs.assert_same("asked")


def sigkill_in_export(runs: Runs):
  """SIGKILL while the parameters are written: the same bits."""
  runs.copy_unfinished("killed")
  parameters = runs.root / "killed" / "params.safetensors"
  parameters.unlink()
  process = runs.start("killed", patches={"os.fsync": f"{__name__}:die"})
  code = process.wait(timeout=HANGS_AFTER_SECS)
  assert code == -signal.SIGKILL, f"ended with {code}"
  assert not parameters.exists(), "half"
  runs.train("killed")
  runs.assert_same("killed")


_save_params, _fsync = checkpoint.save_params, os.fsync


def ask_and_save(*args):
  """Exports parameters after SIGTERM has come."""
  os.kill(os.getpid(), signal.SIGTERM)
  _save_params(*args)


def die(descriptor):
  """Ends the process where the parameters go to the disk."""
  if "params.safetensors" in os.readlink(f"/proc/self/fd/{descriptor}"):
    os.kill(os.getpid(), signal.SIGKILL)
  _fsync(descriptor)


def two_runs(runs: Runs):
  """Two runs in one folder: the second is refused, the first continues."""
  first = runs.start("two")
  runs.wait_for(first, "two", "Training on")
  first.send_signal(signal.SIGSTOP)  # or it might end too soon
  try:
    runs.train("two", fails="Another run is using")
    first.send_signal(signal.SIGCONT)
    assert first.wait() == 0, "the first did not finish"
    runs.assert_same("two")
  finally:
    first.kill()
    first.wait()


def changed_config(runs: Runs):
  """Another config in an old folder: refused with the differences."""
  runs.copy_unfinished("changed")
  runs.train("changed", "--config.lr=0.5", fails="lr: 0.002 there, 0.5 now")
  runs.train("changed", "--config.lr=0.5", "--allow_config_change")
  assert (runs.root / "changed" / "done.json").exists(), "did not finish"


def fewer_steps(runs: Runs):
  """total_steps below the checkpoint's step: a message."""
  runs.copy_unfinished("fewer")
  flags = ("--config.total_epochs=1", "--allow_config_change")
  runs.train("fewer", *flags, fails="Set config.total_steps to")


def divergence(runs: Runs):
  """NaN: a message that names arrays, the last good checkpoint kept."""
  flags = ("--config.lr=1e30", "--config.ckpt_steps=1")
  runs.train("nan", *flags, fails=": params/")
  assert runs.checkpoints("nan"), "no checkpoint was kept"


def broken_evaluator(runs: Runs):
  """An evaluator that fails: named, and training runs to the end."""
  text = runs.train("evaluator", BROKEN_EVALUATOR)
  assert "Evaluator 'test' failed" in text, "it was not named"


def strict_evaluator(runs: Runs):
  """The same with config.strict_evals: the run ends with a message."""
  flags = (BROKEN_EVALUATOR, "--config.strict_evals=True")
  runs.train("strict", *flags, fails="Evaluator 'test' failed")


def broken_logging(runs: Runs):
  """Timing and TensorBoard fail: training continues to the same bits."""
  text = runs.train("logging", patches=BROKEN_LOGGING)
  assert "TensorBoard failed" in text, "it was not said"
  runs.assert_same("logging")
