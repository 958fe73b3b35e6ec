"""What the processes of a run tell each other outside of their devices.

Collectives hang or abort where programs differ, so this goes through the
key-value store of JAX's coordination service, which process 0 runs.
"""

import itertools
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax._src import distributed

from dpn import trees

_MAX_POLL_SECS = 1.0
_MOST = 20  # differences in a message
_calls = itertools.count(1)


def store():
  """Returns the key-value store, None in a run of one process."""
  return distributed.global_state.client


def index() -> int:
  """Returns which process this is; unlike JAX's, starts no device."""
  return distributed.global_state.process_id


def count() -> int:
  """Returns the number of processes; unlike JAX's, starts no device."""
  return distributed.global_state.num_processes


def agree(facts: Callable[[], Mapping[str, Any]]):
  """Compares what all processes know, as JSON; alone, does nothing.

  All must make the same calls, in the same order.

  Raises:
    ValueError: on every process, if facts differ; the message names them.
  """
  if store() is None:
    return
  call = next(_calls)
  ours = json.loads(json.dumps(facts()))
  if index() == 0:
    found = {}
    for other in range(1, count()):
      theirs = json.loads(_wait_for(f"agree/{call}/{other}"))
      for name, here, there in trees.differences(ours, theirs):
        found.setdefault(name, f"{here!r} in process 0")
        found[name] += f", {there!r} in process {other}"
    # No one waits for the call before any longer.
    store().key_value_delete(f"agree/{call - 1}")
    store().key_value_set(f"agree/{call}/0", _message(found))
  else:
    store().key_value_set(f"agree/{call}/{index()}", json.dumps(ours))
  if message := _wait_for(f"agree/{call}/0"):
    raise ValueError(message)


def _message(found: Mapping[str, str]) -> str:
  """Returns what to say of differences by name, "" if there are none."""
  if not found:
    return ""
  lines = [f"  {k.replace('/', '.')}: {v}" for k, v in sorted(found.items())]
  more = [f"  and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
  return (
    "The processes of this run are not alike:\n"
    + "\n".join(lines[:_MOST] + more)
    + "\nStart all of them with the same command, code and data."
  )


def _wait_for(key: str) -> str:
  """Returns a value of the store as soon as it is there."""
  secs = 0.02
  while True:  # as a blocking call would be deaf to Ctrl-C
    try:
      return store().key_value_try_get(key)
    except jax.errors.JaxRuntimeError as e:
      if "NOT_FOUND" not in str(e):
        raise
    time.sleep(secs)
    secs = min(1.5 * secs, _MAX_POLL_SECS)
