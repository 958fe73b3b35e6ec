"""Arithmetic on pixels, shared by the ops.

Unless stated otherwise, images are uint8 of shape (rows, cols, 3), RGB.
"""

import functools
import math
from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

from dpn.input_pipeline.pp import fused

LEVELS = np.arange(256)


def rotate(warp: Callable, corner_px: float) -> Callable[..., np.ndarray]:
  """Returns a function of (image, level, generator, …) that rotates an image.

  It rotates by ±30° times the level, around the image's centre in coordinates
  whose top left corner is at `corner_px`. `warp` is a function of (image,
  matrix, …) whose output at (x, y) is the input at matrix (x, y, 1).
  """

  def augment(image, level, rng, *args):
    angle = math.radians(random_sign(level * 30, rng))
    cos, sin = math.cos(angle), math.sin(angle)
    y, x = (size / 2 + corner_px for size in image.shape[:2])
    matrix = [
      [cos, -sin, x - cos * x + sin * y],
      [sin, cos, y - sin * x - cos * y],
    ]
    return warp(image, np.array(matrix), *args)

  return augment


def affine(
  warp: Callable, row: int, col: int, amount: float, relative: bool = False
) -> Callable[..., np.ndarray]:
  """Returns a function like `rotate`'s that shears (col 0, 1) or shifts (2).

  The matrix is the identity except for ±amount * level at (row, col): in pixels
  or, if `relative`, as a share of the image's size.
  """

  def augment(image, level, rng, *args):
    matrix = np.eye(2, 3)
    size = image.shape[1 - row] if relative else 1
    matrix[row, col] = random_sign(level * amount, rng) * size
    return warp(image, matrix, *args)

  return augment


def random_sign(value: float, rng: np.random.Generator) -> float:
  """Returns `value` or its negative, equally likely."""
  return value if rng.random() < 0.5 else -value


def posterize(image: np.ndarray, drop_bits: int) -> np.ndarray:
  """Sets the lowest bits of every level to zero."""
  return lookup(image, LEVELS >> drop_bits << drop_bits)


def linear(
  scale: npt.ArrayLike, offset: npt.ArrayLike
) -> Callable[[npt.ArrayLike], np.ndarray]:
  """Returns a function: value * scale + offset, in float32.

  `scale` and `offset` are a number, or one per entry of the value's last axis.
  """
  factors = [np.asarray(x, np.float32) for x in (scale, offset)]
  channels = np.broadcast(*factors).size
  if channels == 1:
    factors = [x.reshape(()) for x in factors]

  @functools.lru_cache(64)
  def tiled(cols, depth):
    return [np.tile(np.broadcast_to(x, depth), cols) for x in factors]

  def apply(value):
    value = rows = np.asarray(value)
    times, plus = factors
    if channels > 1 and value.shape[-1:] != (channels,):
      raise ValueError(
        f"expected {channels} channels, one for each number of the op, got an "
        f"image of shape {value.shape}."
      )
    if value.ndim > 2:  # NumPy is slow over a last axis of three.
      times, plus = tiled(*value.shape[-2:])
      rows = value.reshape(-1, times.size)
    return fused.linear(rows, times, plus).reshape(value.shape)

  return apply


def lookup(image: np.ndarray, table: np.ndarray) -> np.ndarray:
  """Maps levels through a table of shape (256,) or (256, 3)."""
  return cv2.LUT(image, np.asarray(table).astype(np.uint8)[None])


def blend(low, high, factor: float) -> np.ndarray:
  """Returns low + factor (high - low) in float32, clipped to uint8."""
  low, result = np.float32(low), np.array(high, np.float32)
  result -= low
  result *= np.float32(factor)
  result += low
  return np.clip(result, 0, 255, out=result).astype(np.uint8)


def fade(image: np.ndarray, level: int, factor: float) -> np.ndarray:
  """Blends with an image that has one level everywhere."""
  return lookup(image, blend(level, LEVELS, factor))


def sharpen(image: np.ndarray, factor: float, rounding: float) -> np.ndarray:
  """Blends with a smoothed image, whose outermost pixels are the image's.

  Its levels are sums / 13, rounded down after `rounding` is added to the sums.
  """
  kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32)
  sums = cv2.filter2D(image, cv2.CV_32F, kernel) + np.float32(rounding)
  smooth = image.copy()
  smooth[1:-1, 1:-1] = (sums[1:-1, 1:-1] / 13).astype(np.uint8)
  return blend(smooth, image, factor)


def grey(image: np.ndarray) -> np.ndarray:
  """Returns the luma (ITU-R 601), repeated: (rows, cols, 3)."""
  luma = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
  return cv2.cvtColor(luma, cv2.COLOR_GRAY2RGB)


def equalize(image: np.ndarray) -> np.ndarray:
  """Flattens every channel's histogram, as Pillow does."""
  tables = np.tile(LEVELS[:, None], 3)
  for channel in range(3):
    counts = cv2.calcHist([image], [channel], None, [256], [0, 256])
    counts = counts[:, 0].astype(np.int64)
    last = counts[counts.nonzero()[0][-1]]
    if step := (counts.sum() - last) // 255:
      below = np.cumsum(counts) - counts
      tables[:, channel] = np.minimum((below + step // 2) // step, 255)
  return lookup(image, tables)


def autocontrast(image: np.ndarray, dtype: type = np.float64) -> np.ndarray:
  """Stretches every channel to the full range; `dtype` is what it computes in.

  Pillow computes in float64, the TPU code in float32: they round differently.
  """
  # NumPy is fast along the first axis, and slow along an axis of length 3.
  low, high = (f(f(image, 0), 0).astype(dtype) for f in (np.amin, np.amax))
  spread = high > low
  scale = dtype(255) / np.where(spread, high - low, dtype(1))
  table = np.clip(LEVELS[:, None].astype(dtype) * scale - low * scale, 0, 255)
  return lookup(image, np.where(spread, table, LEVELS[:, None]))


def solarize(image: np.ndarray, threshold: int) -> np.ndarray:
  """Inverts the levels from `threshold` on."""
  return lookup(image, np.where(threshold > LEVELS, LEVELS, 255 - LEVELS))


def solarize_add(image: np.ndarray, addition: int) -> np.ndarray:
  """Raises the levels below 128."""
  added = np.minimum(LEVELS + addition, 255)
  return lookup(image, np.where(LEVELS < 128, added, LEVELS))
