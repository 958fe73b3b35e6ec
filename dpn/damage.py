"""Damaged files are kept, under another name, for whoever wants to look."""

import itertools
import pathlib


def free_name(path: pathlib.Path) -> pathlib.Path:
  """Returns `<path>.damaged`, or the next such name that is free."""
  for number in itertools.count(1):
    suffix = ".damaged" if number == 1 else f".damaged-{number}"
    aside = path.with_name(path.name + suffix)
    if not aside.exists():
      return aside


def found(folder: pathlib.Path) -> list[str]:
  """Returns what was set aside in a folder and in those within it."""
  pattern = "*.damaged*"
  paths = {*folder.glob(pattern), *folder.glob(f"*/{pattern}")}
  return sorted(path.relative_to(folder).as_posix() for path in paths)
