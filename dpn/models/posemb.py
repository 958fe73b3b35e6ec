"""Absolute position embeddings."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from dpn import names


def sincos2d(rows: int, cols: int, width: int, temperature: float = 10_000.0):
  """Returns the fixed 2-D table of MoCo v3 (arXiv 2104.02057), as big_vision.

  Frequencies are temperature^(-i / (width/4 - 1)), i = 0 … width/4 - 1; the
  four quarters of the width hold sin x, cos x, sin y, cos y.

  Returns:
    (1, rows * cols, width) float64 NumPy array, row-major.
  """
  if width % 4 or width < 8:
    raise ValueError(
      f"posemb='sincos2d' needs a width that is a multiple of 4 and at least "
      f"8, got {width}."
    )
  omega = temperature ** -np.linspace(0, 1, width // 4)
  y, x = np.mgrid[:rows, :cols].reshape(2, -1, 1) * omega  # (tokens, width/4)
  table = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
  return table[None]


KINDS = ("learn", "sincos2d")


def check_kind(kind: str):
  """Raises ValueError naming the nearest if `kind` is unknown."""
  if kind not in KINDS:
    raise ValueError(names.unknown("posemb", kind, KINDS))


def get(module: nn.Module, kind: str, grid: tuple[int, int], width: int):
  """Returns the embedding (1, rows * cols, width) of `kind` for `module`.

  `learn` creates the parameter `pos_embedding` in `module`, N(0, 1/width).
  """
  rows, cols = grid
  if kind == "learn":
    init = nn.initializers.normal(stddev=width**-0.5)
    return module.param("pos_embedding", init, (1, rows * cols, width))
  check_kind(kind)
  return jnp.asarray(sincos2d(rows, cols, width), jnp.float32)
