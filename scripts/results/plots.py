"""Draws results: curves, gradients by depth, gains, the scale of ln0.

Each function returns a matplotlib Figure for a page or a file. Colours are
Okabe and Ito's, told apart by colour-blind readers too; line styles and
markers tell the arms apart in print.
"""

import math
import re
import textwrap
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib import cycler, figure, ticker

from dpn.scripts.results import aggregate, runs

COLOURS = (
  "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
  "#999999",
)  # fmt: skip
STYLES = cycler(
  color=COLOURS,
  linestyle=("-", "--", "-.", ":") * 2,
  marker=list("osD^vPX*"),
)
WIDTH_INCHES = 4.6  # of one panel
SIZE_INCHES = (WIDTH_INCHES, 3.2)
_SEVERAL_INCHES = 3.2  # of one of several panels
_COLUMNS = 3
_MULTIPLE_INCHES = 2.3  # of one of many arms
_MULTIPLE_COLUMNS = 4
_BEHIND = {"color": "#aaaaaa", "linestyle": "-", "linewidth": 1.2}
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

Arms = Mapping[str, Sequence[runs.Run]]  # legend entry → repetitions
Panels = Mapping[str, Arms]  # title → arms
Gains = Mapping[str, Mapping[str, aggregate.Estimate | str]]  # panel → arm


@matplotlib.rc_context(STYLE)
def curves(
  panels: Panels,
  metric: str,
  label: str,
  *,
  scale: float = 1.0,
  log: bool = False,
  order: Sequence[str] = (),
) -> figure.Figure:
  """Returns a metric against the step, a panel for each model.

  A line is the mean over the runs of an arm. The band is its 95% confidence
  interval (Student's t; of the logarithm on a logarithmic axis) from three
  runs on; below, the runs themselves are drawn thin. More arms than there are
  colours get a panel each, with the first arm in grey behind it.

  Args:
    panels: runs of each arm.
    metric: key in metrics.jsonl.
    label: of the vertical axis, with the unit.
    scale: factor of the values, 100 for percent.
    log: whether the vertical axis is logarithmic.
    order: arms in the order of their styles; that of the panels without it.
  """
  read = lambda repetitions: scale * _stack(repetitions, metric)
  draw = _draw(panels)
  fig, axes = draw(panels, read, "training step", label, log=log, order=order)
  for ax in axes:
    ax.xaxis.set_major_locator(ticker.MaxNLocator(4, integer=True))
    ax.xaxis.set_major_formatter("{x:,.0f}")
  return fig


@matplotlib.rc_context(STYLE)
def gradient_depth(
  panels: Panels,
  family: str,
  label: str,
  *,
  log: bool = True,
  order: Sequence[str] = (),
) -> figure.Figure:
  """Returns gradient norms against depth (arXiv 2302.01327, Figures 2 and 4).

  Lines and bands as in `curves`.

  Args:
    panels: runs of each arm, trained with `config.log_grad_depth`.
    family: of the metrics, "grad_norm_mean": what the last row has of them.
    label: of the vertical axis.
    log: whether it is logarithmic; the paper's is not.
    order: as in `curves`.
  """
  read = lambda repetitions: norms_by_depth(repetitions, family)
  depth = "patch embedding (E) and blocks"
  draw, most = _draw(panels), 12 if _draw(panels) is _lines else 6
  fig, axes = draw(
    panels, read, depth, label, log=log, markers=True, order=order
  )
  for ax in axes:
    depth = len(ax.lines[0].get_xdata())
    shown = [0, *range(1, depth, max(1, math.ceil((depth - 1) / most)))]
    ax.set_xticks(shown, ["E", *map(str, shown[1:])])
    if not log:
      ax.set_ylim(bottom=0)
  return fig


