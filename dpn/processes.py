"""Compares what the processes of a run know, before their programs diverge.

Collectives hang or abort where programs differ, so everything that decides
which program a process runs goes through `agree` first.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from dpn import trees

_MOST = 20  # differences in a message


def agree(facts: Callable[[], Mapping[str, Any]]):
  """Compares what all processes know, as JSON; does nothing with only one.

  All processes must make the same calls, in the same order.

  Raises:
    ValueError: on every process, if facts differ; the message names them.
  """
  if jax.process_count() == 1:
    return
  first, *others = map(json.loads, _gather(json.dumps(facts())))
  found: dict[str, str] = {}
  for i, theirs in enumerate(others, 1):
    for name, here, there in trees.differences(first, theirs):
      found.setdefault(name, f"{here!r} in process 0")
      found[name] += f", {there!r} in process {i}"
  if found:
    lines = [f"  {k.replace('/', '.')}: {v}" for k, v in sorted(found.items())]
    more = [f"  and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    raise ValueError(
      "The processes of this run are not alike:\n"
      + "\n".join(lines[:_MOST] + more)
      + "\nStart all of them with the same command, code and data."
    )


def _gather(text: str) -> list[str]:
  """Returns the text of each process."""
  data = np.frombuffer(text.encode(), np.uint8)
  sizes = multihost_utils.process_allgather(np.int32(data.size))
  padded = np.pad(data, (0, max(sizes) - data.size))
  rows = multihost_utils.process_allgather(padded)
  pairs = zip(rows, sizes, strict=True)
  return [row[:size].tobytes().decode() for row, size in pairs]
