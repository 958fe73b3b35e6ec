"""Pooling: from encoded tokens to one vector per image."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from dpn.models import attention, encoder, norms

POOL_TYPES = ("tok", "gap", "map", "seq", "0", "none")


class MAPHead(nn.Module):
  """Multi-head attention pooling (arXiv 2106.04560, Section 3.2)."""

  mlp_dim: int
  num_heads: int
  gelu: str = "tanh"
  eps: float = 1e-6
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, out=None):
    """Returns (batch, width) from (batch, tokens, width).

    A dict `out` gains what it does in `attention.Attention`.
    """
    batch, _, width = x.shape
    probe = self.param("probe", nn.initializers.xavier_uniform(), (1, 1, width))
    x = attention.Attention(
      self.num_heads, dtype=self.dtype, name="MultiHeadDotProductAttention_0"
    )(jnp.tile(probe, (batch, 1, 1)), x, out=out)
    y = norms.make("layernorm", {"eps": self.eps}, name="LayerNorm_0")(x)
    x = x + encoder.Mlp(
      self.mlp_dim, gelu=self.gelu, dtype=self.dtype, name="MlpBlock_0"
    )(y)
    return x[:, 0].astype(jnp.float32)


class SequencePool(nn.Module):
  """A mean weighted by a learned score (arXiv 2104.05704, Section 3.2)."""

  @nn.compact
  def __call__(self, x):  # (batch, tokens, width) → (batch, width)
    score = nn.Dense(1, kernel_init=nn.initializers.normal(0.02), name="score")
    return (nn.softmax(score(x), axis=1) * x).sum(axis=1)


def pool(x, config, out):
  """Returns the image's representation where it takes a module, or all tokens.

  Args:
    x: (batch, tokens, width).
    config: the `vit.Config`; its `pool_type` is `map` for a `MAPHead`, `seq`
      for a `SequencePool`, whose parameters the calling model owns, or `none`.
    out: gains the intermediates of a `MAPHead`, `pool`.
  """
  if config.pool_type == "map":
    out["pool"] = {}
    return MAPHead(
      config.mlp_dim,
      config.num_heads,
      gelu=config.gelu,
      eps=config.eps,
      dtype=config.dtype,
      name="MAPHead_0",
    )(x, out["pool"])
  if config.pool_type == "seq":
    return SequencePool(name="SequencePool_0")(x)
  return x
