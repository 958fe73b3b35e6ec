"""Draws results: curves, gradients by depth, gains, the scale of ln0.

Each function returns a matplotlib Figure for a page or a file. Colours are
Okabe and Ito's, told apart by colour-blind readers too; line styles and
markers tell the arms apart in print.
"""

import functools
import math
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import cycler, figure, ticker

from dpn.scripts.results import aggregate

COLOURS = (
  "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
  "#999999",
)  # fmt: skip
STYLES = cycler(
  color=COLOURS, linestyle=("-", "--", "-.", ":") * 2, marker=list("osD^vPX*")
)
WIDTH_INCHES = 4.6  # of one panel
SIZE_INCHES = (WIDTH_INCHES, 3.2)
_SEVERAL_INCHES = 3.2  # of one of several panels
_COLUMNS = 3
_MULTIPLE_INCHES = 2.3  # of one of many arms
_MULTIPLE_COLUMNS = 4
_BEHIND = {"color": "#aaaaaa", "linestyle": "-", "linewidth": 1.2}
_OWN = {"color": COLOURS[0], "linestyle": "-"}
_LETTERS_PER_INCH = 14  # of a legend
_LABEL_LETTERS = 16  # of a vertical label before it is broken
_TITLE_LETTERS = 30  # of one of several panels
STYLE = {
  "axes.axisbelow": True,
  "axes.grid": True,
  "axes.spines.right": False,
  "axes.spines.top": False,
  "axes.titlesize": 9,
  "font.size": 9,
  "grid.color": "#e6e6e6",
  "legend.frameon": False,
  "lines.linewidth": 1.8,
  "pdf.fonttype": 42,  # text stays text
  "text.parse_math": False,  # names of runs may hold a "$"
}

# Title → legend entry → numbers, (runs, x).
Panels = Mapping[str, Mapping[str, pd.DataFrame]]
Gains = Mapping[str, Mapping[str, "aggregate.Estimate | str"]]  # panel → arm


@matplotlib.rc_context(STYLE)
def lines(
  panels: Panels,
  xlabel: str,
  ylabel: str,
  *,
  log: bool = False,
  depth: bool = False,
  order: Sequence[str] = (),
) -> figure.Figure:
  """Returns lines of arms, a panel for each model.

  A line is the mean over the runs of an arm. The band is its 95% confidence
  interval (Student's t; of the logarithm on a logarithmic axis) from three
  runs on; with fewer, the runs themselves are drawn thin. With more arms than
  colours, each arm gets its own panel, with the first arm in grey behind it.

  Args:
    panels: numbers of each arm, (runs, x).
    xlabel: of the horizontal axes.
    ylabel: of the vertical axes, with the unit.
    log: whether the vertical axis is logarithmic.
    depth: whether x are the patch embedding and the blocks, not steps (arXiv
      2302.01327, Figures 2 and 4).
    order: arms in the order of their styles; by default the panels' order.
  """
  names = [*dict.fromkeys(arm for arms in panels.values() for arm in arms)]
  many = len(names) > len(COLOURS)
  cells = _one_arm(panels, depth) if many else _all_arms(panels, names, order)
  columns = min(len(cells), _MULTIPLE_COLUMNS if many else _COLUMNS)
  rows, size = math.ceil(len(cells) / columns), SIZE_INCHES
  if many:
    size = columns * _MULTIPLE_INCHES, 1.7 * rows + 0.4
  elif len(cells) > 1:
    size = columns * _SEVERAL_INCHES, 2.6 * rows + 0.3
  fig, axes = _grid(len(cells), columns, *size)
  for ax, (_, title, arms) in zip(axes, cells, strict=True):
    for name, (values, style) in arms.items():
      # A line can be seen without markers, a single number cannot.
      plain = {} if depth or values.shape[1] == 1 else {"marker": ""}
      _line(ax, values, log, label=name, **(style | plain))
    ax.set_title(title)
    if log:
      ax.set_yscale("log")
  if many:
    _share_scale(axes, [model for model, *_ in cells])
    fig.supxlabel(xlabel, fontsize=9)
    fig.supylabel(ylabel, fontsize=9)
  else:
    for i, ax in enumerate(axes):
      ax.set(xlabel=xlabel, ylabel="" if i % columns else ylabel)
    _legend(fig, axes)
  for ax in axes:
    _ticks(ax, log, depth, most=6 if many else 12)
  return fig