@matplotlib.rc_context(STYLE)
def gains(
  ours: Gains, paper: Gains, label: str, highlight: str
) -> figure.Figure:
  """Returns bars of differences with their 95% intervals, a panel a model.

  Args:
    ours: all arms in the order they are drawn, from above, or words in place
      of a bar.
    paper: what is published, drawn as open diamonds; may lack arms.
    label: of the horizontal axis, with the unit.
    highlight: the arm that is drawn in another colour.
  """
  names = list(next(iter(ours.values())))
  columns, rows = min(len(ours), _COLUMNS), math.ceil(len(ours) / _COLUMNS)
  width = max(WIDTH_INCHES, 1.5 + 2.1 * columns)
  height = max(SIZE_INCHES[1], rows * (0.9 + 0.24 * len(names)) + 0.3)
  fig, axes = _grid(len(ours), columns, width, height, sharey=True)
  for ax, (title, arms) in zip(axes, ours.items(), strict=True):
    _bars(ax, arms.values(), [COLOURS[name == highlight] for name in names])
    if printed := paper.get(title):
      values = [getattr(printed.get(n), "mean", math.nan) for n in names]
      ax.plot(
        values, range(len(names)), "D", mfc="white", mec="#000000",
        markersize=4.5, label="paper",
      )  # fmt: skip
    ax.axvline(0, color="#333333", linewidth=0.8)
    ax.set_title(textwrap.fill(title, _TITLE_LETTERS))
    ax.grid(axis="y", visible=False)
    ax.xaxis.set_major_locator(ticker.MaxNLocator(4))
  low, high = zip(*(ax.get_xlim() for ax in axes), strict=True)
  for ax in axes:  # one scale for all models
    ax.set_xlim(min(low), max(high))
  axes[0].set_yticks(range(len(names)), names)
  axes[0].set_ylim(len(names) - 0.5, -0.5)  # rows that were not run, too
  fig.supxlabel(label, fontsize=9)
  _legend(fig, axes, where="outside upper center")
  return fig


def _bars(ax, cells, colours):
  """Draws estimates as bars with intervals; of the others says the word.

  Of two runs both numbers are drawn instead, as tables show them.
  """
  rows = np.arange(len(cells))
  means = np.array([getattr(cell, "mean", math.nan) for cell in cells])
  ax.barh(rows, means, 0.66, color=colours, alpha=0.8, label="mean")
  errors = np.array([getattr(cell, "ci", math.nan) for cell in cells])
  some = (errors > 0) & [not getattr(c, "pair", ()) for c in cells]
  pairs = [(x, y) for y, c in enumerate(cells) for x in getattr(c, "pair", ())]
  if pairs:
    ax.plot(
      *zip(*pairs, strict=True), "o", color="#333333", markersize=3,
      label="each of two seeds",
    )  # fmt: skip
  if some.any():
    ax.errorbar(
      means[some], rows[some], xerr=errors[some], fmt="none", ecolor="#333333",
      elinewidth=1, capsize=2, label="95% interval",
    )  # fmt: skip
  for row, cell in enumerate(cells):
    if isinstance(cell, str):
      ax.annotate(
        cell, (0, row), (3, 0), xycoords=ax.get_yaxis_transform(),
        textcoords="offset points", va="center", fontsize=7, color="#777777",
      )  # fmt: skip


@matplotlib.rc_context(STYLE)
def scale_maps(scales: Mapping[str, np.ndarray]) -> figure.Figure:
  """Returns the scale of ln0 as maps of pixels (arXiv 2302.01327, Figure 3).

  A row for each scale, a column for each channel; one range of colours, white
  being 1, where training began.

  Args:
    scales: title → (rows, cols, channels) of a patch.
  """
  channels = max(scale.shape[-1] for scale in scales.values())
  reach = max(np.abs(s - 1).max() for s in scales.values()) or 1.0
  side = (WIDTH_INCHES - 0.9) / max(channels, 2)
  fig = _figure(channels * side + 0.9, len(scales) * (side + 0.06) + 0.2)
  grid = fig.subplots(len(scales), channels, squeeze=False)
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


def _figure(width_inches, height_inches):
  return figure.Figure((width_inches, height_inches), layout="constrained")


def _draw(panels):
  """Returns what draws panels: `_lines` as far as its colours go."""
  return _lines if len(_names(panels)) <= len(COLOURS) else _multiples


def _names(panels):
  return [*dict.fromkeys(arm for arms in panels.values() for arm in arms)]


