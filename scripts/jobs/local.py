"""Runs commands on this machine, several at a time, with a progress bar."""

import concurrent.futures
import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence

import tqdm

NOT_RUN = "not run"
STOPPED = "stopped; run the same command to resume"
_TAIL_BYTES = 4096


@dataclasses.dataclass(frozen=True)
class Job:
  """A command to run.

  Attributes:
    name: unique among the jobs.
    command: the program and its arguments.
    log: file to which its output is appended.
    done: file that exists once its work is done.
  """

  name: str
  command: tuple[str, ...]
  log: str
  done: str


def run(
  jobs: Sequence[Job], workers: int, *, keep_open: int | None = None
) -> dict[str, str]:
  """Runs jobs and returns how each ended: "done in …", "failed: …", ….

  Ctrl-C or SIGTERM sends SIGTERM to the running jobs, so that they save, and
  waits for them; a second Ctrl-C kills them.

  Args:
    jobs: in the order in which they start.
    workers: how many run at a time.
    keep_open: a file descriptor that the commands inherit.
  """
  running, lock, stopping = set(), threading.Lock(), threading.Event()

  def run_one(job):
    with lock:
      if stopping.is_set():
        return NOT_RUN
      process = _start(job, keep_open)
      running.add(process)
    begin = time.monotonic()
    tqdm.tqdm.write(f"{job.name} runs; its output: {job.log}")
    code = process.wait()
    running.discard(process)
    return _outcome(job, code, time.monotonic() - begin)

  with (
    _sigterm_interrupts(),
    concurrent.futures.ThreadPoolExecutor(workers) as pool,
    tqdm.tqdm(total=len(jobs), unit="run", disable=None) as bar,
  ):
    futures = {pool.submit(run_one, job): job.name for job in jobs}
    try:
      for future in concurrent.futures.as_completed(futures):
        tqdm.tqdm.write(f"{futures[future]} {future.result()}")
        bar.update()
    except BaseException as e:
      with lock:
        stopping.set()
      tqdm.tqdm.write("Stopping: runs save first; Ctrl-C again kills them.")
      _stop(running, futures)
      if not isinstance(e, KeyboardInterrupt):
        raise
  return {name: future.result() for future, name in futures.items()}


@contextlib.contextmanager
def _sigterm_interrupts():
  """Lets SIGTERM do what Ctrl-C does."""
  before = signal.signal(signal.SIGTERM, signal.default_int_handler)
  try:
    yield
  finally:
    signal.signal(signal.SIGTERM, before)


def _start(job, keep_open):
  os.makedirs(os.path.dirname(job.log), exist_ok=True)
  with open(job.log, "ab") as log:
    return subprocess.Popen(
      job.command,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      # A group of its own: the terminal's Ctrl-C would kill it unsaved.
      start_new_session=True,
      pass_fds=() if keep_open is None else (keep_open,),
    )


def _stop(running, futures):
  try:
    for process in list(running):
      process.terminate()
    concurrent.futures.wait(futures)
  except KeyboardInterrupt:
    for process in list(running):
      with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _outcome(job, code, secs):
  if os.path.exists(job.done):
    return f"done in {tqdm.tqdm.format_interval(secs)}"
  if code in (0, -signal.SIGTERM):
    return STOPPED
  lines = [line for line in _tail(job.log).splitlines() if line.strip()]
  errors = [line for line in lines if line.startswith("Error: ")]
  reason = (errors or lines or [f"exit status {code}"])[-1]
  return f"failed: {reason.removeprefix('Error: ')} ({job.log})"


def _tail(path):
  with open(path, "rb") as f:
    f.seek(max(0, f.seek(0, os.SEEK_END) - _TAIL_BYTES))
    return f.read().decode(errors="replace")
