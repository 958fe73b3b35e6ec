"""Writes what a command was asked for, or says what is in its way."""

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpn import atomic, errors, registry

if TYPE_CHECKING:  # commands without pictures need not wait for it
  from matplotlib import figure


@contextlib.contextmanager
def ensure_folder(folder: str) -> Iterator[None]:
  """Makes a folder in which the body then writes; OSErrors say where."""
  try:
    os.makedirs(folder or ".", exist_ok=True)
    yield
  except BrokenPipeError:  # of what was printed meanwhile
    raise
  except OSError as e:
    if e.errno is None:  # a message of ours, of something else
      raise
    raise OSError(
      f"Cannot write {e.filename or folder}: {e.strerror or e}. Give another "
      "place, where this user may write."
    ) from e


def write(path: str | None, content: str):
  """Writes text to a file, in a new folder if need be, or to the terminal."""
  if path is None:
    say(content.removesuffix("\n"))
    return
  with ensure_folder(os.path.dirname(path)):
    atomic.write(path, content.encode(errors="backslashreplace"))
  say(f"Wrote {path}.")


def replace_between(path: str, begin: str, end: str, content: str):
  """Writes text between two marks of a file.

  Raises:
    ValueError, OSError: they are not in the file, or it is not there.
  """
  with open(path, encoding="utf-8") as f:
    before, has_begin, rest = f.read().partition(begin)
  _, has_end, after = rest.partition(end)
  if not (has_begin and has_end):
    raise ValueError(
      f"{path} must hold {begin!r} and then {end!r}: what is between them is "
      "replaced."
    )
  write(path, f"{before}{begin}{content}{end}{after}")


def save(fig: "figure.Figure", path: str, **options):
  """Writes a figure in the format of the file's name, see `write`."""
  content, (_, suffix) = io.BytesIO(), os.path.splitext(path)
  fig.savefig(content, format=suffix[1:] or "png", **options)
  with ensure_folder(os.path.dirname(path)):
    atomic.write(path, content.getvalue())
  say(f"Wrote {path}.")


def parser(doc: str | None) -> argparse.ArgumentParser:
  """Returns a command's parser; --help starts with its module's docstring."""
  spec = sys.modules["__main__"].__spec__  # also of dpn.scripts.NAME, or None
  return argparse.ArgumentParser(
    prog=f"python -m {spec.name}" if spec else None,
    description=doc,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )


def add_output(parser: argparse.ArgumentParser):
  """Adds --output of a command that prints without it."""
  help_ = "write to this file instead of the terminal"
  parser.add_argument("-o", "--output", metavar="FILE", help=help_)


def add_trust(parser: argparse.ArgumentParser):
  """Adds --trust to a command that reads checkpoints or runs."""
  help_ = "modules that files may name, and those below: mypkg,other.norms"
  kw = {"type": registry.trust, "metavar": "MODULE", "help": help_}
  parser.add_argument("--trust", **kw)


def positive(text: str) -> int:
  """Returns a number from 1 on, as the type of a command's argument."""
  if not text.isdecimal() or int(text) < 1:
    raise argparse.ArgumentTypeError(f"expected 1 or more, got {text!r}")
  return int(text)


def say(text: str, file=None):
  """Prints text, which may hold names that come from elsewhere."""
  print(errors.printable(text), file=file, flush=True)


@contextlib.contextmanager
def errors_in_a_line() -> Iterator[None]:
  """Ends the process with one line if the body raises an error."""
  try:
    yield
  except BrokenPipeError:  # by `| head`; nor may Python flush into it at exit
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)
  except (ValueError, OSError) as e:
    sys.exit(errors.line(e))
  except Exception as e:  # commands read files, which may hold anything
    place = traceback.extract_tb(e.__traceback__)[-1]
    sys.exit(
      errors.line(
        f"{type(e).__name__}: {e} ({place.filename}:{place.lineno}). A "
        "file that was read is damaged, hostile or larger than the memory; or "
        "this is a bug of the command."
      )
    )
