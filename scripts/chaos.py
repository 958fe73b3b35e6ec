"""Does to a training run what happens to training runs; prints what survived.

  python -m scripts.chaos --kills 20 --json chaos.json

A fault is survived when what was promised happens: the run goes on to the same
bits as the undisturbed one, or it ends with a message and its last checkpoint
is whole. Every fault is done to a tiny run in a process of its own. "Full disk"
is a limit on the size of files.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

from input_pipeline import sources
from input_pipeline.sources import arrays

ROOT = pathlib.Path(__file__).parent.parent
FLAGS = (
  "--config=configs/digits.py:epochs=4",
  "--config.model.depth=1",
  "--config.ckpt_steps=5",
  "--config.log_training_steps=5",
)
RESULTS = ("metrics.jsonl", "params.safetensors")
BROKEN = "--config.evals.test.data.name=custom:scripts.chaos:Broken"
FULL_AFTER_BYTES = 30_000  # less than a checkpoint's largest file
BROKEN_CLOCK = """
import runpy, sys
from dpn import timing, metrics
def broken(*args):
  raise OSError("broken on purpose")
timing.StepTimer.lap = metrics.Writer._show = broken
sys.argv[0] = "trainers.train"
runpy.run_module("trainers.train", run_name="__main__")
"""


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


class Chaos:
  """The faults, each a method that raises AssertionError if not survived."""

  def __init__(self, root: pathlib.Path, *, kills: int, seed: int):
    """Prepares; nothing runs yet.

    Args:
      root: folder for all runs.
      kills: how often to send SIGKILL.
      seed: of the moments at which to do so.
    """
    self._root, self._kills = root, kills
    self._random = random.Random(seed)
    self._cache = root / "compiled"
    self.killed_in_save = 0

  def reference(self) -> float:
    """Trains undisturbed, twice; returns the seconds that the second took."""
    self._train("warm")
    begin = time.monotonic()
    self._train("reference")
    self._assert_same("warm")
    return time.monotonic() - begin

  def start(
    self, run: str, *extra: str, program=("-m", "trainers.train"), **kw
  ) -> subprocess.Popen:
    """Starts training in the folder `run`; its output goes to `run`.log."""
    with open(self._root / f"{run}.log", "a") as log:
      kw = {"stdout": log, "stderr": subprocess.STDOUT, **kw}
      command = [sys.executable, *program, *FLAGS]
      return subprocess.Popen(
        [*command, f"--workdir={self._root / run}", *extra],
        cwd=ROOT,
        env=os.environ
        | {
          "JAX_PLATFORMS": "cpu",
          "JAX_COMPILATION_CACHE_DIR": str(self._cache),
          "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        },
        **kw,
      )

  def _train(self, run, *extra, fails=None, **kw):
    """Trains to the end, or to a failure that must say `fails`."""
    process = self.start(run, *extra, **kw)
    said, _ = process.communicate()
    code = process.returncode
    with open(self._root / f"{run}.log", "a+") as log:
      log.write((said or b"").decode())
      log.seek(0)
      text = log.read()
    if fails is None:
      assert code == 0, f"ended with {code}: {text[-300:]}"
    else:
      assert code == 1, f"ended with {code}, expected an error"
      assert fails in text, f"did not say {fails!r}: {text[-300:]}"

  def _wait(self, process, run, text):
    log = self._root / f"{run}.log"
    while text not in log.read_text():
      assert process.poll() is None, f"ended before {text!r}"
      time.sleep(0.01)

  def _assert_same(self, run):
    for name in RESULTS:
      a, b = (self._root / r / name for r in (run, "reference"))
      assert a.read_bytes() == b.read_bytes(), f"{name} differs"

  def _checkpoints(self, run):
    folder = self._root / run / "checkpoints"
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())

  def sigterm(self):
    """SIGTERM: exit 0 with a checkpoint, then the same bits."""
    process = self.start("sigterm", "--config.log_training_steps=5")
    self._wait(process, "sigterm", "First step")
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=30)
    assert code == 0, f"ended with {code}"
    assert self._checkpoints("sigterm"), "no checkpoint"
    self._train("sigterm")
    self._assert_same("sigterm")

  def sigkill(self, secs: float):
    """SIGKILL at random moments, every other in a save; then the same bits."""
    for i in range(self._kills):
      process = self.start("sigkill")
      if i % 2:
        self._wait_for_save(process, "sigkill")
      else:
        with contextlib.suppress(subprocess.TimeoutExpired):
          process.wait(timeout=self._random.uniform(0.3, 1) * secs)
      process.kill()
      process.wait()
      self.killed_in_save += bool(self._unfinished("sigkill"))
      if (self._root / "sigkill" / "done.json").exists():
        self._assert_same("sigkill")
        shutil.rmtree(self._root / "sigkill")
    self._train("sigkill")
    self._assert_same("sigkill")
    print(f"{self.killed_in_save} of {self._kills} kills cut off a save.")

  def _wait_for_save(self, process, run):
    """Returns in the midst of writing a checkpoint, a random one of them."""
    saves, before = self._random.randint(1, 3), set()
    while process.poll() is None and len(before) < saves:
      before |= self._unfinished(run)
      time.sleep(0.001)

  def _unfinished(self, run):
    folder = self._root / run / "checkpoints"
    return {p.name for p in folder.glob("*orbax-checkpoint-tmp*")}

  def damaged_checkpoint(self):
    """A bit flipped in the latest checkpoint: the one before is used."""
    run = self._copy("damaged")
    latest = run / "checkpoints" / str(self._checkpoints("damaged")[-1])
    files = (p for p in latest.rglob("*") if p.is_file())
    largest = max(files, key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    self._train("damaged")
    self._assert_same("damaged")
    text = (self._root / "damaged.log").read_text()
    assert "is damaged, trying the one before" in text, "nothing was said"

  def full_disk(self):
    """Writing fails: a message, the last checkpoint whole, the same bits."""
    limit = lambda: resource.setrlimit(
      resource.RLIMIT_FSIZE, (FULL_AFTER_BYTES, FULL_AFTER_BYTES)
    )
    self._train(
      "full",
      fails="Cannot write a checkpoint",
      preexec_fn=limit,
      stdout=subprocess.PIPE,  # or the log would hit the limit
    )
    self._train("full")
    self._assert_same("full")

  def unwritable(self):
    """A working directory that cannot be made: a message."""
    (self._root / "file").write_text("")
    fails = "Give a directory in which this user may create files"
    extra = f"--workdir={self._root / 'file' / 'run'}"
    self._train("unwritable", extra, fails=fails)

  def divergence(self):
    """NaN: a message that names arrays, the last good checkpoint kept."""
    extra = ("--config.lr=1e30", "--config.ckpt_steps=1")
    self._train("nan", *extra, fails=": params/")
    assert self._checkpoints("nan"), "no checkpoint was kept"

  def two_runs(self):
    """Two runs in one folder: the second refuses, the first goes on."""
    first = self.start("two")
    self._wait(first, "two", "Training on")
    first.send_signal(signal.SIGSTOP)  # or it might end too soon
    try:
      second = self.start("two")
      assert second.wait() == 1, "the second did not refuse"
    finally:
      first.send_signal(signal.SIGCONT)
    assert first.wait() == 0, "the first did not finish"
    assert "Another run is using" in (self._root / "two.log").read_text()
    self._assert_same("two")

  def changed_config(self):
    """Another config in an old folder: the differences, refused."""
    self._copy("changed")
    self._train("changed", "--config.lr=0.5", fails="lr: 0.002 there, 0.5 now")
    self._train("changed", "--config.lr=0.5", "--allow_config_change")
    assert (self._root / "changed" / "done.json").exists(), "did not finish"

  def broken_evaluator(self):
    """An evaluator that fails: named, and training goes on to the end."""
    self._train("evaluator", BROKEN)
    text = (self._root / "evaluator.log").read_text()
    assert "Evaluator 'test' failed" in text, "it was not named"

  def strict_evaluator(self):
    """The same with config.strict_evals: the run ends with a message."""
    self._train(
      "strict",
      BROKEN,
      "--config.strict_evals=True",
      fails="Evaluator 'test' failed",
    )

  def broken_clock(self):
    """Clock and TensorBoard fail: training goes on to the same bits."""
    self._train("clock", program=("-c", BROKEN_CLOCK))
    text = (self._root / "clock.log").read_text()
    for what in ("The clock failed", "TensorBoard failed"):
      assert what in text, f"did not say {what!r}"
    self._assert_same("clock")

  def pickled_weights(self):
    """A parameter file that would run code: refused, not run."""
    proof = self._root / "proof"
    payload = np.array([_Payload(str(proof))], dtype=object)
    np.savez(self._root / "evil.npz", kernel=payload)
    extra = f"--config.model_init={self._root / 'evil.npz'}"
    self._train("evil", extra, fails="allow_pickle=False")
    assert not proof.exists(), "code from the file was run"

  def _copy(self, run):
    """Returns a folder that is the reference's before its end."""
    shutil.copytree(self._root / "reference", self._root / run)
    (self._root / run / "done.json").unlink()
    return self._root / run


