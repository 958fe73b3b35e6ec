"""Sheets of images and texts, drawn by scripts.show_* and scripts.predict."""

import dataclasses
import itertools
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import figure, patches

from dpn import errors

_FONTSIZE, _LINE = 7, 0.12  # points, and inches from line to line
_CHARACTER = 0.62 * _FONTSIZE / 72  # inches, of a rather wide one
_MOST_LINES = 8


@dataclasses.dataclass(frozen=True)
class Cell:
  """An image with a text below it, or a text alone.

  Attributes:
    text: of any length; what does not fit is cut off.
    image: (rows, cols, channels) in [0, 1] or None. One channel is grey; of
      more than three the first three are shown.
    colour: of the text and of a frame around the image.
  """

  text: str
  image: np.ndarray | None = None
  colour: str | None = None


def stretched(image: np.ndarray) -> np.ndarray:
  """Returns values stretched linearly to [0, 1]."""
  image = np.asarray(image, np.float32)
  return (image - image.min()) / max(np.ptp(image), 1e-9)


def draw(
  cells: Sequence[Cell],
  cols: int,
  *,
  caption: str = "",
  legend: Sequence[tuple[str, np.ndarray]] = (),
  headings: Mapping[int, str] | None = None,
  side: float = 1.4,
) -> figure.Figure:
  """Returns a figure of cells in rows of `cols`.

  Args:
    cells: row by row.
    cols: how many are in a row.
    caption: in small letters at the bottom.
    legend: names and colours.
    headings: row → what stands above it.
    side: width of a cell in inches.
  """
  rows, headings = -(-len(cells) // cols), headings or {}
  images = [cell.image for cell in cells if cell.image is not None]
  tall = side * max((x.shape[0] / x.shape[1] for x in images), default=1)
  texts = [_wrapped(cell.text, side) for cell in cells]
  lines = 1 + max(
    (text.count("\n") for text, cell in zip(texts, cells, strict=True)
     if cell.image is not None), default=0,
  )  # fmt: skip
  head = 0.3 if headings else 0.0
  below = 0.1 + _LINE * lines + head
  legend_cols = min(cols, len(legend)) or 1
  foot = 0.4 + 0.16 * -(-len(legend) // legend_cols)
  height = (tall + below) * rows + foot + 0.05 + head
  fig = figure.Figure(figsize=(side * cols, height), dpi=120)
  axes = fig.subplots(rows, cols, squeeze=False)
  for ax, cell, text in zip(axes.flat, cells, texts, strict=False):
    _draw_cell(ax, cell, text)
  for ax in axes.flat[len(cells) :]:
    ax.set_axis_off()
  for row, heading in headings.items():
    axes[row, 0].set_title(heading, fontsize=9, weight="bold", loc="left")
  fig.text(0.01, 0.005, caption, fontsize=6, family="monospace", wrap=True)
  fig.legend(
    handles=[patches.Patch(color=c, label=name) for name, c in legend],
    bbox_to_anchor=(0.5, 0.35 / height),
    loc="lower center",
    ncols=legend_cols,
    fontsize=7,
    frameon=False,
  )
  bottom, top = (foot + below - head) / height, 0.99 - head / height
  fig.subplots_adjust(0.01, bottom, 0.99, top, 0.04, below / tall)
  return fig


def _draw_cell(ax, cell, text):
  ax.set(xticks=[], yticks=[])
  framed = cell.image is not None and cell.colour is not None
  ax.spines[:].set(visible=framed, color=cell.colour, linewidth=3)
  if cell.image is not None:
    shown = cell.image[..., :3] if cell.image.shape[-1] >= 3 else cell.image
    shown = shown[..., 0] if shown.shape[-1] < 3 else shown
    ax.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
  y, kw = 1 if cell.image is None else -0.04, {"parse_math": False}
  kw |= {"transform": ax.transAxes, "fontsize": _FONTSIZE}
  kw |= {"ha": "center", "va": "top", "color": cell.colour or "black"}
  ax.text(0.5, y, text, **kw)


def _wrapped(text, inches):
  """Returns text in lines that a cell is wide enough for."""
  kw = {"width": int(0.93 * inches / _CHARACTER), "max_lines": _MOST_LINES}
  parts = errors.printable(text).split("\n")
  lines = [textwrap.wrap(part, placeholder="…", **kw) for part in parts]
  return "\n".join(itertools.chain(*lines))
