"""Image resizing with TensorFlow's (v2) geometry: pixel centres at halves.

- nearest: the input pixel under the output pixel's centre.
- bilinear: linear interpolation between centres, without antialiasing.
- bicubic: Keys' kernel with a = -1/2 (OpenCV's has -3/4).
- area: the mean over the output pixel's box, whether it shrinks or grows.

Antialiasing widens the linear and the cubic kernel by the shrinking factor, as
Pillow does; it changes nothing for the other two. At the border the weights of
the pixels that exist are normalized.

Differs from TensorFlow: integer images are rounded to the nearest level, where
`tf.cast` rounds down; weights for 8-bit bilinear have 11 bits (OpenCV).
"""

import functools

import cv2
import numpy as np
import scipy.sparse

from dpn.input_pipeline.pp import fused, lazy_image

METHODS = ("area", "bicubic", "bilinear", "nearest")
_OPENCV = ("uint8", "int16", "uint16", "float32", "float64")  # that it resizes


def resize(
  image: np.ndarray | lazy_image.LazyImage,
  size: tuple[int, int],
  method: str = "bilinear",
  antialias: bool = False,
) -> np.ndarray | lazy_image.LazyImage:
  """Returns `image` (rows, cols, channels) with `size` as its rows and cols.

  Where weights are computed here, the result is lazy: cropping it computes only
  the cropped pixels. A label map (rows, cols) is resized by "nearest" only,
  never interpolated.
  """
  if len(image.shape) != 3 and (len(image.shape), method) != (2, "nearest"):
    raise ValueError(
      "expected an image of shape (rows, cols, channels), or (rows, cols) and "
      f"the method 'nearest', got {image.shape} and {method!r}."
    )
  same = image.shape[:2] == size
  plain = method == "bilinear" and not antialias
  if same or plain or method == "nearest":
    image = lazy_image.materialize(image)
  if same:
    result = image
  elif method == "nearest":
    rows, cols = (
      (2 * np.arange(new) + 1) * old // (2 * new)
      for new, old in zip(size, image.shape, strict=False)
    )
    result = image.take(cols, 1).take(rows, 0)
  elif plain and image.dtype in _OPENCV:
    result = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)
    result = result.reshape(*size, -1)  # OpenCV drops a single channel.
  else:
    box = functools.partial(_box, image, size, method, antialias)
    return lazy_image.LazyImage((*size, image.shape[2]), box)
  return np.ascontiguousarray(result)


def _box(image, size, method, antialias, top, left, height, width):
  """Returns a box of the resized image."""
  kernel = method, antialias
  first_row, by_row = _weights(image.shape[0], size[0], top, height, *kernel)
  first_col, by_col = _weights(image.shape[1], size[1], left, width, *kernel)
  rows, cols, channels = by_row.shape[1], by_col.shape[1], image.shape[2]
  part = lazy_image.cut(image, first_row, first_col, rows, cols)
  # Sums are fast over the leading axis only, so columns become rows in between.
  values = part.reshape(rows, cols * channels)
  if values.dtype not in (np.uint8, np.float32):  # Numba lacks some dtypes.
    values = values.astype(np.float32)
  values = fused.weighted_rows(by_row, values)
  values = cv2.transpose(values).reshape(cols, channels * height)
  values = fused.weighted_rows(by_col, values).reshape(width * channels, height)
  if part.dtype == np.uint8:  # Rounds and clips at once, but drops signs.
    if method == "bicubic":
      np.maximum(values, 0, out=values)
    values = cv2.convertScaleAbs(values)
  values = cv2.transpose(values).reshape(height, width, channels)
  return _like(part, values)


@functools.lru_cache(1024)
def _weights(old, new, first, count, method, antialias):
  """Returns the first input of outputs [first, first + count), and weights.

  The weights are sparse, of shape (count, inputs).
  """
  outputs = np.arange(first, first + count)[:, None]
  if method == "area":  # The inputs at the ends of a box count in part.
    begin = outputs * old  # In units of 1 / new.
    columns = begin // new + np.arange((old - 1) // new + 2)
    share = np.minimum(begin + old, columns * new + new)
    share -= np.maximum(begin, columns * new)
    weights = np.maximum(share, 0) / old
  else:
    stretch = max(old / new, 1) if antialias else 1
    radius = stretch * (1 if method == "bilinear" else 2)
    centres = (outputs + 0.5) * (old / new) - 0.5
    columns = np.ceil(centres - radius).astype(int)
    columns = columns + np.arange(int(2 * radius) + 1)
    weights = _KERNELS[method](np.abs(columns - centres) / stretch)
    weights[(columns < 0) | (columns >= old)] = 0
    weights /= weights.sum(1, keepdims=True)
  rows, taps = np.nonzero(weights)
  columns = columns[rows, taps]
  start, end = int(columns.min()), int(columns.max()) + 1
  values = weights[rows, taps].astype(np.float32)
  entries = values, (rows, columns - start)
  return start, scipy.sparse.csr_array(entries, (count, end - start))


def _cubic(x):
  near = (1.5 * x - 2.5) * x * x + 1
  far = ((-0.5 * x + 2.5) * x - 4) * x + 2
  return np.where(x <= 1, near, np.where(x < 2, far, 0))


# Weights by distance, in units of the stretched kernel.
_KERNELS = {"bilinear": lambda x: np.maximum(1 - x, 0), "bicubic": _cubic}


def _like(image, values):
  """Returns `values` in the dtype of `image`, rounded and clipped to fit."""
  if values.dtype != image.dtype and np.issubdtype(image.dtype, np.integer):
    limits = np.iinfo(image.dtype)
    values = np.clip(np.rint(np.float64(values)), limits.min, limits.max)
  return values.astype(image.dtype, copy=False)
