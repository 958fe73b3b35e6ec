"""Images of which only the needed pixels are computed.

`decode` (see `jpeg`) and most resizing return a `LazyImage`; a crop cuts a
box out of it, and the rest is never computed. Ops that do not declare `lazy`
get arrays.
"""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass
class LazyImage:
  """An image of known shape that is not computed yet."""

  shape: tuple[int, int, int]  # (rows, cols, channels)
  cut: Callable[..., np.ndarray]  # (top, left, height, width) → a box's pixels


def cut(
  image: np.ndarray | LazyImage, top: int, left: int, height: int, width: int
) -> np.ndarray:
  """Returns a box of an image; of an array, a view."""
  if isinstance(image, LazyImage):
    return image.cut(top, left, height, width)
  return image[top : top + height, left : left + width]


def materialize(value):
  """Returns all pixels of a lazy image, anything else as it is."""
  if isinstance(value, LazyImage):
    return value.cut(0, 0, *value.shape[:2])
  return value
