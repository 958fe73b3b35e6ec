"""Writes files that are never seen half written, whatever ends the process."""

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any, BinaryIO


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
  """Opens a file that appears, or replaces the old one, once it is complete.

  Raises:
    OSError: it cannot be written.
  """
  partial = f"{path}.partial"
  try:
    with contextlib.suppress(FileNotFoundError):
      os.remove(partial)  # of a process that was killed; or a link elsewhere
    with open(partial, "xb") as f:
      yield f
      f.flush()
      os.fsync(f.fileno())
    os.replace(partial, path)
  except BaseException as e:
    with contextlib.suppress(OSError):
      os.remove(partial)
    if not isinstance(e, OSError):
      raise
    raise type(e)(
      f"Cannot write {path}: {e.strerror or e}. Free some space, or make its "
      "directory writable."
    ) from e


def write(path: str, data: bytes):
  """Writes a whole file, see `replacing`."""
  with replacing(path) as f:
    f.write(data)


def write_json(path: str, value: Any):
  """Writes `value` as indented JSON, see `write`."""
  write(path, (json.dumps(value, indent=2) + "\n").encode())
