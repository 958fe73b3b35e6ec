"""Runs commands, several at a time, and says how far they are."""

import collections
import contextlib
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from dpn import timing

NOT_RUN = "not run"
STOPPED = "stopped; the same command goes on"
_STEP = re.compile(r"step (\d+)/(\d+)")
_TAIL_BYTES = 4096
_POLL_SECS = 0.2
_QUIET_SECS = 300  # between status lines where there is no terminal


@dataclasses.dataclass(frozen=True)
class Job:
  """A command to run.

  Attributes:
    name: for the person.
    command: the words.
    log: file for its output, to which it is appended.
    done: file that is there once it has done its work.
  """

  name: str
  command: tuple[str, ...]
  log: str
  done: str

  def progress(self) -> float:
    """Returns how much is done, from 0 to 1, by the last "step i/n"."""
    if steps := _STEP.findall(self.tail()):
      step, total = map(int, steps[-1])
      return step / total if total else 0.0
    return 0.0

  def tail(self) -> str:
    """Returns the end of the log."""
    if not os.path.exists(self.log):
      return ""
    with open(self.log, "rb") as f:
      f.seek(max(0, f.seek(0, os.SEEK_END) - _TAIL_BYTES))
      return f.read().decode(errors="replace")


@dataclasses.dataclass(frozen=True)
class _Running:
  process: subprocess.Popen
  since: float
  before: float  # the progress it started from


def run(
  jobs: Sequence[Job], at_once: int, *, keep_open: int | None = None
) -> dict[str, str]:
  """Runs jobs and returns how each ended: "done in …", "failed: …", ….

  Ctrl-C and SIGTERM end the running ones with SIGTERM, and wait for them; a
  second Ctrl-C kills them.

  Args:
    jobs: in this order.
    at_once: how many at a time.
    keep_open: a file descriptor that the commands inherit.
  """
  outcomes = {job.name: NOT_RUN for job in jobs}
  waiting, running = collections.deque(jobs), {}
  status = _Status(len(jobs))
  before = signal.signal(signal.SIGTERM, _interrupt)
  try:
    while waiting or running:
      while waiting and len(running) < at_once:
        job = waiting.popleft()
        running[job] = _start(job, keep_open)
        status.line(f"{job.name} runs; its output: {job.log}")
      for job in [
        j for j, r in running.items() if r.process.poll() is not None
      ]:
        ended = running.pop(job)
        outcomes[job.name] = _outcome(job, ended)
        status.ended(job, ended, outcomes[job.name])
      status.refresh(running, len(waiting))
      time.sleep(_POLL_SECS)
  except KeyboardInterrupt:
    status.line("Stopping: what runs saves first; Ctrl-C again kills it.")
    _stop(running)
    outcomes |= {job.name: _outcome(job, r) for job, r in running.items()}
  except BaseException:
    _stop(running)
    raise
  finally:
    signal.signal(signal.SIGTERM, before)
  return outcomes


def _interrupt(*unused):
  raise KeyboardInterrupt


def _start(job, keep_open):
  os.makedirs(os.path.dirname(job.log), exist_ok=True)
  before = job.progress()
  with open(job.log, "ab") as log:
    process = subprocess.Popen(
      job.command,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      # A group of its own: the terminal's Ctrl-C would kill it unsaved.
      start_new_session=True,
      pass_fds=() if keep_open is None else (keep_open,),
    )
  return _Running(process, time.monotonic(), before)


def _stop(running):
  processes = [r.process for r in running.values()]
  try:
    for process in processes:
      process.terminate()
    for process in processes:
      process.wait()
  except KeyboardInterrupt:
    for process in processes:
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
      process.wait()


def _outcome(job, ended):
  secs = time.monotonic() - ended.since
  code = ended.process.returncode
  if os.path.exists(job.done):
    return f"done in {timing.hms(secs)}"
  if code in (0, -signal.SIGTERM):
    return STOPPED
  lines = [line for line in job.tail().splitlines() if line.strip()]
  errors = [line for line in lines if line.startswith("Error: ")]
  reason = (errors or lines or [f"exit status {code}"])[-1]
  return f"failed: {reason.removeprefix('Error: ')} ({job.log})"


class _Status:
  """Lines for the person; on a terminal the last one is kept up to date."""

  def __init__(self, total: int):
    self._total, self._ended, self._failed = total, 0, 0
    self._start = self._shown = time.monotonic()
    self._work = 0.0  # jobs' worth of work done here by those that ended
    self._terminal = sys.stdout.isatty()

  def line(self, text: str):
    erase = "\r\x1b[K" if self._terminal else ""
    print(f"{erase}{text}", flush=True)

  def ended(self, job: Job, ended: _Running, outcome: str):
    self._ended += 1
    self._failed += outcome.startswith("failed")
    self._work += 1 - ended.before
    self.line(f"[{self._ended}/{self._total}] {job.name} {outcome}")
    self._shown = 0.0

  def refresh(self, running, waiting: int):
    now = time.monotonic()
    if now - self._shown < (1 if self._terminal else _QUIET_SECS):
      return
    self._shown = now
    progress = {job: job.progress() for job in running}
    work = self._work + sum(
      max(0.0, p - running[job].before) for job, p in progress.items()
    )
    left = waiting + sum(1 - p for p in progress.values())
    elapsed = now - self._start
    eta = timing.hms(elapsed / work * left) if work > 0.01 else "unknown"
    each = ", ".join(f"{job.name} {p:.0%}" for job, p in progress.items())
    text = (
      f"{self._ended} of {self._total} ended, {self._failed} failed; "
      f"{timing.hms(elapsed)} gone, ETA {eta}; {each}"
    )
    if self._terminal:
      cut = text[: shutil.get_terminal_size().columns - 1]
      print(f"\r\x1b[K{cut}", end="", flush=True)
    elif running:
      print(text, flush=True)
