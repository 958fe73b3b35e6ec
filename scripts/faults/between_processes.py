"""Faults of runs of two processes: they differ, or one dies or hangs."""

import contextlib
import signal
import socket
from collections.abc import Iterator

from dpn.scripts.faults.runs import HANGS_AFTER_SECS, Runs

ENDLESS = (
  "--config.total_epochs=1000000",
  "--config.ckpt_steps=1000000",
  "--config.evals.test.log_percent=1.0",
)
ENDS_WITHIN_SECS = 60


@contextlib.contextmanager
def _pair(runs: Runs, name: str, *flags: str, second=()) -> Iterator[list]:
  """Starts two processes of a run, one with further flags; yields them."""
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    where = f"--coordinator=localhost:{s.getsockname()[1]}"
  folder = f"--workdir={runs.root / name}"
  of_each = [["--process_id=0"], ["--process_id=1", *second]]
  processes = [
    runs.start(f"{name}{i}", *flags, folder, where, "--num_processes=2", *own)
    for i, own in enumerate(of_each)
  ]
  try:
    yield processes
  finally:
    for process in processes:
      process.kill()
      process.wait()


def _assert_ends(
  runs: Runs, run: str, process, message: str, within: float = HANGS_AFTER_SECS
):
  """Checks that a process ends with a message, within so many seconds."""
  code = process.wait(timeout=within)
  text = runs.log(run)
  assert code == 1, f"ended with {code}: {text[-300:]}"
  assert message in text, f"did not say {message!r}: {text[-300:]}"


def differing_processes(runs: Runs):
  """One process with another lr: both end and name both values."""
  with _pair(runs, "differ", second=["--config.lr=0.5"]) as processes:
    for i, process in enumerate(processes):
      message = "config.lr: 0.002 in process 0, 0.5 in process 1"
      _assert_ends(runs, f"differ{i}", process, message)
  assert not runs.checkpoints("differ"), "it was trained"


def failing_process(runs: Runs):
  """One process has no data: the other one ends with its message."""
  program = ("--config.input.data.name=arrays:no:such",)
  with _pair(runs, "failing", second=program) as processes:
    for i, process in enumerate(processes):
      _assert_ends(runs, f"failing{i}", process, "Error: ")


def _lost(runs: Runs, name: str, victim: int, number: int, message: str):
  with _pair(runs, name, *ENDLESS) as processes:
    runs.wait_for(processes[0], f"{name}0", "step 10/")
    processes[victim].send_signal(number)
    i = 1 - victim
    _assert_ends(runs, f"{name}{i}", processes[i], message, ENDS_WITHIN_SECS)


def killed_first_process(runs: Runs):
  """Process 0 is killed: the other one says so and ends."""
  message = "Error: process 0, which coordinates this run, was killed"
  _lost(runs, "killed_first", 0, signal.SIGKILL, message)


def killed_process(runs: Runs):
  """Process 1 is killed: the other one says so and ends."""
  message = "Error: process 1 of this run has been silent"
  _lost(runs, "killed_second", 1, signal.SIGKILL, message)


def stopped_first_process(runs: Runs):
  """Process 0 is stopped (SIGSTOP): the other one says so and ends."""
  message = "Error: process 0 of this run has been silent"
  _lost(runs, "stopped_first", 0, signal.SIGSTOP, message)


def stopped_process(runs: Runs):
  """Process 1 is stopped (SIGSTOP): the other one says so and ends."""
  message = "Error: process 1 of this run has been silent"
  _lost(runs, "stopped_second", 1, signal.SIGSTOP, message)


def missing_process(runs: Runs):
  """One process never comes: the other one says so and ends."""
  with _pair(runs, "missing", "--init_timeout_secs=10") as processes:
    processes[1].kill()
    message = "did not find each other within 10 s"
    _assert_ends(runs, "missing0", processes[0], message)
