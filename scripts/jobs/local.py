"""Runs the jobs of a sweep on this machine, several at a time."""

import concurrent.futures
import contextlib
import datetime
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from dpn.scripts.jobs import arms as arms_lib

_TAIL_BYTES = 4096
# Each says how much of a GPU's memory a JAX process takes when it starts.
_MEMORY = (
  "XLA_CLIENT_MEM_FRACTION",
  "XLA_PYTHON_CLIENT_MEM_FRACTION",
  "XLA_PYTHON_CLIENT_PREALLOCATE",
)


def run(
  jobs: Sequence[arms_lib.Job], workers: int, *, keep_open: int
) -> dict[str, str]:
  """Runs jobs and returns how each ended: "done in …", "failed: …", ….

  Ctrl-C or SIGTERM sends SIGTERM to the running jobs, so that they save, and
  waits for them; a second Ctrl-C kills them.

  Args:
    jobs: in the order in which they start.
    workers: how many run at a time.
    keep_open: a file descriptor that the runs inherit.
  """
  running, lock, stopping = set(), threading.Lock(), threading.Event()
  env = os.environ | sharing(min(workers, len(jobs)))

  def run_one(job):
    with lock:
      if stopping.is_set():
        return "not run"
      try:
        process, old = _start(job, keep_open, env)
      except OSError as e:
        return f"failed: {e}"
      running.add(process)
    begin = time.monotonic()
    _say(f"{job.name} runs; its output: {job.log}")
    code = process.wait()
    running.discard(process)
    return _outcome(job, code, time.monotonic() - begin, old)

  def stop(futures):
    with lock:
      stopping.set()
    _say("Stopping: runs save first; Ctrl-C again kills them.")
    try:
      for process in list(running):
        process.terminate()
      concurrent.futures.wait(futures)
    except KeyboardInterrupt:
      for process in list(running):
        with contextlib.suppress(ProcessLookupError):
          os.killpg(process.pid, signal.SIGKILL)

  before = signal.signal(signal.SIGTERM, signal.default_int_handler)
  with (
    contextlib.ExitStack() as stack,
    concurrent.futures.ThreadPoolExecutor(workers) as pool,
  ):
    stack.callback(signal.signal, signal.SIGTERM, before)
    futures = {pool.submit(run_one, job): job.name for job in jobs}
    try:
      done = concurrent.futures.as_completed(futures)
      for i, future in enumerate(done, 1):
        _say(f"[{i}/{len(jobs)}] {futures[future]} {future.result()}")
    except BaseException as e:
      stop(futures)
      if not isinstance(e, KeyboardInterrupt):
        raise
  return {name: future.result() for future, name in futures.items()}


def _say(text):
  with contextlib.suppress(OSError):  # Ctrl-C has ended `tee`, too
    print(text, flush=True)


def sharing(workers: int) -> dict[str, str]:
  """Returns the environment variables by which runs share a machine.

  Each gets an equal part of a GPU's memory, as the first run would take three
  quarters, and one thread for LAPACK, as threads of several runs wait for each
  other's cores. What the environment already sets is left alone.
  """
  if workers < 2:
    return {}
  found = {"OPENBLAS_NUM_THREADS": "1"}
  if not any(name in os.environ for name in _MEMORY):
    found[_MEMORY[0]] = f"{0.9 / workers:.3f}"
  return {k: v for k, v in found.items() if k not in os.environ}


def _start(job, keep_open, env):
  os.makedirs(os.path.dirname(job.log), exist_ok=True)
  with open(job.log, "ab") as log:
    old = log.tell()  # before the run writes there, too
    process = subprocess.Popen(
      [sys.executable, *job.command],
      env=env,
      stdin=subprocess.DEVNULL,
      stdout=log,
      stderr=subprocess.STDOUT,
      # A group of its own: the terminal's Ctrl-C would kill it unsaved.
      start_new_session=True,
      pass_fds=(keep_open,),
    )
    return process, old


def _outcome(job, code, secs, old):
  if all(arm.done for arm in job.arms):
    return f"done in {datetime.timedelta(seconds=round(secs))}"
  if code in (0, -signal.SIGTERM):
    return "stopped; run the same command to resume"
  with open(job.log, "rb") as f:
    f.seek(max(old, f.seek(0, os.SEEK_END) - _TAIL_BYTES))
    lines = f.read().decode(errors="replace").split("\n")
  lines = [line for line in lines if line.strip()]
  errors = [line for line in lines if line.startswith("Error: ")]
  killed = [f"ended by signal {-code}"] if code < 0 else []
  reason = (errors or killed or lines or [f"exit status {code}"])[-1]
  return f"failed: {reason.removeprefix('Error: ')} ({job.log})"
