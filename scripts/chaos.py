"""Injects faults into small training runs and prints which ones they survive.

  python -m scripts.chaos --kills 20 --json chaos.json

A run survives a fault if it does what README promises: it continues to the
same bits as the undisturbed run, or it ends with a message and its last
checkpoint is intact. Each fault is a function of this module, and every run a
process of its own. A full disk is simulated by a limit on the size of files.
"""

import contextlib
import inspect
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
from scripts.bench import harness

ROOT = pathlib.Path(__file__).parent.parent
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
BROKEN_EVALUATOR = "--config.evals.test.data.name=scripts.chaos:Broken"
FULL_AFTER_BYTES = 30_000  # less than a checkpoint's largest file
HANGS_AFTER_SECS = 600
BROKEN_LOGGING = (
  "dpn.timing.peak_memory_bytes",
  "tensorboardX.summary.scalar",
)
TRAIN_WITH_BROKEN_LOGGING = f"""
import runpy, sys
from unittest import mock
for name in {BROKEN_LOGGING}:
  mock.patch(name, side_effect=OSError("broken on purpose")).start()
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


class Runs:
  """Training runs in folders below `root`, each with its output in a log.

  What is not as it should be raises an AssertionError.
  """

  def __init__(self, root: pathlib.Path, *, kills: int, seed: int):
    """Trains the undisturbed run, named "reference"."""
    self.root = root
    self.kills, self.random = kills, random.Random(seed)  # of `sigkill`
    self.train("warm")  # fills the compilation cache
    begin = time.monotonic()
    self.train("reference")
    self.secs = time.monotonic() - begin
    self.assert_same("warm")

  def start(
    self, run: str, *flags: str, program=("-m", "trainers.train"), **kw
  ) -> subprocess.Popen:
    """Starts training in the folder `run`; its output goes to `run`.log."""
    workdir = f"--workdir={self.root / run}"
    cache = {"JAX_COMPILATION_CACHE_DIR": str(self.root / "compiled")}
    with open(self._log(run), "a") as log:
      return subprocess.Popen(
        [sys.executable, *program, *FLAGS, workdir, *flags],
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
    text = self._log(run).read_text() + (output or b"").decode()
    code = process.returncode
    assert code == (fails is not None), f"ended with {code}: {text[-300:]}"
    assert (fails or "") in text, f"did not say {fails!r}: {text[-300:]}"
    return text

  def wait_for(self, process: subprocess.Popen, run: str, text: str):
    """Returns as soon as the log contains the text."""
    while text not in self._log(run).read_text():
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

  def _log(self, run):
    return self.root / f"{run}.log"


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


def damaged_checkpoint(runs: Runs):
  """A bit flipped in the latest checkpoint: the one before is used."""
  runs.copy_unfinished("damaged")
  files = filter(os.path.isfile, runs.checkpoints("damaged")[-1].rglob("*"))
  largest = max(files, key=os.path.getsize)
  data = bytearray(largest.read_bytes())
  data[len(data) // 2] ^= 1
  largest.write_bytes(data)
  text = runs.train("damaged")
  runs.assert_same("damaged")
  assert "is damaged, trying the one before" in text, "nothing was said"


def damaged_notes(runs: Runs):
  """The latest checkpoint's position changed: the one before is used."""
  runs.copy_unfinished("notes")
  path = runs.checkpoints("notes")[-1] / "_CHECKPOINT_METADATA"
  position, changed = '"examples_seen": ', '"examples_seen": 1'
  path.write_text(path.read_text().replace(position, changed))
  text = runs.train("notes")
  runs.assert_same("notes")
  assert "is damaged, trying the one before" in text, "nothing was said"


def damaged_twice(runs: Runs):
  """The same step damaged in one start after another: the same bits."""
  runs.copy_unfinished("twice")
  for _ in range(2):
    (runs.checkpoints("twice")[-1] / "_CHECKPOINT_METADATA").write_text("")
    runs.train("twice")
    runs.assert_same("twice")
    (runs.root / "twice" / "done.json").unlink()


def all_damaged(runs: Runs):
  """No checkpoint is whole: every start fails, none starts over unasked."""
  runs.copy_unfinished("all")
  for path in runs.checkpoints("all"):
    (path / "_CHECKPOINT_METADATA").unlink()
  for _ in range(2):
    runs.train("all", fails="to start over, delete this folder")
  shutil.rmtree(runs.root / "all" / "checkpoints")
  runs.train("all")
  runs.assert_same("all")


def damaged_log(runs: Runs):
  """Zeros within metrics.jsonl: set aside, and the same bits."""
  runs.copy_unfinished("log")
  path = runs.root / "log" / "metrics.jsonl"
  first, rest = path.read_bytes().split(b"\n", 1)
  path.write_bytes(first + b"\n" + bytes(512) + b"\n[]\n" + rest)
  text = runs.train("log")
  runs.assert_same("log")
  assert "2 damaged lines are now in" in text, "nothing was said"