def _lines(panels, read, xlabel, ylabel, *, order, log, markers=False):
  """Draws a line for each arm of each panel, in rows of three panels.

  `read` takes repetitions and returns a frame of (runs, x). Returns the figure
  and its axes.
  """
  count = len(panels)
  columns, rows = min(count, _COLUMNS), math.ceil(count / _COLUMNS)
  size = (columns * _SEVERAL_INCHES, 2.6 * rows + 0.3)
  fig, axes = _grid(count, columns, *(size if count > 1 else SIZE_INCHES))
  # Each arm keeps its style in all panels, and in all figures if there is one
  # for everyone.
  names = _names(panels)
  if len({*order, *names}) <= len(COLOURS):
    names = dict.fromkeys([*order, *names])
  styles = dict(zip(names, STYLES, strict=False))
  for ax, (title, arms) in zip(axes, panels.items(), strict=True):
    for name, repetitions in arms.items():
      values, style = read(repetitions), dict(styles[name])
      if not markers and values.shape[1] > 1:  # a line shows without
        style.pop("marker")
      _line(ax, values, log, label=name, **style)
    ax.set(title=textwrap.fill(title, _TITLE_LETTERS), xlabel=xlabel)
    if log:
      _log(ax)
  for ax in axes[::columns]:
    ax.set_ylabel(ylabel)
  _legend(fig, axes)
  return fig, axes


def _multiples(panels, read, xlabel, ylabel, *, order, log, markers=False):
  """Draws a small panel for each arm, the first one's line behind it.

  As `_lines`; `order` is that of the panels.
  """
  cells = [(title, arm) for title, arms in panels.items() for arm in arms]
  columns, rows = _MULTIPLE_COLUMNS, math.ceil(len(cells) / _MULTIPLE_COLUMNS)
  size = (columns * _MULTIPLE_INCHES, 1.7 * rows + 0.4)
  fig, axes = _grid(len(cells), columns, *size)
  of_panel = {}
  for ax, (title, arm) in zip(axes, cells, strict=True):
    first = next(iter(panels[title]))
    marker = {"marker": "o"} if markers else {}
    if arm != first:
      _line(ax, read(panels[title][first]), log, label=first, **_BEHIND)
    own = _BEHIND if arm == first else {"color": COLOURS[0]}
    _line(ax, read(panels[title][arm]), log, label=arm, **own | marker)
    ax.set_title(f"{title}\n{arm}" if len(panels) > 1 else arm)
    of_panel.setdefault(title, []).append(ax)
    if log:
      ax.set_yscale("log")
  for together in of_panel.values():  # one scale for all arms of a model
    low, high = zip(*(ax.get_ylim() for ax in together), strict=True)
    for ax in together:
      ax.set_ylim(min(low), max(high))
      if log:
        _log(ax)
  fig.supxlabel(xlabel, fontsize=9)
  fig.supylabel(ylabel, fontsize=9)
  return fig, axes


def _grid(count, columns, width_inches, height_inches, **options):
  """Returns a figure and its axes, so many in rows of so many."""
  fig = _figure(width_inches, height_inches)
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


def _stack(repetitions, metric):
  """Returns what repeated runs logged, (runs, steps)."""
  # Not by path: runs of two archives may have the same.
  series = [run.series(metric) for run in repetitions]
  values = pd.concat(series, axis=1).T.sort_index(axis=1)
  if values.isna().any(axis=None):
    raise ValueError(
      f"{', '.join(run.path for run in repetitions)} logged {metric!r} at "
      "different steps. Train those that differ anew, or move them elsewhere."
    )
  return values


def norms_by_depth(
  repetitions: Sequence[runs.Run], family: str
) -> pd.DataFrame:
  """Returns the last norms logged (runs, layers), the patch embedding's first.

  `family` is that of the metrics, "grad_norm_mean" for example.
  """
  logged = repetitions[0].logged
  blocks = sorted(k for k in logged if re.fullmatch(rf"{family}/block\d+", k))
  metrics = [f"{family}/embedding", *blocks]
  last = [
    [run.series(metric).iloc[-1] for metric in metrics] for run in repetitions
  ]
  return pd.DataFrame(last, [run.path for run in repetitions])
