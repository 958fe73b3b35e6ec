"""Breaks captions into lines that fit into a picture."""

import functools

from matplotlib import font_manager, ft2font

_POINTS = 72  # per inch


def wrap(text: str, inches: float, fontsize: float, most: int) -> str:
  """Returns text in lines of at most that width; "…" ends what was cut off.

  Words that are too long are broken. White space counts as one space, and
  characters that DejaVu Sans lacks become U+FFFD. Draw the result
  with `parse_math=False`: a dollar sign is a dollar sign.

  Args:
    text: as long as it may be.
    inches: width of the lines.
    fontsize: in points.
    most: how many lines at most.
  """
  width = inches * _POINTS / fontsize  # in units of the font's size
  known = lambda c: c if ord(c) in _characters() else "\ufffd"
  lines, rest = [], "".join(map(known, " ".join(text.split())))
  while rest and len(lines) < most:
    fits = _fitting(rest, width)
    if fits < len(rest) and len(lines) == most - 1:
      line, rest = rest[: _fitting(rest, width - _length("…"))] + "…", ""
    else:
      space = rest.rfind(" ", 0, fits + 1) if fits < len(rest) else -1
      end = space if space > 0 else fits
      line, rest = rest[:end], rest[end:].lstrip()
    lines.append(line)
  return "\n".join(lines)


def _fitting(text, width):
  """Returns how many characters fit; at least one."""
  for count in range(1, len(text) + 1):
    if _length(text[:count]) > width:
      return max(count - 1, 1)
  return len(text)


def _length(text):
  return sum(map(_advance, text))


@functools.cache
def _advance(character: str) -> float:
  """Returns a character's width relative to the size of the font."""
  glyph = _font().load_char(ord(character), ft2font.LoadFlags.NO_SCALE)
  return glyph.horiAdvance / _font().units_per_EM


@functools.cache
def _characters() -> set[int]:
  return set(_font().get_charmap())


@functools.cache
def _font():
  return ft2font.FT2Font(font_manager.findfont("DejaVu Sans"))