def lost_log(runs: Runs):
  """metrics.jsonl is gone: said, and noted in done.json."""
  runs.copy_unfinished("lost")
  (runs.root / "lost" / "metrics.jsonl").unlink()
  text = runs.train("lost")
  assert "metrics.jsonl has lost" in text, "nothing was said"
  done = (runs.root / "lost" / "done.json").read_text()
  assert "lost_rows" in done, "done.json does not say so"


def fewer_steps(runs: Runs):
  """total_steps below the checkpoint's step: a message."""
  runs.copy_unfinished("fewer")
  flags = ("--config.total_epochs=1", "--allow_config_change")
  runs.train("fewer", *flags, fails="Set config.total_steps to")


def full_logs(runs: Runs):
  """Logs meet the limit before a checkpoint does: the same message."""
  limit = (10_000, 10_000)
  runs.train(
    "logs",
    "--config.ckpt_steps=1000",
    "--config.log_training_steps=1",
    fails="Cannot write a checkpoint",
    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    stdout=subprocess.PIPE,  # or the log would hit the limit
  )


def full_disk(runs: Runs):
  """Writing fails: a message, the last checkpoint intact, the same bits."""
  limit = (FULL_AFTER_BYTES, FULL_AFTER_BYTES)
  runs.train(
    "full",
    fails="Cannot write a checkpoint",
    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    stdout=subprocess.PIPE,  # or the log would hit the limit
  )
  runs.train("full")
  runs.assert_same("full")


def unwritable(runs: Runs):
  """A working directory that cannot be created: a message."""
  (runs.root / "file").write_text("")
  runs.train(
    "unwritable",
    f"--workdir={runs.root / 'file' / 'run'}",
    fails="Give a directory in which this user may create files",
  )


def divergence(runs: Runs):
  """NaN: a message that names arrays, the last good checkpoint kept."""
  flags = ("--config.lr=1e30", "--config.ckpt_steps=1")
  runs.train("nan", *flags, fails=": params/")
  assert runs.checkpoints("nan"), "no checkpoint was kept"


def two_runs(runs: Runs):
  """Two runs in one folder: the second is refused, the first continues."""
  first = runs.start("two")
  runs.wait_for(first, "two", "Training on")
  first.send_signal(signal.SIGSTOP)  # or it might end too soon
  try:
    runs.train("two", fails="Another run is using")
  finally:
    first.send_signal(signal.SIGCONT)
  assert first.wait() == 0, "the first did not finish"
  runs.assert_same("two")


def changed_config(runs: Runs):
  """Another config in an old folder: refused with the differences."""
  runs.copy_unfinished("changed")
  runs.train("changed", "--config.lr=0.5", fails="lr: 0.002 there, 0.5 now")
  runs.train("changed", "--config.lr=0.5", "--allow_config_change")
  assert (runs.root / "changed" / "done.json").exists(), "did not finish"


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
  text = runs.train("logging", program=("-c", TRAIN_WITH_BROKEN_LOGGING))
  assert "TensorBoard failed" in text, "it was not said"
  runs.assert_same("logging")


def pickled_weights(runs: Runs):
  """A parameter file that would run code: refused, not run."""
  proof = runs.root / "proof"
  payload = np.array([_Payload(proof)], dtype=object)
  file = runs.root / "evil.npz"
  np.savez(file, kernel=payload)
  runs.train("evil", f"--config.model_init={file}", fails="allow_pickle=False")
  assert not proof.exists(), "code from the file was run"


class _Payload(str):
  """A path; where this is unpickled, a file appears."""

  def __reduce__(self):
    return pathlib.Path.touch, (pathlib.Path(self),)


# Every public function up to here.
FAULTS = {
  name: value
  for name, value in list(globals().items())
  if inspect.isfunction(value) and not name.startswith("_")
}


def main():
  parser = harness.parser(__doc__)
  parser.add_argument("--kills", type=int, default=20, help="of SIGKILL")
  parser.add_argument("--seed", type=int, default=0, help="of their moments")
  parser.add_argument(
    "--only", action="append", choices=FAULTS, help="this fault; repeatable"
  )
  args = parser.parse_args()
  outcomes = {}
  with tempfile.TemporaryDirectory() as root:
    runs = Runs(pathlib.Path(root), kills=args.kills, seed=args.seed)
    for name in args.only or FAULTS:
      try:
        FAULTS[name](runs)
        outcomes[name] = "survived"
      except (AssertionError, OSError, subprocess.SubprocessError) as e:
        outcomes[name] = f"NOT survived: {e}"
      print(f"{name:<20}{outcomes[name]}", flush=True)
  survived = sum(outcome == "survived" for outcome in outcomes.values())
  print(f"{survived} of {len(outcomes)} faults survived.")
  harness.write_json(args.json, outcomes)
  sys.exit(survived < len(outcomes))


if __name__ == "__main__":
  main()
