"""Multi-head dot-product attention with big_vision's parameter tree."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class Attention(nn.Module):
  """Attention of `x_q` over `x_kv` (arXiv 1706.03762, Section 3.2.2).

  Parameters, with H heads of d = width / H channels: `query`, `key`, `value`
  with kernels (width, H, d), and `out` with kernel (H, d, width).
  """

  num_heads: int
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x_q, x_kv):  # (batch, tokens, width) twice
    width = x_q.shape[-1]
    if width % self.num_heads:
      raise ValueError(
        f"The width must be a multiple of num_heads, got width={width} and "
        f"num_heads={self.num_heads}."
      )
    kw = {"dtype": self.dtype, "kernel_init": nn.initializers.xavier_uniform()}
    heads = (self.num_heads, width // self.num_heads)
    q = nn.DenseGeneral(heads, name="query", **kw)(x_q)
    k = nn.DenseGeneral(heads, name="key", **kw)(x_kv)
    v = nn.DenseGeneral(heads, name="value", **kw)(x_kv)
    y = jax.nn.dot_product_attention(q, k, v)  # (batch, tokens, heads, d)
    return nn.DenseGeneral(width, axis=(-2, -1), name="out", **kw)(y)