def _all_arms(panels, names, order):
  """Returns a cell for each model: model, title, numbers and style by arm.

  Each arm keeps its style in all panels, and in all figures if there are enough
  styles for all arms.
  """
  if len({*order, *names}) <= len(COLOURS):
    names = dict.fromkeys([*order, *names])
  styles = dict(zip(names, STYLES, strict=False))
  return [
    (
      model,
      textwrap.fill(model, _TITLE_LETTERS),
      {name: (values, styles[name]) for name, values in arms.items()},
    )
    for model, arms in panels.items()
  ]


def _one_arm(panels, depth):
  """Returns a cell for each arm, the first one's line behind it."""
  cells, marker = [], {"marker": "o"} if depth else {}
  for model, arms in panels.items():
    first = next(iter(arms))
    for arm, values in arms.items():
      shown = {first: (arms[first], _BEHIND)}
      style = _BEHIND if arm == first else _OWN
      shown[arm] = values, style | marker
      cells.append(
        (model, f"{model}\n{arm}" if len(panels) > 1 else arm, shown)
      )
  return cells


def _share_scale(axes, models):
  """Gives all panels of a model one vertical scale."""
  for model in dict.fromkeys(models):
    of = [ax for ax, its in zip(axes, models, strict=True) if its == model]
    low, high = zip(*(ax.get_ylim() for ax in of), strict=True)
    for ax in of:
      ax.set_ylim(min(low), max(high))


def _ticks(ax, log, depth, most):
  """Sets the ticks of steps or blocks, and those of a logarithmic axis."""
  if depth:
    count = len(ax.lines[0].get_xdata())
    shown = [0, *range(1, count, max(1, math.ceil((count - 1) / most)))]
    ax.set_xticks(shown, ["E", *map(str, shown[1:])])
  else:
    ax.xaxis.set_major_locator(ticker.MaxNLocator(4, integer=True))
    ax.xaxis.set_major_formatter("{x:,.0f}")
  if log:
    _log(ax)
  elif depth:
    ax.set_ylim(bottom=0)


@matplotlib.rc_context(STYLE)
def gains(ours: Gains, paper: Gains, label: str) -> figure.Figure:
  """Returns differences as dots with 95% intervals, a panel a model.

  Beside each dot is its number of runs. Two runs are drawn themselves, with
  their mean: they have no interval worth drawing.

  Args:
    ours: all arms in the order they are drawn, from the top; words take the
      place of a dot.
    paper: what is published, drawn as open diamonds; may lack arms.
    label: of the horizontal axis, with the unit.
  """
  names = list(next(iter(ours.values())))
  columns, rows = min(len(ours), _COLUMNS), math.ceil(len(ours) / _COLUMNS)
  labels = max(map(len, names)) / _LETTERS_PER_INCH
  width = max(WIDTH_INCHES, labels + 0.9 + 2.1 * columns)
  height = rows * (0.6 + 0.26 * len(names)) + 0.7
  fig, axes = _grid(len(ours), columns, width, height, sharey=True)
  for ax, (title, arms) in zip(axes, ours.items(), strict=True):
    for row, cell in enumerate(arms.values()):
      _dot(ax, row, cell)
    if printed := paper.get(title):
      values = [getattr(printed.get(n), "mean", math.nan) for n in names]
      ax.plot(
        values, range(len(names)), "D", mfc="none", mec="#000000",
        markersize=6, label="paper",
      )  # fmt: skip
    ax.axvline(0, color="#333333", linewidth=0.8)
    ax.set_title(textwrap.fill(title, _TITLE_LETTERS))
    ax.xaxis.set_major_locator(ticker.MaxNLocator(4))
  low, high = zip(*(ax.get_xlim() for ax in axes), strict=True)
  for ax in axes:  # one scale for all models
    ax.set_xlim(min(low), max(high))
  axes[0].set_yticks(range(len(names)), names)
  axes[0].set_ylim(len(names) - 0.5, -0.5)  # rows that were not run, too
  fig.supxlabel(label, fontsize=9)
  _legend(fig, axes, where="outside upper center")
  return fig


