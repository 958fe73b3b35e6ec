"""Where positions are added: before the first block, or in every block.

Layer-adaptive position embedding (LaPE, arXiv 2212.05262) with what its paper
compares it to: `posemb_join` chooses one of `JOINS`, and `posemb="rpe"` adds a
`RelativeBias`. A plain model uses `Add` alone, and its blocks use none of this.
"""

import dataclasses
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from dpn.models import norms
from dpn.models.broadcast import over_batch
from dpn.models.norms.base import center

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
  """Applies one of `FORMS` to the last axis."""

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
class Add:
  """x_0 = tokens + positions, once, before the first block.

  Attributes:
    cls: whether the class token has a position too, as in DeiT.
    relative: whether blocks add a `RelativeBias` to the attention's logits.
    eps: epsilon of the norms of positions.
  """

  RESERVED: ClassVar = ("relative", "eps")  # not options: the model sets them

  cls: bool = False
  relative: bool = False
  eps: float = 1e-6

  def check(self, config):
    """Raises ValueError if the `vit.Config` has options this cannot use."""
    if not self.cls:
      return
    problem = None
    if not config.has_cls:
      problem = f"pool_type={config.pool_type!r} has no class token"
    elif config.posemb in ("rpe", "none"):
      problem = f"posemb={config.posemb!r} has none for tokens"
    if problem:
      raise ValueError(
        "posemb_join_kw={'cls': True} gives the class token a position, but "
        f"{problem}."
      )

  def to_stream(self, block, x, pe):
    """Returns the residual stream (batch, tokens, width) that enters a block.

    Args:
      block: the calling module, which owns any parameters made here.
      x: (batch, tokens, width).
      pe: (1, tokens, width), or None.
    """
    return x

  def to_attention(self, y, pe, tokens, out):
    """Returns what a block's attention sees, its bias and the next block's pe.

    Args:
      y: (batch, tokens, width), the attention's input without positions.
      pe: (1, tokens, width), or None.
      tokens: the `norms.TokenGrid`.
      out: the block's intermediates.

    Returns:
      (batch, tokens, width); (1, heads, tokens, tokens) or None; `pe`.
    """
    return y, self.bias(tokens, y.dtype), pe

  def bias(self, tokens, dtype, **kw):
    if not self.relative:
      return None
    return RelativeBias(tokens, **kw, dtype=dtype, name="rel_posemb")()


@dataclasses.dataclass(frozen=True)
class Shared(Add):
  """x = x + positions at the input of every block, the same in all of them."""

  cls: bool = dataclasses.field(default=True, init=False)

  def check(self, config):
    if config.posemb in ("rpe", "none"):
      _refuse(config, "there is nothing to add to tokens: use 'add' or 'lape'")

  def to_stream(self, block, x, pe):
    return x + over_batch(pe.astype(x.dtype), x.shape[0])


@dataclasses.dataclass(frozen=True)
class Unshared(Shared):
  """As `Shared`, with a learned table in every block."""

  def check(self, config):
    if config.posemb != "learn":
      why = "every block learns a table: posemb='learn', or use 'shared'"
      _refuse(config, why)

  def to_stream(self, block, x, pe):
    init = block.config.inits.posemb(x.shape[-1])
    table = block.param("pos_embedding", init, (1, *x.shape[1:]))
    return super().to_stream(block, x, table)


@dataclasses.dataclass(frozen=True)
class Lape(Add):
  """x = x + SA(LN(x) + w_l), with w_l = LN_l(w_{l-1}) (arXiv 2212.05262).

  Each block normalizes the positions w by a norm of its own, `pe_norm`, and
  adds them to the normalized tokens that its attention sees. They never enter
  the residual stream. The class token has a position.

  Attributes:
    share: w_l = LN_l(w_0), the method of the first arXiv version: each block
      normalizes the raw positions, not the previous block's result.
    norm: form of the norm; all but the default are ablations of Table 8.
  """

  cls: bool = dataclasses.field(default=True, init=False)
  share: bool = False
  norm: Literal[tuple(FORMS)] = "layernorm"  # type: ignore[valid-type]

  def check(self, config):
    if config.posemb == "none":
      _refuse(config, "there is nothing to normalize: use 'add'")
    if self.share and config.posemb == "rpe":
      why = "every block has a table: leave out posemb_join_kw.share"
      _refuse(config, why)
    if any("pre" not in where.sa for where in config.block_placements):
      raise ValueError(
        "posemb_join='lape' adds positions to the normalized tokens that the "
        f"attention sees, but block_ln={config.block_ln!r} does not normalize "
        "there. Use sa='pre' or 'pre+post' in block_ln_kw."
      )

  def to_attention(self, y, pe, tokens, out):
    bias = self.bias(tokens, y.dtype, normalize=True, form=self.norm)
    if pe is None:  # relative positions
      return y, bias, None
    norm = PositionNorm(self.eps, form=self.norm, name="pe_norm")
    w = out["position"] = norm(pe)
    y = y + over_batch(w.astype(y.dtype), y.shape[0])
    return y, bias, pe if self.share else w


JOINS = {"add": Add, "shared": Shared, "unshared": Unshared, "lape": Lape}


def _refuse(config, why):
  raise ValueError(
    f"posemb_join={config.posemb_join!r} does not go with "
    f"posemb={config.posemb!r}; {why}."
  )


class RelativeBias(nn.Module):
  """A learned number for every offset and head, added to attention's logits.

  arXiv 2103.14030, Equation 4, between patches; the logits of a class token and
  of registers are left alone.

  Attributes:
    tokens: how the tokens are arranged.
    normalize: normalize the bias over the keys, as in LaPE (arXiv 2212.05262).
    form: form of that norm, one of `FORMS`.
    dtype: dtype of the tokens; the result is in float32 or wider.
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
    others = self.tokens.around
    return jnp.pad(bias, ((0, 0), others, others))[None]


def relative_index(rows: int, cols: int):
  """Returns which table row belongs to (query, key), both row-major."""
  y, x = np.divmod(np.arange(rows * cols), cols)
  dy = y[:, None] - y[None, :] + rows - 1
  dx = x[:, None] - x[None, :] + cols - 1
  return dy * (2 * cols - 1) + dx
