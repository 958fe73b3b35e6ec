"""Predictions for images of any size from a model with one input size.

Windows cover the image; where they overlap, their logits are averaged. As each
step from a window's coarse logits to the image's own pixels is linear and
separable (upsampling, averaging, resizing), all steps together are one matrix
for the rows and one for the columns.
"""

import jax
import jax.numpy as jnp
import numpy as np


def starts(size: int, window: int, stride: int) -> list[int]:
  """Returns where windows start along an axis; the last ends at its end.

  Sizes are in pixels. An axis that is shorter than a window has one window.
  """
  if not 1 <= stride <= window:
    raise ValueError(
      f"Got a stride of {stride} pixels and a window of {window}, expected at "
      "least 1 and at most the window: greater strides leave gaps."
    )
  return [*range(0, size - window, stride), max(size - window, 0)]


def interpolation(size: int, grid: int) -> np.ndarray:
  """Returns (size, grid) weights: bilinear, between pixel centres.

  As `align_corners=False` in PyTorch: grid points are the centres of equal
  parts of the axis, and constant beyond the first and last.
  """
  centre = (np.arange(size) + 0.5) * grid / size - 0.5
  distance = np.clip(centre, 0, grid - 1)[:, None] - np.arange(grid)
  return np.maximum(0, 1 - np.abs(distance))


def axis_weights(
  original: int, size: int, window: int, stride: int, grid: int
) -> np.ndarray:
  """Returns (original, windows * grid) weights along one axis.

  They map the logits of all windows, side by side, to pixels of the original.

  Args:
    original: pixels to predict.
    size: pixels of the image that the windows were cut from. What windows have
      beyond it is padding, which is dropped.
    window: pixels of a window.
    stride: pixels from one window to the next.
    grid: logits per window.
  """
  first = starts(size, window, stride)
  total = np.zeros((max(size, window), len(first) * grid))
  count = np.zeros((max(size, window), 1))
  for i, start in enumerate(first):
    rows = slice(start, start + window)
    total[rows, i * grid : (i + 1) * grid] = interpolation(window, grid)
    count[rows] += 1
  return interpolation(original, size) @ (total / count)[:size]


@jax.jit
def stitch(rows: jax.Array, cols: jax.Array, logits: jax.Array) -> jax.Array:
  """Returns an image's logits (pixel rows, pixel cols, classes).

  Args:
    rows: (pixel rows, grid rows), from `axis_weights`.
    cols: (pixel cols, grid cols), likewise.
    logits: (grid rows, grid cols, classes) of all windows, side by side.
  """
  return jnp.einsum(
    "yr,rck,xc->yxk", rows, logits, cols, precision=jax.lax.Precision.HIGHEST
  )
