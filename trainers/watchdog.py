"""Ends all processes of a run, with the reason, when one of them ends or hangs.

Each process beats in the key-value store of JAX's coordination service.
Process 0, which runs that service, listens to all, and all listen to it. One
that fails says why, and the others end at once. JAX alone would call abort(),
and say neither what happened nor what to do.
"""

import atexit
import collections
import contextlib
import ctypes
import itertools
import os
import signal
import socket
import sys
import threading
import time

import jax
from jax._src import distributed

from dpn import processes

BEAT_SECS = 1
SILENT_BEATS = 25  # after which a process counts as dead
_TELL_SECS = 2  # for the others to hear, before process 0 takes the store along
_ENDED = "ended"
_FOREVER_MSECS = 10**9
RESUME = (
  "The same command, for all processes, resumes from the last checkpoint."
)
LOST = (
  "process 0, which coordinates this run, was killed or cannot be reached. "
  f"{RESUME}"
)
SILENT = (
  "process {} of this run has been silent for {} s: it was killed or stopped, "
  f"or its machine is gone. {RESUME}"
)
LIMITS = (
  "memory, address space (ulimit -v) or threads (ulimit -u) do not suffice. "
  "The same command, with more, resumes from the last checkpoint."
)
ABORTED = (
  f"a library aborted this process; what is above may say why. Often {LIMITS}"
)
_leaving = threading.Lock()


def leave(message: str, status: int = 1):
  """Ends this process at once, with a message, and the others with it.

  An orderly exit would wait for them.
  """
  _leaving.acquire()  # only the first says why; other threads end here
  if store := processes.store():
    who = f"process {processes.index()} ({socket.gethostname()})"
    told = f"{who} ended this run:\n{message}"
    # In a thread, because process 0 may not answer.
    tell = threading.Thread(target=_tell, args=[told], daemon=True)
    tell.start()
    tell.join(_TELL_SECS)
  with contextlib.suppress(OSError, ValueError):  # nobody may be listening
    sys.stdout.flush()
    os.write(2, f"Error: {message}\n".encode(errors="backslashreplace"))
  if store and processes.index() == 0:
    time.sleep(_TELL_SECS)
  os._exit(status)


def wait_for_reason(error: BaseException | None):
  """Waits if an error may only follow from what befell another process.

  Within that time the watchdog ends this process, and names the other one.
  """
  if not processes.store():
    return
  while error:
    failed = isinstance(error, jax.errors.JaxRuntimeError)
    if failed or "Gloo" in str(error):  # which JAX raises as ValueError
      time.sleep((SILENT_BEATS + 2) * BEAT_SECS)
      return
    error = error.__cause__ or error.__context__


def _tell(reason):
  with contextlib.suppress(jax.errors.JaxRuntimeError):
    processes.store().key_value_set(f"{_ENDED}/reason", reason)


@ctypes.CFUNCTYPE(None, ctypes.c_int)
def _on_abort(unused_signal):
  leave(LOST if _is_lost() else ABORTED)


def _is_lost() -> bool:
  """Returns whether this is another process than 0, which is gone."""
  if not processes.store() or processes.index() == 0:
    return False
  host, port = distributed.global_state.coordinator_address.rsplit(":", 1)
  try:
    socket.create_connection((host.strip("[]"), port), timeout=2).close()
  except OSError:
    return True
  return False


# Made now, as later there may be no memory for it.
_NO_MEMORY = f"Error: {LIMITS}\n".encode()


def _on_unraisable(unraisable):
  if issubclass(unraisable.exc_type, MemoryError):
    os.write(2, _NO_MEMORY)
    os._exit(1)
  sys.__unraisablehook__(unraisable)


def explain_ends():
  """Lets abort(), which libraries call, end this process with a message.

  Likewise a thread that dies for lack of memory before it has started: Python
  would wait for it for ever.
  """
  sys.unraisablehook = _on_unraisable
  # Python's own handlers would run too late: abort() does not return. Nor could
  # they run any more once the interpreter exits.
  set_handler = ctypes.CDLL(None).signal
  set_handler(signal.SIGABRT, _on_abort)
  atexit.register(set_handler, signal.SIGABRT, None)


class Watchdog:
  """Watches the other processes of this run until all of them exit."""

  def __init__(self):
    first, others = [0], range(1, processes.count())
    watched = first if processes.index() else others
    self._heard = {f"{_group(i)}/{i}": "" for i in watched}
    self._stop = threading.Event()
    self._threads = [
      threading.Thread(target=run, daemon=True)
      for run in (self._beat, self._check)
    ]
    for thread in self._threads:
      thread.start()
    atexit.register(self._end)  # before JAX's, which waits for the others

  def _beat(self):
    """Says regularly that this process is alive, and hears the others."""
    place = f"{_group(processes.index())}/{processes.index()}"
    others = _group(not processes.index())
    store = processes.store()
    for beat in itertools.count(1):
      try:
        store.key_value_set(place, str(beat), allow_overwrite=True)
        self._heard |= dict(store.key_value_dir_get(others))
        reasons = store.key_value_dir_get(_ENDED)
      except jax.errors.JaxRuntimeError:
        leave(LOST)
      if reasons:
        leave(reasons[0][1])
      if self._stop.wait(BEAT_SECS):
        return

  def _check(self):
    """Ends this process when another one has not been heard for long.

    Counted in rounds, so that it is no silence of the others when this process,
    or the whole machine, has been stopped.
    """
    before, silent = {}, collections.Counter()
    while not self._stop.wait(BEAT_SECS):
      for place, beat in self._heard.items():
        silent[place] = silent[place] + 1 if beat == before.get(place) else 0
        if silent[place] == SILENT_BEATS:
          leave(SILENT.format(place.rpartition("/")[2], silent[place]))
      before = dict(self._heard)

  def _end(self):
    """Waits for the end of the others, watching, and ends the threads.

    Python must not find them in C++ when it exits: that would abort.
    """
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      processes.store().wait_at_barrier("end", _FOREVER_MSECS)
    self._stop.set()
    for thread in self._threads:
      thread.join()


def _group(index):
  """Returns whether others listen to a process, or it to them."""
  return "beats/others" if index else "beats/first"
