"""Multi-head dot-product attention with big_vision's parameter tree."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn.models import attn_impl, norms
from dpn.models import init as inits
from dpn.models.norms import base


class Attention(nn.Module):
  """Attention of `x_q` over `x_kv` (arXiv 1706.03762, Section 3.2.2).

  Parameters, with H heads of d = width / H channels: `query`, `key`, `value`
  with kernels (width, H, d), and `out` with kernel (H, d, width).

  Attributes:
    num_heads: H.
    qkv_bias: whether query, key and value have biases.
    dropout: rate, of the attention weights.
    inner_norm: see `norms.make`; of the concatenated heads, before `out`.
    head_scale: see `block_ln.BlockLN`.
    layout: of the tokens, for `inner_norm`.
    kernel_init: of all four kernels.
    init_gain: factor on the initial `value` and `out` kernels.
    dtype: of the matrix products and the result.
    impl: one of `attn_impl.IMPLS`.
  """

  num_heads: int
  qkv_bias: bool = True
  dropout: float = 0.0
  inner_norm: str | None = None
  head_scale: str = "none"
  layout: base.Layout | None = None
  kernel_init: Callable = inits.INITS["big_vision"].dense
  init_gain: float = 1.0
  dtype: Any = jnp.float32
  impl: str = "xla"

  @nn.compact
  def __call__(self, x_q, x_kv, bias=None, deterministic=True):
    """Returns (batch, queries, width).

    Args:
      x_q: (batch, queries, width).
      x_kv: (batch, keys, width).
      bias: (1, heads, queries, keys), added to the logits, or None.
      deterministic: no dropout, and running statistics are only read.
    """
    width = x_q.shape[-1]
    if width % self.num_heads:
      raise ValueError(
        f"The width must be a multiple of num_heads, got width={width} and "
        f"num_heads={self.num_heads}."
      )
    scaled = inits.scaled(self.kernel_init, self.init_gain)

    def project(name, x, init):
      return nn.DenseGeneral(
        (self.num_heads, width // self.num_heads),
        use_bias=self.qkv_bias,
        kernel_init=init,
        dtype=self.dtype,
        name=name,
      )(x)

    q = project("query", x_q, self.kernel_init)
    k = project("key", x_kv, self.kernel_init)
    v = project("value", x_kv, scaled)
    y = self.attend(q, k, v, bias, deterministic)  # (batch, queries, heads, d)
    if self.head_scale == "heads":
      y = self.scale_heads(y)
    if self.inner_norm:
      norm = norms.make(
        self.inner_norm, name="norm", dtype=self.dtype, layout=self.layout
      )
      y = norm(y.reshape(*y.shape[:2], width), not deterministic)
      y = base.split_heads(y, self.num_heads)
    y = nn.DenseGeneral(
      width, axis=(-2, -1), kernel_init=scaled, dtype=self.dtype, name="out"
    )(y)
    if self.head_scale == "out":
      y = self.scale_heads(base.split_heads(y, self.num_heads))
      y = y.reshape(*y.shape[:2], width)
    return y

  def attend(self, q, k, v, bias, deterministic):
    """Returns softmax(q k^T / sqrt(d) + bias) v, (batch, queries, heads, d).

    cuDNN's is fused, see `attn_impl`. XLA's is as jax.nn.dot_product_attention,
    which cannot drop weights and knows no double precision.
    """
    if self.implementation(q, bias, deterministic) == "cudnn":
      return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")
    # Heads before tokens, and q scaled rather than the larger logits: CPUs are
    # faster so.
    q, k, v = (x.swapaxes(1, 2) for x in (q * q.shape[-1] ** -0.5, k, v))
    wide = jnp.promote_types(q.dtype, jnp.float32)
    logits = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=wide)
    weights = nn.softmax(logits if bias is None else logits + bias)
    weights = nn.Dropout(self.dropout)(weights, deterministic)
    y = jnp.einsum("bhqk,bhkd->bhqd", weights.astype(v.dtype), v)
    return y.swapaxes(1, 2)

  def implementation(self, q, bias, deterministic):
    """Returns "xla" or "cudnn"; see `attn_impl.resolve`."""
    asked = {
      "a bias on the logits": bias is not None,
      "dropout of attention weights": self.dropout and not deterministic,
    }
    wanted = [what for what, is_wanted in asked.items() if is_wanted]
    return attn_impl.resolve(self.impl, q.shape[1:], q.dtype, wanted)

  def scale_heads(self, y):  # (batch, queries, heads, d)
    scale = self.param("head_scale", nn.initializers.ones, (self.num_heads,))
    return y * scale.reshape(1, 1, -1, 1).astype(y.dtype)
