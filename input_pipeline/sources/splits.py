"""The split grammar: `train`, `train[:99%]`, `train[800:1000]`, `a[:9]+b`.

As in TFDS, percentages are rounded to the closest example (Python's round: half
to even), a boundary beyond the split is an error, and negative boundaries count
from the end, even -1% of few examples, rounded to 0, which TFDS takes from the
start. TFDS's `all`, `even_splits` and `shard` units are not supported.

A slice is cut from the stored order, as in TFDS, unless that may be sorted by
class: then it is cut from a random order that is always the same.
"""

import dataclasses
import re

_INTEGER = r"-?\d+(?:_\d+)*"
_EXAMPLES = rf"({_INTEGER})?:({_INTEGER})?"
_PERCENT = rf"({_INTEGER}(?:\.\d+)?%)?:({_INTEGER}(?:\.\d+)?%)?"
_PART = re.compile(rf"([\w-]+)(?:\[(?!:\])(?:{_EXAMPLES}|{_PERCENT})\])?")


@dataclasses.dataclass(frozen=True)
class Slice:
  """A part of a named split; boundaries as written, "800", "99%" or None."""

  split: str
  start: str | None = None
  stop: str | None = None

  def bounds(self, size: int) -> tuple[int, int]:
    """Returns (start, stop) within a split of `size` examples.

    Raises:
      ValueError: a boundary lies beyond the split, or nothing is selected.
    """
    start = self._index(self.start or "0", size)
    stop = self._index(self.stop or "100%", size)
    if start >= stop:
      raise ValueError(
        f"Split {self} selects no example: {self.split!r} has {size}, the "
        f"slice is [{start}:{stop}]. Give it a start before its end."
      )
    return start, stop

  def _index(self, boundary, size):
    if boundary.endswith("%"):
      index = float(boundary[:-1]) * size / 100
    else:
      index = int(boundary)
    if abs(index) > size:
      raise ValueError(
        f"Split {self}: boundary {boundary} is beyond the {size} examples of "
        f"{self.split!r}."
      )
    return round(index) + (size if boundary.startswith("-") else 0)

  def __str__(self):
    if not self.start and not self.stop:
      return repr(self.split)
    return repr(f"{self.split}[{self.start or ''}:{self.stop or ''}]")


def parse(spec: str) -> list[Slice]:
  """Returns the slices of `spec`: `name` or `name[start:stop]`, joined by `+`.

  Raises:
    ValueError: `spec` does not follow the grammar.
  """
  slices = []
  for part in spec.split("+"):
    match = _PART.fullmatch(part.strip())
    if not match:
      raise ValueError(
        f"Cannot read {part!r} in split {spec!r}. Expected a name, or a name "
        "and a slice in examples or in percent: train, train[:99%], "
        "train[800:1000], train[-5%:], train[:800]+validation[:200]."
      )
    split, *examples, start, stop = match.groups()
    slices.append(Slice(split, examples[0] or start, examples[1] or stop))
  return slices
