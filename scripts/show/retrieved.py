"""A picture of queries and of what they retrieve, best first."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import figure

from dpn.scripts.show import wrap

_SIDE, _GAP = 1.0, 0.12  # inches: an image, and the space around it
_COLUMN, _ROW = _SIDE + _GAP, _SIDE + 0.5  # a caption is below it
_BETWEEN = 0.25  # two runs
_HEAD = 0.3  # above the first row
_SIZE = 7  # of the letters, in points
_RIGHT, _WRONG = "#1a7f37", "0.6"


@dataclasses.dataclass(frozen=True)
class Item:
  """A query or what it found: a text, or an image with its caption.

  Attributes:
    text: the caption; of an image with several, the first.
    image: (rows, cols, channels) in [0, 1], or None.
    right: whether it is an answer.
  """

  text: str
  image: np.ndarray | None = None
  right: bool = False


Search = tuple[Item, Sequence[Item]]  # a query and what it found, best first


def draw(
  titles: Sequence[str],
  sections: Mapping[str, Sequence[Sequence[Search]]],
) -> figure.Figure:
  """Returns a row for each query, with the results of all runs beside it.

  What is right has a green frame or a green check mark.

  Args:
    titles: of the runs.
    sections: by heading; of each run its searches, for the same queries.
  """
  every = [run[0] for runs in sections.values() for run in runs if run]
  found = max(len(items) for _, items in every)
  heights = [_HEAD + len(runs[0]) * _ROW for runs in sections.values()]
  width = found * _COLUMN + _BETWEEN  # of a run
  page = _Page(_COLUMN + width * len(titles) - _BETWEEN, sum(heights))
  tops = np.cumsum([0, *heights])
  for top, (heading, runs) in zip(tops, sections.items(), strict=False):
    page.write(0, top, heading, 9, weight="bold")
    for i, (title, searches) in enumerate(zip(titles, runs, strict=True)):
      left = _COLUMN + i * width
      if len(titles) > 1:
        page.write(left, top + 0.13, title, found * _SIDE, style="italic")
      for row, (query, items) in enumerate(searches):
        y = top + _HEAD + row * _ROW
        if not i:
          page.item(0, y, query)
        page.items(left, y, items, found * _COLUMN)
  return page.figure


class _Page:
  """A figure on which things lie so many inches from the left and the top."""

  def __init__(self, width, height):
    self._size = width + _GAP, height + _GAP
    self.figure = figure.Figure(self._size, dpi=120)

  def _at(self, left, top):
    """Returns a place as a share of the figure, from below."""
    width, height = self._size
    return (left + _GAP) / width, 1 - (top + _GAP) / height

  def write(self, left, top, text, width, most=1, **kw):
    """Writes a text in lines of that width."""
    text = wrap.wrap(text, 0.95 * width, _SIZE, most)
    kw = {"fontsize": _SIZE, "va": "top", "parse_math": False, **kw}
    self.figure.text(*self._at(left, top), text, **kw)

  def item(self, left, top, item, colour=None):
    """Draws an image with its caption below; or a text alone."""
    if item.image is None:
      self.write(left, top, item.text, _SIDE, 8)
      return
    width, height = self._size
    place = (*self._at(left, top + _SIDE), _SIDE / width, _SIDE / height)
    ax = self.figure.add_axes(place, xticks=[], yticks=[])
    ax.imshow(item.image, interpolation="nearest")
    ax.spines[:].set(visible=colour is not None, color=colour)
    ax.spines[:].set_linewidth(4 if item.right else 1)
    self.write(left, top + _SIDE + 0.05, item.text, _SIDE, 3)

  def items(self, left, top, items, width):
    """Draws images side by side, or texts one below the other."""
    for i, item in enumerate(items):
      if item.image is not None:
        colour = _RIGHT if item.right else _WRONG
        self.item(left + i * _COLUMN, top, item, colour)
        continue
      y = top + i * _SIDE / len(items)
      colour, mark = (_RIGHT, "✓") if item.right else ("black", str(i + 1))
      self.write(left, y, mark, _SIDE, color=colour)
      self.write(left + 0.15, y, item.text, width - 0.3, color=colour)
