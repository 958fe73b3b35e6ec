"""Draws figures from runs: curves, gradients by depth, the scale of ln0.

Each function returns a matplotlib Figure of one column's width (4.6 in), for
a page to arrange. Colours are Okabe and Ito's, told apart by colour-blind
readers too.
"""

import re
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib import figure, ticker

from scripts import runs

COLOURS = (
  "#0072B2",
  "#D55E00",
  "#009E73",
  "#CC79A7",
  "#E69F00",
  "#56B4E9",
  "#000000",
)
WIDTH_INCHES = 4.6
_STYLE = {
  "axes.grid": True,
  "axes.spines.right": False,
  "axes.spines.top": False,
  "font.size": 9,
  "grid.color": "#e6e6e6",
  "legend.frameon": False,
  "lines.linewidth": 1.8,
}

Arms = Mapping[str, Sequence[runs.Run]]  # legend entry → repetitions


@matplotlib.rc_context(_STYLE)
def curves(
  arms: Arms, metric: str, label: str, *, scale: float = 1.0
) -> figure.Figure:
  """Returns a metric against the step: thin for a run, thick for the mean.

  Args:
    arms: runs of each arm.
    metric: key in metrics.jsonl.
    label: of the vertical axis, with the unit.
    scale: factor of the values, 100 for percent.
  """
  fig, ax = _one_panel("training step", label)
  for (name, repetitions), colour in zip(arms.items(), COLOURS, strict=False):
    steps, values = _stack(repetitions, metric)
    values = scale * values
    ax.plot(steps, values.T, color=colour, linewidth=0.6, alpha=0.5)
    ax.plot(steps, values.mean(0), color=colour, label=name)
  ax.legend()
  return fig


@matplotlib.rc_context(_STYLE)
def gradient_depth(arms: Arms, *, last_steps: int) -> figure.Figure:
  """Returns gradient norms against depth (arXiv 2302.01327, Figure 2).

  A point is the mean over the runs of an arm, a band from the least to the
  greatest of them. The vertical axis is logarithmic.

  Args:
    arms: runs of each arm, trained with `config.log_grad_depth`.
    last_steps: a run's norm is the mean of what it logged in these.
  """
  fig, ax = _one_panel("layer", "L2 norm of the gradient")
  ax.set_yscale("log")
  ax.yaxis.set_major_formatter("{x:g}")
  ax.yaxis.set_minor_formatter("{x:g}")
  ax.yaxis.set_minor_locator(ticker.LogLocator(subs=(2, 5)))
  for (name, repetitions), colour in zip(arms.items(), COLOURS, strict=False):
    layers, norms = _norms_by_depth(repetitions, last_steps)
    depths = np.arange(len(layers))
    ax.fill_between(
      depths, norms.min(0), norms.max(0), color=colour, alpha=0.2, linewidth=0
    )
    ax.plot(depths, norms.mean(0), "o-", color=colour, markersize=4, label=name)
  ax.set_xticks(depths, layers)
  ax.legend()
  return fig


@matplotlib.rc_context(_STYLE)
def scale_maps(
  scales: Mapping[str, np.ndarray], patch_size: tuple[int, int]
) -> figure.Figure:
  """Returns the scale of ln0 as maps of pixels (arXiv 2302.01327, Figure 3).

  A row for each channel, a column for each scale; one range of colours, white
  being 1, where training began.

  Args:
    scales: title → (rows * cols * channels,), in this order of pixels.
    patch_size: (rows, cols) of a patch, in pixels.
  """
  maps = {k: _channels(v, patch_size) for k, v in scales.items()}
  channels = len(next(iter(maps.values())))
  reach = max(np.abs(m - 1).max() for m in maps.values()) or 1.0
  width = WIDTH_INCHES / (len(maps) + 0.4)
  fig = _figure(channels * width + 0.4)
  grid = fig.subplots(channels, len(maps), squeeze=False)
  for column, (title, by_channel) in zip(grid.T, maps.items(), strict=True):
    for ax, values in zip(column, by_channel, strict=True):
      image = ax.imshow(values, cmap="PuOr_r", vmin=1 - reach, vmax=1 + reach)
      ax.grid(False)
      ax.spines[:].set_visible(False)
      ax.set_xticks([])
      ax.set_yticks([])
    column[0].set_title(title)
  if channels == 3:
    for ax, name in zip(grid[:, 0], ("red", "green", "blue"), strict=True):
      ax.set_ylabel(name)
  fig.colorbar(image, ax=grid, shrink=0.8, label="scale of ln0")
  return fig


def _figure(height_inches):
  return figure.Figure((WIDTH_INCHES, height_inches), layout="constrained")


def _one_panel(xlabel, ylabel):
  fig = _figure(3.2)
  ax = fig.subplots()
  ax.set_xlabel(xlabel)
  ax.set_ylabel(ylabel)
  return fig, ax


def _stack(repetitions, metric):
  """Returns steps (logged,) and values (runs, logged) of repeated runs."""
  steps, values = zip(*(run.series(metric) for run in repetitions), strict=True)
  for run, other in zip(repetitions, steps, strict=True):
    if not np.array_equal(steps[0], other):
      raise ValueError(
        f"{repetitions[0].path} and {run.path} logged {metric!r} at different "
        "steps, so they are no repetitions of each other. Train one of them "
        "anew, or move it elsewhere."
      )
  return steps[0], np.stack(values)


def _norms_by_depth(repetitions, last_steps):
  """Returns names of the layers and norms (runs, layers)."""
  metrics = ["grad_norm/embedding"]
  logged = {key for row in repetitions[0].rows for key in row}
  metrics += sorted(k for k in logged if re.fullmatch(r"grad_norm/block\d+", k))
  norms = []
  for metric in metrics:
    steps, values = _stack(repetitions, metric)
    norms.append(values[:, steps > steps[-1] - last_steps].mean(1))  # (runs,)
  layers = ["embedding", *(str(i) for i in range(1, len(metrics)))]
  return layers, np.stack(norms, axis=1)


def _channels(scale, patch_size):
  """Returns (channels, rows, cols) from the order row, column, channel."""
  rows, cols = patch_size
  channels, rest = divmod(scale.size, rows * cols)
  if scale.ndim != 1 or rest or not channels:
    raise ValueError(
      f"Got a scale of shape {scale.shape} for patches of {rows}×{cols} "
      "pixels, expected (rows * cols * channels,). Check patch_size."
    )
  return scale.reshape(rows, cols, channels).transpose(2, 0, 1)