def _dot(ax, row, cell):
  """Draws an estimate with its interval and number of runs, or the word."""
  note = functools.partial(
    ax.annotate, xycoords=ax.get_yaxis_transform(), va="center", fontsize=7,
    textcoords="offset points", color="#777777",
  )  # fmt: skip
  if isinstance(cell, str):
    note(cell, (0, row), (3, 0))
    return
  if cell.has_interval:
    ax.errorbar(
      cell.mean, row, xerr=cell.ci, fmt="o", color=COLOURS[0], markersize=5,
      elinewidth=1.6, label="mean and 95% interval",
    )  # fmt: skip
  else:
    ax.plot(
      cell.mean, row, "o", mfc="white", mec=COLOURS[0], markersize=5,
      label="mean without an interval",
    )  # fmt: skip
  if cell.pair:
    seeds = {"color": COLOURS[0], "markersize": 7, "label": "each of two runs"}
    ax.plot(cell.pair, [row, row], "|", **seeds)
  if cell.n:
    note(f"n={cell.n}", (1, row), (3, 0))


@matplotlib.rc_context(STYLE)
def scale_maps(scales: Mapping[str, np.ndarray]) -> figure.Figure:
  """Returns the scale of ln0 as maps of pixels (arXiv 2302.01327, Figure 3).

  There is a row for each scale and a column for each channel. All share one
  range of colours, in which white is 1, where training began.

  Args:
    scales: title → (rows, cols, channels) of a patch.
  """
  channels = max(scale.shape[-1] for scale in scales.values())
  reach = max(np.abs(s - 1).max() for s in scales.values()) or 1.0
  side = (WIDTH_INCHES - 0.9) / max(channels, 2)
  size = channels * side + 0.9, len(scales) * (side + 0.06) + 0.2
  fig, grid = _grid(len(scales) * channels, channels, *size)
  grid = grid.reshape(-1, channels)
  for axes, (title, scale) in zip(grid, scales.items(), strict=True):
    for ax, values in zip(axes, np.moveaxis(scale, -1, 0), strict=True):
      image = ax.imshow(values, cmap="PuOr_r", vmin=1 - reach, vmax=1 + reach)
      ax.grid(False)
      ax.spines[:].set_visible(False)
      ax.set(xticks=[], yticks=[])
    axes[0].set_ylabel("\n".join(textwrap.wrap(title, _LABEL_LETTERS)))
  if channels == 3:
    for ax, name in zip(grid[0], ("red", "green", "blue"), strict=True):
      ax.set_title(name)
  fig.colorbar(image, ax=grid, shrink=0.8, label="scale of ln0")
  return fig


def _grid(count, columns, width_inches, height_inches, **options):
  """Returns a figure and its axes, `count` of them in rows of `columns`."""
  fig = figure.Figure((width_inches, height_inches), layout="constrained")
  axes = fig.subplots(
    math.ceil(count / columns), columns, squeeze=False, **options
  ).ravel()
  for ax in axes[count:]:
    ax.remove()
  return fig, axes[:count]


def _line(ax, values, log, **style):
  """Draws the mean of the rows of a frame (runs, x), with its band."""
  x, values = values.columns, values.to_numpy()
  transformed = np.log(np.maximum(values, 1e-30)) if log else values
  back = np.exp if log else np.asarray
  mean, color = transformed.mean(0), style["color"]
  if len(values) >= 3:
    ci = aggregate.half_width(transformed)
    band = back(mean - ci), back(mean + ci)
    ax.fill_between(x, *band, color=color, alpha=0.2, linewidth=0)
  elif len(values) == 2:
    thin = {"linewidth": 0.6, "alpha": 0.6, "color": color}
    ax.plot(x, values.T, style["linestyle"], **thin)
  ax.plot(x, back(mean), markersize=4, **style)


def _log(ax):
  """Makes the vertical axis logarithmic, with enough ticks."""
  ax.set_yscale("log")
  ax.yaxis.set_major_formatter("{x:g}")
  low, high = ax.get_ylim()
  if high < 100 * low:  # less than two decades: name more ticks
    ax.yaxis.set_minor_locator(ticker.LogLocator(subs=(2, 5)))
    ax.yaxis.set_minor_formatter("{x:g}")
  else:
    ax.yaxis.set_minor_formatter(ticker.NullFormatter())


def _legend(fig, axes, where="outside lower center"):
  """Adds one legend for all panels: inside a single one if there is room."""
  entries = {}
  for ax in axes:
    entries |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
  if len(axes) == 1 and len(entries) <= 4 and "lower" in where:
    axes[0].legend()
  else:
    letters = 6 + max(map(len, entries))
    columns = int(fig.get_figwidth() * _LETTERS_PER_INCH / letters)
    columns = min(max(columns, 1), 4)
    fig.legend(entries.values(), entries.keys(), loc=where, ncols=columns)
