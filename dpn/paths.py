"""Paths made from names that files from elsewhere contain."""

import os
import stat
from typing import BinaryIO

_MOST_BYTES = 2**29  # of files read whole; sparse files can claim terabytes


def join(folder: str, *names: str) -> str:
  """Returns the path within a folder that `names` lead to.

  Raises:
    ValueError: a name is empty or absolute, or leads out of the folder.
  """
  path = os.path.join(folder, *names)
  parts = {part for name in names for part in name.split("/")}
  if {"", ".", ".."} & parts or not all(map(str.isprintable, names)):
    raise ValueError(
      f"{'/'.join(names)!r} leads out of {folder}, or is no name. Expected "
      "names of files and folders in it."
    )
  return path


def check_regular(path: str | os.PathLike) -> str | os.PathLike:
  """Returns a path; ValueError if it is a pipe or device, which might hang."""
  try:
    mode = os.stat(path).st_mode
  except ValueError as e:  # a NUL, or half of a character
    raise ValueError(f"{str(path)!r} is no path: {e}.") from e
  if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
    raise ValueError(
      f"{path} is neither a file nor a folder, but a pipe, a "
      "socket or a device. Remove it."
    )
  return path


def open_regular(path: str | os.PathLike) -> BinaryIO:
  """Opens a file to be read as bytes; see `check_regular`."""
  return open(check_regular(path), "rb")


def read(path: str | os.PathLike) -> bytes:
  """Returns what a file holds; ValueError if it is too large to be an image."""
  with open_regular(path) as file:
    size = os.fstat(file.fileno()).st_size
    if size > _MOST_BYTES:
      raise ValueError(
        f"{path} has {size:,} bytes, expected at most {_MOST_BYTES:,}."
      )
    return file.read()
