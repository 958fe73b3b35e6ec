"""Writes what a command was asked for, or says what is in its way."""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def made(folder: str) -> Iterator[None]:
  """Makes a folder, in which the body then writes.

  Raises:
    OSError: that is impossible; says where, and what to give instead.
  """
  try:
    os.makedirs(folder or ".", exist_ok=True)
    yield
  except OSError as e:
    raise OSError(
      f"Cannot write {e.filename or folder}: {e.strerror or e}. Give another "
      "place, where this user may write."
    ) from e


def write(path: str, content: str):
  """Writes text to a file, whose folder is made; raises as `made` does."""
  with made(os.path.dirname(path)), open(path, "w", encoding="utf-8") as f:
    f.write(content)
