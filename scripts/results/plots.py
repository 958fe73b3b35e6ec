"""Draws results: curves, gradients by depth, gains, the scale of ln0.

Each function returns a matplotlib Figure for a page or a file. Colours are
Okabe and Ito's, told apart by colour-blind readers too; line styles and
markers tell the arms apart in print.
"""

import itertools
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
)  # fmt: skip
STYLES = cycler(
  color=COLOURS,
  linestyle=("-", "--", "-.", ":", "-", "--", "-."),
  marker=list("osD^vPX"),
)
WIDTH_INCHES = 4.6  # of one panel
_SEVERAL_INCHES = 3.2  # of one of several panels
_COLUMNS = 3
_LABEL_LETTERS = 16  # of a vertical label before it is broken
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
  panels: Panels, metric: str, label: str, *, scale: float = 1.0, log=False
) -> figure.Figure:
  """Returns a metric against the step, a panel for each model.

  A line is the mean over the runs of an arm. The band is its 95% confidence
  interval (Student's t; of the logarithm on a logarithmic axis) from three
  runs on; below, the runs themselves are drawn thin.

  Args:
    panels: runs of each arm.
    metric: key in metrics.jsonl.
    label: of the vertical axis, with the unit.
    scale: factor of the values, 100 for percent.
    log: whether the vertical axis is logarithmic.
  """
  read = lambda repetitions: scale * _stack(repetitions, metric)
  fig, axes = _lines(panels, read, "training step", label, log=log)
  for ax in axes:
    ax.xaxis.set_major_locator(ticker.MaxNLocator(4, integer=True))
    ax.xaxis.set_major_formatter("{x:,.0f}")
  return fig


@matplotlib.rc_context(STYLE)
def gradient_depth(
  panels: Panels, family: str, label: str, *, log: bool = True
) -> figure.Figure:
  """Returns gradient norms against depth (arXiv 2302.01327, Figures 2 and 4).

  Lines and bands as in `curves`.

  Args:
    panels: runs of each arm, trained with `config.log_grad_depth`.
    family: of the metrics, "grad_norm_mean": what the last row has of them.
    label: of the vertical axis.
    log: whether it is logarithmic; the paper's is not.
  """
  read = lambda repetitions: norms_by_depth(repetitions, family)
  depth = "patch embedding (E) and blocks"
  fig, axes = _lines(panels, read, depth, label, log=log, markers=True)
  for ax in axes:
    depth = len(ax.lines[0].get_xdata())
    shown = [0, *range(1, depth, max(1, math.ceil((depth - 1) / 12)))]
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
  width = max(WIDTH_INCHES, 1.5 + 2.1 * len(ours))
  fig = _figure(width, 1.2 + 0.24 * len(names))
  axes = fig.subplots(1, len(ours), sharey=True, squeeze=False)[0]
  for ax, (title, arms) in zip(axes, ours.items(), strict=True):
    _bars(ax, arms.values(), [COLOURS[name == highlight] for name in names])
    if printed := paper.get(title):
      values = [getattr(printed.get(n), "mean", math.nan) for n in names]
      ax.plot(
        values, range(len(names)), "D", mfc="white", mec="#000000",
        markersize=4.5, label="paper",
      )  # fmt: skip
    ax.axvline(0, color="#333333", linewidth=0.8)
    ax.set_title(title)
    ax.grid(axis="y", visible=False)
    ax.xaxis.set_major_locator(ticker.MaxNLocator(4))
  axes[0].set_yticks(range(len(names)), names)
  axes[0].set_ylim(len(names) - 0.5, -0.5)  # rows that were not run, too
  fig.supxlabel(label, fontsize=9)
  _legend(fig, axes, where="outside upper center")
  return fig


def _bars(ax, cells, colours):
  """Draws estimates as bars with intervals; of the others says the word."""
  rows = np.arange(len(cells))
  means = np.array([getattr(cell, "mean", math.nan) for cell in cells])
  ax.barh(rows, means, 0.66, color=colours, alpha=0.8, label="ours")
  errors = np.array([getattr(cell, "ci", math.nan) for cell in cells])
  some = errors > 0
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


def _lines(panels, read, xlabel, ylabel, *, log=False, markers=False):
  """Draws a line for each arm of each panel, in rows of three panels.

  `read` takes repetitions and returns a frame of (runs, x). Returns the figure
  and its axes.
  """
  count = len(panels)
  columns, rows = min(count, _COLUMNS), math.ceil(count / _COLUMNS)
  size = (columns * _SEVERAL_INCHES, 2.6 * rows + 0.3)
  fig = _figure(*size if count > 1 else (WIDTH_INCHES, 3.2))
  axes = fig.subplots(rows, columns, squeeze=False).ravel()
  for ax in axes[count:]:
    ax.remove()
  axes = axes[:count]
  # Each arm keeps its style in all panels.
  order = dict.fromkeys(arm for arms in panels.values() for arm in arms)
  styles = dict(zip(order, itertools.cycle(STYLES), strict=False))
  for ax, (title, arms) in zip(axes, panels.items(), strict=True):
    for name, repetitions in arms.items():
      values, style = read(repetitions), dict(styles[name])
      if not markers and values.shape[1] > 1:  # a line shows without
        style.pop("marker")
      _line(ax, values, log, label=name, **style)
    ax.set(title=title, xlabel=xlabel)
    if log:
      _log(ax)
  for ax in axes[::columns]:
    ax.set_ylabel(ylabel)
  _legend(fig, axes)
  return fig, axes


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
    fig.legend(entries.values(), entries.keys(), loc=where, ncols=4)


def _stack(repetitions, metric):
  """Returns what repeated runs logged, (runs, steps)."""
  series = {run.path: run.series(metric) for run in repetitions}
  values = pd.DataFrame(series).T
  if values.isna().any(axis=None):
    raise ValueError(
      f"{', '.join(series)} logged {metric!r} at different steps. Train those "
      "that differ anew, or move them elsewhere."
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
