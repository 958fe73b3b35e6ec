"""Images whose pixels are computed once it is known which are needed.

Decoding, and resizing by area, give a `Pending`; a crop cuts a box out of it,
for which the rest of the image is never computed. All other ops get arrays.
"""

from collections.abc import Callable

import numpy as np


class Pending:
  """An image of known shape, not computed yet.

  Attributes:
    shape: (rows, cols, channels).
  """

  def __init__(
    self, shape: tuple[int, int, int], cut: Callable[..., np.ndarray]
  ):
    """Takes cut(top, left, height, width), which returns a box's pixels."""
    self.shape = shape
    self.cut = cut


def cut(
  image: np.ndarray | Pending, top: int, left: int, height: int, width: int
) -> np.ndarray:
  """Returns a box of an image; of an array, a view."""
  if isinstance(image, Pending):
    return image.cut(top, left, height, width)
  return image[top : top + height, left : left + width]


def whole(image):
  """Returns all pixels of a pending image, anything else as it is."""
  if isinstance(image, Pending):
    return image.cut(0, 0, *image.shape[:2])
  return image
