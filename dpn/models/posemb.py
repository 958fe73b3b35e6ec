"""Position embeddings other than learned ones, and where they are added.

A learned table that is added once before the first block, the default, is in
`vit.py`. Here are fixed tables, relative positions, and LaPE, which normalizes
and adds the positions in every block.
"""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from dpn.models import norms


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


def sincos2d_lape(rows: int, cols: int, width: int):
  """Returns the 2-D table LaPE's models were trained with (arXiv 2212.05262).

  The first half of the width is `sincos1d` of the column, the other half that
  of the row.

  Returns:
    (1, rows * cols, width) float64 NumPy array, row-major.
  """
  table = sincos1d(max(rows, cols), width // 2)[0]
  y, x = np.mgrid[:rows, :cols].reshape(2, -1)
  return np.concatenate([table[x], table[y]], axis=1)[None]


def _with_cls(table, cls):
  """Returns a float32 table before which `cls` rows of zeros stand."""
  return jnp.asarray(np.pad(table, ((0, 0), (cls, 0), (0, 0))), jnp.float32)


# Functions (grid, width, cls) → table (1, tokens, width), or None for none. The
# grid is (rows, cols) of the patches, row-major; cls is 1 if a first row is for
# the class token, else 0. Further arguments are options.
POSEMBS = {
  "learn": lambda grid, width, cls: None,  # the model's own parameter
  "sincos1d": lambda grid, width, cls: _with_cls(
    sincos1d(grid[0] * grid[1] + cls, width), 0
  ),
  "sincos2d": lambda grid, width, cls: _with_cls(sincos2d(*grid, width), cls),
  "sincos2d_lape": lambda grid, width, cls: _with_cls(
    sincos2d_lape(*grid, width), cls
  ),
  "rpe": lambda grid, width, cls: None,  # `RelativeBias` in each block
}


@dataclasses.dataclass(frozen=True)
class Add:
  """Positions are added to the tokens once, before the first block.

  Attributes:
    cls: the class token has a position too, as in DeiT.
  """

  cls: bool = False


@dataclasses.dataclass(frozen=True)
class Lape:
  """Layer-adaptive position embedding (arXiv 2212.05262).

  Each block normalizes the positions by a norm of its own and adds the result
  to the normalized tokens that its attention sees. The residual stream never
  contains positions; a class token has one.

  Attributes:
    share: every block normalizes the raw positions, the first arXiv version's
      method, instead of what the block before has made of them.
    norm: of the positions; all but the default are Table 8's ablations.
  """

  share: bool = False
  norm: Literal["layernorm", "standardize", "affine"] = "layernorm"
  cls = True


JOINS = {"add": Add, "lape": Lape}


@dataclasses.dataclass(frozen=True)
class BlockPositions:
  """What blocks do about positions; a plain model has none of it.

  Attributes:
    lape: None if positions are not added in the blocks.
    relative: add a `RelativeBias` to the attention's logits.
    eps: of LaPE's normalizers.
  """

  lape: Lape | None
  relative: bool
  eps: float

  def __call__(self, y, pe, tokens, out):
    """Called in a block, which owns the parameters `pe_norm`, `rel_posemb`.

    Args:
      y: (batch, tokens, width), what the attention would see.
      pe: (1, tokens, width) for LaPE, else None.
      tokens: the `norms.TokenGrid`.
      out: the block's intermediates; gains `position`.

    Returns:
      What the attention sees, (batch, tokens, width); its bias (1, heads,
      tokens, tokens) or None; `pe` for the next block.
    """
    bias = None
    if pe is not None:
      norm = norms.make(self.lape.norm, {"eps": self.eps}, name="pe_norm")
      here = out["position"] = norm(pe)
      y = y + here.astype(y.dtype)
      pe = pe if self.lape.share else here
    if self.relative:
      normalize = self.lape is not None
      bias = RelativeBias(tokens, normalize, y.dtype, name="rel_posemb")()
    return y, bias, pe


class RelativeBias(nn.Module):
  """A learned number for every offset and head, added to attention's logits.

  arXiv 2103.14030, Equation 4, between patches; a class token's logits are
  left alone.

  Attributes:
    tokens: how they are arranged.
    normalize: LaPE's form (arXiv 2212.05262): a LayerNorm over the keys.
    dtype: of the tokens; the result is in float32 or wider.
  """

  tokens: norms.TokenGrid
  normalize: bool = False
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self):  # → (1, heads, queries, keys)
    rows, cols = self.tokens.grid
    shape = ((2 * rows - 1) * (2 * cols - 1), self.tokens.num_heads)
    table = self.param("table", nn.initializers.zeros, shape)
    table = table.astype(jnp.promote_types(table.dtype, self.dtype))
    bias = table[relative_index(rows, cols)].transpose(2, 0, 1)
    if self.normalize:
      bias = norms.make("layernorm", {"eps": 1e-5}, name="pe_norm")(bias)
    cls = (int(self.tokens.cls), 0)
    return jnp.pad(bias, ((0, 0), cls, cls))[None]


def relative_index(rows: int, cols: int):
  """Returns which table row belongs to (query, key), both row-major."""
  y, x = np.divmod(np.arange(rows * cols), cols)
  dy = y[:, None] - y[None, :] + rows - 1
  dx = x[:, None] - x[None, :] + cols - 1
  return dy * (2 * cols - 1) + dx
