"""The split grammar: `train`, `train[:99%]`, `train[800:1000]`, `a[:9]+b`.

Means what it means in TFDS: percentages are rounded to the closest example
(Python's round: half to even), negative boundaries count from the end, and a
boundary beyond the split is an error. TFDS's `all`, `even_splits` and `shard`
units are not supported.
"""

import dataclasses
import re

_BOUNDARY = r"(?:(-?\d[\d_]*(?:\.\d+)?)(%?))?"
_PART = re.compile(rf"([\w-]+)(\[{_BOUNDARY}:{_BOUNDARY}\])?")


@dataclasses.dataclass(frozen=True)
class Slice:
  """A part of a named split; boundaries are examples, or percent of them."""

  split: str
  start: float | None = None
  stop: float | None = None
  percent: bool = False

  def bounds(self, size: int) -> tuple[int, int]:
    """Returns (start, stop) within a split of `size` examples.

    Raises:
      ValueError: a boundary lies beyond the split, or nothing is selected.
    """
    start = self._absolute(self.start, 0, size)
    stop = self._absolute(self.stop, size, size)
    if start >= stop:
      raise ValueError(
        f"Split {self} selects no example: {self.split!r} has {size}, the "
        f"slice is [{start}:{stop}]. Give it a start before its end."
      )
    return start, stop

  def _absolute(self, boundary, default, size):
    if boundary is None:
      return default
    if self.percent:
      if abs(boundary) > 100:
        raise ValueError(
          f"Split {self}: percentages lie in [-100, 100], got {boundary:g}."
        )
      boundary = round(boundary * size / 100)
    if abs(boundary) > size:
      raise ValueError(
        f"Split {self}: boundary {boundary} is beyond the {size} examples of "
        f"{self.split!r}."
      )
    return boundary + size if boundary < 0 else boundary

  def __str__(self):
    if self.start is None and self.stop is None:
      return repr(self.split)
    unit = "%" if self.percent else ""
    start, stop = (
      "" if b is None else f"{b:g}{unit}" if self.percent else f"{b}"
      for b in (self.start, self.stop)
    )
    return repr(f"{self.split}[{start}:{stop}]")


def parse(spec: str) -> list[Slice]:
  """Returns the slices of `spec`, in order.

  Args:
    spec: one or more `name` or `name[start:stop]`, joined by `+`.

  Raises:
    ValueError: `spec` does not follow the grammar.
  """
  return [_parse_part(part.strip(), spec) for part in spec.split("+")]


def _parse_part(part: str, spec: str) -> Slice:
  match = _PART.fullmatch(part)
  if not match:
    raise _malformed(part, spec)
  name, brackets, *boundaries = match.groups()
  if not brackets:
    return Slice(name)
  values, units = boundaries[::2], set(boundaries[1::2]) - {None}
  percent = units == {"%"}
  try:
    start, stop = (v and (float if percent else int)(v) for v in values)
  except ValueError:  # A fraction of an example.
    raise _malformed(part, spec) from None
  if len(units) != 1:  # None given, or two kinds.
    raise _malformed(part, spec)
  return Slice(name, start, stop, percent)


def _malformed(part: str, spec: str) -> ValueError:
  return ValueError(
    f"Cannot read {part!r} in split {spec!r}. Expected a name, or a name and "
    "a slice in examples or in percent: train, train[:99%], train[800:1000], "
    "train[-5%:], train[:800]+validation[:200]."
  )
