"""From encoded tokens to one vector per image."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from dpn import errors
from dpn.models import attention, mlp, norms

POOL_TYPES = ("tok", "gap", "map", "seq", "0", "none")


class MAPHead(nn.Module):
  """Multi-head attention pooling (arXiv 2106.04560, Section 3.2)."""

  mlp_dim: int
  num_heads: int
  gelu: str = "tanh"
  norm: str = "layernorm"
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x):  # (batch, tokens, width) → (batch, width)
    batch, _, width = x.shape
    probe = self.param("probe", nn.initializers.xavier_uniform(), (1, 1, width))
    x = attention.Attention(
      self.num_heads, dtype=self.dtype, name="MultiHeadDotProductAttention_0"
    )(jnp.tile(probe, (batch, 1, 1)), x)
    y = norms.make(self.norm, name="LayerNorm_0")(x)
    x = x + mlp.Mlp(
      self.mlp_dim, gelu=self.gelu, dtype=self.dtype, name="MlpBlock_0"
    )(y)
    return x[:, 0].astype(jnp.float32)


class SequencePool(nn.Module):
  """A mean weighted by a learned score (arXiv 2104.05704, Section 3.2)."""

  @nn.compact
  def __call__(self, x):  # (batch, tokens, width) → (batch, width)
    init = nn.initializers.normal(0.02)
    score = nn.Dense(1, kernel_init=init, name="score")(x)
    return (nn.softmax(score, axis=1) * x).sum(axis=1)


def check_pool_type(pool_type: str):
  """Raises ValueError naming the nearest if `pool_type` is unknown."""
  if pool_type not in POOL_TYPES:
    raise ValueError(errors.unknown("pool_type", pool_type, POOL_TYPES))


def pool(x, pool_type: str, **map_kw):
  """Returns the image's representation from encoded tokens.

  Args:
    x: (batch, tokens, width).
    pool_type: `tok` and `0` take the first token, `gap` the mean, `map` a
      `MAPHead`, `seq` a `SequencePool`, `none` all tokens.
    **map_kw: arguments of `MAPHead`, which the calling module then owns.
  """
  check_pool_type(pool_type)
  if pool_type in ("tok", "0"):
    return x[:, 0]
  if pool_type == "gap":
    return x.mean(axis=1)
  if pool_type == "map":
    return MAPHead(name="MAPHead_0", **map_kw)(x)
  if pool_type == "seq":
    return SequencePool(name="SequencePool_0")(x)
  return x
