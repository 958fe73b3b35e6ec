"""Files that only grow, by whole pieces, also on a full disk."""

import os


def opened(path: str):
  """Opens `path` for appending, unbuffered."""
  return open(path, "ab", buffering=0)


def append(f, piece: bytes):
  """Writes a whole piece through to the disk or, when that fails, nothing."""
  begin = os.fstat(f.fileno()).st_size
  try:
    if f.write(piece) != len(piece):
      raise OSError("no space left for all of it")
    os.fsync(f.fileno())
  except OSError:
    f.truncate(begin)
    raise
