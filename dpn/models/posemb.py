"""Position embeddings other than learned ones, and where they are added.

A learned table that is added once before the first block, the default, is in
`vit.py`. Here are fixed tables, relative positions, and joins: ways to add the
positions in every block, of which LaPE normalizes them there.
"""

import dataclasses
from typing import Any, Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from dpn.models import norms
from dpn.models.norms.base import center


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
  if width % 4:
    raise ValueError(
      f"posemb='sincos2d_lape' needs a width that is a multiple of 4, got "
      f"{width}."
    )
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
class Shared:
  """Every block adds the same positions to its input, the residual stream.

  With `Unshared`, what arXiv 2212.05262 compares LaPE with.
  """

  cls = True  # the class token has a position


@dataclasses.dataclass(frozen=True)
class Unshared:
  """As `Shared`, but every block has learned positions of its own."""

  cls = True


# Table 8 of arXiv 2212.05262: whether positions are standardized, what they are
# multiplied by, and whether there is a bias.
FORMS = {
  "identity": (False, "none", False),
  "scalar": (False, "scalar", False),
  "scale": (False, "vector", False),
  "affine": (False, "vector", True),
  "standardize": (True, "none", False),
  "standardize_scalar": (True, "scalar", False),
  "standardize_scale": (True, "vector", False),
  "layernorm": (True, "vector", True),
}


class PositionNorm(norms.Normalizer):
  """One of `FORMS`, of the last axis."""

  form: str = "layernorm"

  @nn.compact
  def __call__(self, x):
    standardize, scale, bias = FORMS[self.form]
    multiplier = 1.0
    if standardize:
      x, multiplier = center(x, self.eps, axis=-1)
    if scale != "none":
      x = self.scale(x, multiplier, scalar=scale == "scalar")
    else:
      x = x * multiplier
    return self.bias(x) if bias else x


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
  norm: Literal[tuple(FORMS)] = "layernorm"
  cls = True


JOINS = {"add": Add, "shared": Shared, "unshared": Unshared, "lape": Lape}


def check(kind: str, name: str, join: Any):
  """Raises ValueError if positions cannot be joined in this way.

  Args:
    kind: of the positions, `posemb`.
    name: of the join, `posemb_join`.
    join: what that is.
  """
  problem = None
  if isinstance(join, Unshared) and kind != "learn":
    problem = "every block learns a table: posemb='learn', or use 'shared'"
  elif isinstance(join, Shared) and kind == "rpe":
    problem = "there is nothing to add to tokens: use 'add' or 'lape'"
  elif isinstance(join, Lape) and join.share and kind == "rpe":
    problem = "every block has a table: leave out posemb_join_kw.share"
  if problem:
    raise ValueError(
      f"posemb_join={name!r} does not go with posemb={kind!r}; {problem}."
    )


@dataclasses.dataclass(frozen=True)
class BlockPositions:
  """What blocks do about positions; a plain model has none of it.

  Its methods are called in a block, which owns the parameters `pos_embedding`,
  `pe_norm` and `rel_posemb`.

  Attributes:
    join: one of `JOINS`.
    relative: add a `RelativeBias` to the attention's logits.
    eps: of LaPE's normalizers.
  """

  join: Any
  relative: bool
  eps: float

  def before(self, block, x, pe):
    """Returns the block's input, to which positions may have been added.

    Args:
      block: the calling module.
      x: (batch, tokens, width), the residual stream.
      pe: (1, tokens, width), of all blocks; None if they have their own.
    """
    if isinstance(self.join, Unshared):
      shape = (1, *x.shape[1:])
      init = block.config.inits.posemb(x.shape[-1])
      pe = block.param("pos_embedding", init, shape)
    elif not isinstance(self.join, Shared):
      return x
    return x + pe.astype(x.dtype)

  def attended(self, y, pe, tokens, out):
    """Returns what the attention sees, its bias, and the next block's `pe`.

    Args:
      y: (batch, tokens, width), what it would see without positions.
      pe: (1, tokens, width), or None.
      tokens: the `norms.TokenGrid`.
      out: the block's intermediates; gains `position`.

    Returns:
      (batch, tokens, width); (1, heads, tokens, tokens) or None; `pe`.
    """
    bias = None
    lape = self.join if isinstance(self.join, Lape) else None
    if lape and pe is not None:
      norm = PositionNorm(self.eps, form=lape.norm, name="pe_norm")
      here = out["position"] = norm(pe)
      y = y + here.astype(y.dtype)
      pe = pe if lape.share else here
    if self.relative:
      kw = {"normalize": True, "form": lape.norm} if lape else {}
      bias = RelativeBias(tokens, **kw, dtype=y.dtype, name="rel_posemb")()
    return y, bias, pe


class RelativeBias(nn.Module):
  """A learned number for every offset and head, added to attention's logits.

  arXiv 2103.14030, Equation 4, between patches; a class token's logits are
  left alone.

  Attributes:
    tokens: how they are arranged.
    normalize: as LaPE does (arXiv 2212.05262), over the keys.
    form: of that norm, one of `FORMS`.
    dtype: of the tokens; the result is in float32 or wider.
  """

  tokens: norms.TokenGrid
  normalize: bool = False
  form: str = "layernorm"
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self):  # → (1, heads, queries, keys)
    rows, cols = self.tokens.grid
    shape = ((2 * rows - 1) * (2 * cols - 1), self.tokens.num_heads)
    table = self.param("table", nn.initializers.zeros, shape)
    table = table.astype(jnp.promote_types(table.dtype, self.dtype))
    bias = table[relative_index(rows, cols)].transpose(2, 0, 1)
    if self.normalize:
      bias = PositionNorm(1e-5, form=self.form, name="pe_norm")(bias)
    cls = (int(self.tokens.cls), 0)
    return jnp.pad(bias, ((0, 0), cls, cls))[None]


def relative_index(rows: int, cols: int):
  """Returns which table row belongs to (query, key), both row-major."""
  y, x = np.divmod(np.arange(rows * cols), cols)
  dy = y[:, None] - y[None, :] + rows - 1
  dx = x[:, None] - x[None, :] + cols - 1
  return dy * (2 * cols - 1) + dx
