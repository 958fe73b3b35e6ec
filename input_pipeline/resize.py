"""Image resizing with TensorFlow's (v2) geometry: pixel centres at halves.

- nearest: the input pixel under the output pixel's centre.
- bilinear: linear interpolation between centres, without antialiasing.
- bicubic: Keys' kernel with a = -1/2 (OpenCV's has -3/4).
- area: the mean over the output pixel's box, whether it shrinks or grows.

Antialiasing widens the linear and the cubic kernel by the shrinking factor, as
Pillow does; it changes nothing for the other two. At the border the weights of
the pixels that exist are normalised.

Differs from TensorFlow: integer images are rounded to the nearest level, where
`tf.cast` rounds down; weights for 8-bit bilinear have 11 bits (OpenCV).
"""

from collections.abc import Callable

import cv2
import numpy as np

METHODS = ("area", "bicubic", "bilinear", "nearest")


def resize(
  image: np.ndarray,
  size: tuple[int, int],
  method: str = "bilinear",
  antialias: bool = False,
) -> np.ndarray:
  """Returns `image` (rows, cols, channels) with `size` as its rows and cols."""
  if image.ndim != 3:
    raise ValueError(
      f"expected an image of shape (rows, cols, channels), got {image.shape}."
    )
  if image.shape[:2] == tuple(size):
    return image
  if method == "nearest":
    result = _nearest(image, size)
  elif method == "area":
    result = _area(image, size)
  elif method == "bicubic":
    result = _filter(image, size, _cubic, antialias)
  elif antialias:
    result = _filter(image, size, _triangle, antialias)
  else:
    result = _opencv(image, size, cv2.INTER_LINEAR)
  return np.ascontiguousarray(result)


def _opencv(image, size, interpolation):
  rows, cols = size
  result = cv2.resize(image, (cols, rows), interpolation=interpolation)
  return result.reshape(rows, cols, -1)  # OpenCV drops a single channel.


def _nearest(image, size):
  rows, cols = (
    (2 * np.arange(n) + 1) * old // (2 * n)
    for n, old in zip(size, image.shape, strict=False)
  )
  return image[rows[:, None], cols]


def _area(image, size):
  # OpenCV's INTER_AREA is the box mean only when no axis grows.
  shrunk = tuple(np.minimum(size, image.shape[:2]).tolist())
  if shrunk != image.shape[:2]:
    image = _opencv(image, shrunk, cv2.INTER_AREA)
  for axis, target in enumerate(size):
    if target > image.shape[axis]:
      image = _grow_area(image, target, axis)
  return image


def _grow_area(image, target, axis):
  """Box mean along one axis; boxes are small and touch two pixels at most."""
  old = image.shape[axis]
  out = np.arange(target)
  first = out * old // target
  share = np.clip(((out + 1) * old - (first + 1) * target) / old, 0, 1)
  share = np.expand_dims(share.astype(np.float32), (1, 2) if axis == 0 else 1)
  left = np.take(image, first, axis)
  right = np.take(image, np.minimum(first + 1, old - 1), axis)
  return _like(image, left * (1 - share) + right * share)


def _filter(image, size, kernel, antialias):
  by_row, by_col = (
    _weights(old, new, kernel, antialias)
    for old, new in zip(image.shape, size, strict=False)
  )
  rows = np.tensordot(by_row, image, (1, 0))  # (new rows, cols, channels)
  return _like(image, by_col @ rows)


def _weights(
  old: int, new: int, kernel: Callable, antialias: bool
) -> np.ndarray:
  """Returns the weight of every input pixel in every output: (new, old)."""
  stretch = max(old / new, 1) if antialias else 1
  centres = (np.arange(new) + 0.5) * (old / new) - 0.5
  weights = kernel(np.abs(np.arange(old) - centres[:, None]) / stretch)
  weights /= weights.sum(1, keepdims=True)
  return weights.astype(np.float32)


def _triangle(x):
  return np.maximum(1 - x, 0)


def _cubic(x):
  near = (1.5 * x - 2.5) * x * x + 1
  far = ((-0.5 * x + 2.5) * x - 4) * x + 2
  return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _like(image, values):
  """Returns `values` in the dtype of `image`, rounded and clipped to fit."""
  if np.issubdtype(image.dtype, np.integer):
    limits = np.iinfo(image.dtype)
    values = np.clip(np.rint(values), limits.min, limits.max)
  return values.astype(image.dtype)
