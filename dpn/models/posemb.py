"""Fixed tables of position embeddings.

The learned table is a parameter of `vit.ViT`; relative positions, and the ways
to add positions elsewhere than before the first block, are in `joins.py`.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np


def sincos1d(tokens: int, width: int):
  """Returns the table of arXiv 1706.03762, Section 3.5.

  Channels 2i and 2i + 1 hold the sine and cosine of
  position * 10000^(-2i / width).

  Returns:
    (1, tokens, width) float64 NumPy array.
  """
  channel = np.arange(width)
  angle = np.arange(tokens)[:, None] / 10_000.0 ** (channel // 2 * 2 / width)
  return np.where(channel % 2, np.cos(angle), np.sin(angle))[None]


def sincos2d(rows: int, cols: int, width: int):
  """Returns MoCo v3's fixed 2-D table (arXiv 2104.02057), as in big_vision.

  Frequencies are 10,000^(-i / (width/4 - 1)), i = 0 … width/4 - 1; the
  four quarters of the width hold sin x, cos x, sin y, cos y.

  Returns:
    (1, rows * cols, width) float64 NumPy array, row-major.
  """
  if width % 4 or width < 8:
    raise ValueError(
      f"posemb='sincos2d' needs a width that is a multiple of 4 and at least "
      f"8, got {width}."
    )
  omega = 10_000.0 ** -np.linspace(0, 1, width // 4)
  y, x = np.mgrid[:rows, :cols].reshape(2, -1, 1) * omega  # (tokens, width/4)
  table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
  return table[None]


def sincos2d_lape(rows: int, cols: int, width: int):
  """Returns the 2-D table LaPE's models were trained with (arXiv 2212.05262).

  The first half of the width is `sincos1d` of the column, the second half
  `sincos1d` of the row.

  Returns:
    (1, rows * cols, width) float64 NumPy array, row-major.
  """
  if width % 4:
    raise ValueError(
      f"posemb='sincos2d_lape' needs a width that is a multiple of 4, got "
      f"{width}."
    )
  table = sincos1d(max(rows, cols), width // 2)[0]
  y, x = np.mgrid[:rows, :cols].reshape(2, -1)
  return np.concatenate([table[x], table[y]], axis=1)[None]


def _with_cls(table, cls):
  """Returns a float32 table with `cls` rows of zeros in front."""
  return jnp.asarray(np.pad(table, ((0, 0), (cls, 0), (0, 0))), jnp.float32)


# Functions (grid, width, cls) → table (1, tokens, width), or None for none. The
# grid is (rows, cols) of patches, row-major; cls is 1 if the class token has a
# position too, which then comes first, else 0. Further arguments are options.
POSEMBS: dict[str, Callable] = {
  "none": lambda grid, width, cls: None,  # such as with `rope`
  "learn": lambda grid, width, cls: None,  # a parameter of the model
  "sincos1d": lambda grid, width, cls: _with_cls(
    sincos1d(grid[0] * grid[1] + cls, width), 0
  ),
  "sincos2d": lambda grid, width, cls: _with_cls(
    sincos2d(grid[0], grid[1], width), cls
  ),
  "sincos2d_lape": lambda grid, width, cls: _with_cls(
    sincos2d_lape(grid[0], grid[1], width), cls
  ),
  "rpe": lambda grid, width, cls: None,  # joins.RelativeBias, in each block
}
