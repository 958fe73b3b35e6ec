"""Errors of this library, and messages for unknown names."""

import difflib
import unicodedata
from collections.abc import Iterable
from typing import Any

_SHOWN_CHARS = 80  # of what a file says
_MOST_CHARS = 8000  # of a message


def shown(value: Any) -> str:
  """Returns the start of a value's repr."""
  text = repr(value)
  return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def printable(text: str) -> str:
  """Returns text whose control characters, but for newlines, are escaped.

  In a terminal they could move the cursor or change what has been printed; and
  parts of a file's name that are not UTF-8 cannot be printed.
  """
  return "".join(
    char.encode("unicode_escape").decode()
    if unicodedata.category(char) in ("Cc", "Cf", "Cs") and char != "\n"
    else char
    for char in text
  )


def line(error: Any) -> str:
  """Returns "Error: …" for a terminal, without the middle of a long text."""
  text = f"Error: {error}"
  if len(text) > _MOST_CHARS:
    text = f"{text[: _MOST_CHARS // 2]} … {text[-_MOST_CHARS // 2 :]}"
  return printable(text)


def unknown(kind: str, got: str, known: Iterable[str]) -> str:
  """Returns "Unknown <kind> '<got>'. Did you mean 'x'? Known: x, y, z."."""
  known = sorted(map(str, known))
  start = str(got)[:_SHOWN_CHARS]
  near = difflib.get_close_matches(start, known, n=1, cutoff=0.5)
  hint = f" Did you mean {near[0]!r}?" if near else ""
  listed = ", ".join(known) or "none"
  return f"Unknown {kind} {shown(got)}.{hint} Known: {listed}."


def check_known(kind: str, got: str, known: Iterable[str]):
  """Raises ValueError, see `unknown`, if `got` is not among `known`."""
  if got not in [*known]:  # a list, as `got` may be anything
    raise ValueError(unknown(kind, got, known))


def some_of(names: Iterable[str], most: int = 6) -> str:
  """Returns the first `most` names, and how many more there are."""
  names = [*names]
  more = f" and {len(names) - most} more" if len(names) > most else ""
  return ", ".join(names[:most]) + more


class NonFiniteError(RuntimeError):
  """A measured quantity became NaN or infinite."""


class EvaluatorError(RuntimeError):
  """An evaluator failed; the message names it."""
