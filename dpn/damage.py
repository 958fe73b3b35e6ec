"""Damaged files are kept, under another name, for whoever wants to look."""

import itertools
import pathlib


def set_aside(path: pathlib.Path) -> pathlib.Path:
  """Renames a file or folder to `<path>.damaged`, or the next free name."""
  for number in itertools.count(1):
    suffix = ".damaged" if number == 1 else f".damaged-{number}"
    aside = path.with_name(path.name + suffix)
    if not aside.exists():
      return path.rename(aside)