class _Payload:
  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return (pathlib.Path.touch, (pathlib.Path(self._path),))


FAULTS = (
  "sigterm",
  "sigkill",
  "damaged_checkpoint",
  "full_disk",
  "unwritable",
  "divergence",
  "two_runs",
  "changed_config",
  "broken_evaluator",
  "strict_evaluator",
  "broken_clock",
  "pickled_weights",
)


def run(faults, chaos: Chaos) -> dict[str, str]:
  """Returns what came of each fault: "survived", or what went wrong."""
  secs = chaos.reference()
  outcomes = {}
  for name in faults:
    args = (secs,) if name == "sigkill" else ()
    try:
      getattr(chaos, name)(*args)
      outcomes[name] = "survived"
    except (AssertionError, OSError, subprocess.SubprocessError) as e:
      outcomes[name] = f"NOT survived: {e}"
    print(f"{name:<20}{outcomes[name]}", flush=True)
  return outcomes


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--kills", type=int, default=20, help="of SIGKILL")
  parser.add_argument("--seed", type=int, default=0, help="of their moments")
  parser.add_argument(
    "--only", action="append", choices=FAULTS, help="this fault; repeatable"
  )
  parser.add_argument("--json", help="file for the outcomes")
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as root:
    chaos = Chaos(pathlib.Path(root), kills=args.kills, seed=args.seed)
    outcomes = run(args.only or FAULTS, chaos)
  survived = sum(outcome == "survived" for outcome in outcomes.values())
  print(f"{survived} of {len(outcomes)} faults survived.")
  if args.json:
    with open(args.json, "w") as f:
      json.dump(outcomes, f, indent=2)
  sys.exit(survived < len(outcomes))


if __name__ == "__main__":
  main()
