"""Pooling: from encoded tokens to one vector per image."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from dpn.models import attention, compact, mlp, norms


class MAPHead(nn.Module):
  """Multi-head attention pooling (arXiv 2106.04560, Section 3.2)."""

  mlp_dim: int
  num_heads: int
  gelu: Callable = mlp.GELUS["tanh"]
  eps: float = 1e-6
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, out=None):
    """Returns (batch, width) from (batch, tokens, width).

    A dict `out` gains the intermediates of `attention.Attention`.
    """
    batch, _, width = x.shape
    probe = self.param("probe", nn.initializers.xavier_uniform(), (1, 1, width))
    x = attention.Attention(
      self.num_heads, dtype=self.dtype, name="MultiHeadDotProductAttention_0"
    )(jnp.tile(probe, (batch, 1, 1)), x, out=out)  # (batch, 1, width)
    y = norms.make("layernorm", eps=self.eps, name="LayerNorm_0")(x)
    x = x + mlp.Mlp(
      self.mlp_dim, gelu=self.gelu, dtype=self.dtype, name="MlpBlock_0"
    )(y)
    return x[:, 0].astype(jnp.float32)


def _map(x, config, out):
  out["pool"] = {}
  return MAPHead(
    config.mlp_dim,
    config.num_heads,
    gelu=config.lookup("gelu"),
    eps=config.eps,
    dtype=config.dtype,
    name="MAPHead_0",
  )(x, out["pool"])


# Functions (x, config, out) → (batch, width) of tokens (batch, tokens, width),
# which create their modules inside the model that calls them; `out` gains the
# intermediates. A class token is the first, and only there for "tok".
POOL_TYPES = {
  "tok": lambda x, config, out: x[:, 0],
  "0": lambda x, config, out: x[:, 0],
  "gap": lambda x, config, out: x.mean(axis=1),
  "map": _map,
  "seq": lambda x, *_: compact.SequencePool(name="SequencePool_0")(x),
  "none": lambda x, config, out: x,  # (batch, tokens, width)
}
