"""Parameters for another resolution or patch size."""

import math

import numpy as np
from absl import logging


def posemb(x, tokens: int):
  """Returns a square grid resized bilinearly to another, corner on corner.

  Args:
    x: (1, old * old, width); returned unchanged if not square.
    tokens: new * new.
  """
  old, new = math.isqrt(x.shape[1]), math.isqrt(tokens)
  if old == new or old**2 != x.shape[1] or new**2 != tokens:
    return x
  logging.info("The %d² position embeddings are resized to %d².", old, new)
  import scipy.ndimage  # 0.4 s that few runs need

  # SciPy knows no half precision.
  dtype = np.promote_types(x.dtype, np.float32)
  grid = x.reshape(old, old, -1).astype(dtype)
  grid = scipy.ndimage.zoom(grid, (new / old, new / old, 1), order=1)
  return grid.reshape(1, tokens, -1)


def posemb_with_row(x, tokens: int, has_row: bool):
  """Returns `posemb` of all but the class token's first row, which is kept.

  Args:
    x: (1, has_row + old * old, width).
    tokens: new * new.
    has_row: whether there is such a row.
  """
  row, grid = x[:, : int(has_row)], x[:, int(has_row) :]
  grid = posemb(grid, tokens)
  return np.concatenate([row.astype(grid.dtype), grid], axis=1)


def patch_kernel(kernel, size: tuple[int, int]):
  """Returns an embedding for patches of another size (arXiv 2212.08013).

  The pseudo-inverse of Section 3.4: of all kernels w' the one whose embedding
  <B x, w'> of a bilinearly resized patch B x is closest to <x, w>, for x of
  independent pixels. To larger patches the two are equal.

  Args:
    kernel: (rows, cols, channels, width).
    size: new (rows, cols).

  Returns:
    (*size, channels, width) float32.
  """
  rows, cols = (
    np.linalg.pinv(bilinear(old, new).T)
    for old, new in zip(kernel.shape, size, strict=False)
  )
  resized = np.einsum("ri,sj,ijcw->rscw", rows, cols, kernel.astype(np.float64))
  return resized.astype(np.float32)


def bilinear(old: int, new: int):
  """Returns the (new, old) matrix that resizes a line of pixels.

  Linear interpolation between the pixels' centres, constant beyond the outer
  ones, without antialiasing.
  """
  place = (np.arange(new) + 0.5) * old / new - 0.5
  return np.stack(
    [np.interp(place, np.arange(old), column) for column in np.eye(old)],
    axis=1,
  )
