"""Multi-head dot-product attention with big_vision's parameter tree."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn.models import flash, init, norms, rotary
from dpn.models.dense import DenseGeneral
from dpn.models.norms import base

# The factor on queries times keys: 1 / sqrt(d); 1; or one learned for each
# head, as in arXiv 2111.09883, Section 3.3.
LOGIT_SCALES = ("sqrt", "one", "learned")
_MAX_LOGIT_SCALE = 100.0


class Attention(nn.Module):
  """Attention of `x_q` over `x_kv` (arXiv 1706.03762, Section 3.2.2).

  Parameters, with H heads of d channels: `query`, `key`, `value` with kernels
  (width, H, d), and `out` with kernel (H, d, width). `query_ln`, `key_ln`
  (arXiv 2302.05442, Section 2) and `value_ln` normalize the d channels of each
  head, `norm` the concatenated heads before `out`. `logit_scale` (H,) is the
  logarithm of a learned factor. With a `prefix`, `query_prefix`, `key_prefix`
  and `value_prefix` project the tokens around the patches.
  """

  num_heads: int
  head_dim: int | None = None  # d; None: width / num_heads
  qkv_bias: bool = True
  dropout: float = 0.0  # of the attention weights
  make_norm: Callable[..., nn.Module] | None = None  # name → `norm`
  make_qk_norm: Callable[..., nn.Module] | None = None  # name → `query_ln`, …
  make_v_norm: Callable[..., nn.Module] | None = None  # name → `value_ln`
  logit_scale: str = "sqrt"  # one of `LOGIT_SCALES`
  rope: Callable[..., tuple] | None = None  # see `rotary.ROPES`
  prefix: norms.TokenGrid | None = None  # says which tokens are patches
  head_scale: str = "none"  # see `placement.Placement`
  kernel_init: Callable = init.INITS["big_vision"].dense
  init_gain: float = 1.0  # factor on the initial `value` and `out` kernels
  dtype: Any = jnp.float32
  impl: str = "xla"  # see `flash.choose_impl`

  @nn.compact
  def __call__(self, x_q, x_kv, bias=None, deterministic=True, out=None):
    """Returns (batch, queries, width).

    Args:
      x_q: (batch, queries, width).
      x_kv: (batch, keys, width).
      bias: (1, heads, queries, keys), added to the logits, or None.
      deterministic: no dropout, and running statistics are only read.
      out: a dict that gains the queries and keys, (batch, tokens, heads, d),
        as they are compared, and the bias.
    """
    width = x_q.shape[-1]
    scaled = init.scaled(self.kernel_init, self.init_gain)

    def project(name, x, kernel_init):
      dense = lambda name: DenseGeneral(
        (self.num_heads, self.head_dim or width // self.num_heads),
        use_bias=self.qkv_bias,
        kernel_init=kernel_init,
        dtype=self.dtype,
        name=name,
      )
      return (
        self.prefix.apart(dense, name, x) if self.prefix else dense(name)(x)
      )

    q = project("query", x_q, self.kernel_init)
    k = project("key", x_kv, self.kernel_init)
    v = project("value", x_kv, scaled)
    if self.make_qk_norm:
      q = self.make_qk_norm(name="query_ln")(q, not deterministic)
      k = self.make_qk_norm(name="key_ln")(k, not deterministic)
    if self.make_v_norm:
      v = self.make_v_norm(name="value_ln")(v, not deterministic)
    angles, pairs = self.rope(self, q.shape[-1]) if self.rope else (None, "")
    if angles is not None:
      q, k = (rotary.rotate(x, angles, pairs) for x in (q, k))
    if self.logit_scale != "sqrt":
      q = self.scale_logits(q)
    if out is not None:
      out |= {"query": q, "key": k, "attn_bias": bias}
    y = self.attend(q, k, v, bias, deterministic)  # (batch, queries, heads, d)
    if self.head_scale == "heads":
      y = self.scale_heads(y)
    if self.make_norm:
      y = y.reshape(*y.shape[:2], -1)
      y = self.make_norm(name="norm")(y, not deterministic)
      y = base.split_heads(y, self.num_heads)
    y = DenseGeneral(
      width, num_axes=2, kernel_init=scaled, dtype=self.dtype, name="out"
    )(y)  # (batch, queries, width)
    if self.head_scale == "out":
      y = self.scale_heads(base.split_heads(y, self.num_heads))
      y = y.reshape(*y.shape[:2], width)
    return y

  def attend(self, q, k, v, bias, deterministic):
    """Returns softmax(q k^T / sqrt(d) + bias) v, (batch, queries, heads, d).

    Without cuDNN it is written like jax.nn.dot_product_attention, which can
    neither drop weights nor compute in double precision.
    """
    dropout = 0.0 if deterministic else self.dropout
    plain = bias is None and not dropout
    if flash.choose_impl(self.impl, q.shape[1:], q.dtype, plain) == "cudnn":
      return flash.cudnn_attention(q, k, v)
    if dropout:
      drop = nn.Dropout(dropout, deterministic=False)
      return attention(q, k, v, bias, drop)
    # Accelerators recompute the weights in the backward pass faster than they
    # write and read (queries, keys) numbers for each head.
    return jax.checkpoint(attention)(q, k, v, bias)

  def scale_logits(self, q):  # (batch, queries, heads, d)
    """Returns queries scaled to give `logit_scale` after 1 / sqrt(d)."""
    root = q.shape[-1] ** 0.5
    if self.logit_scale == "one":
      return q * root
    start = nn.initializers.constant(-math.log(root))
    log = self.param("logit_scale", start, (self.num_heads,))
    factor = jnp.exp(jnp.minimum(log, math.log(_MAX_LOGIT_SCALE)))
    return (q * (root * factor).reshape(1, 1, -1, 1)).astype(q.dtype)

  def scale_heads(self, y):  # (batch, queries, heads, d)
    scale = self.param("head_scale", nn.initializers.ones, (self.num_heads,))
    return (y * scale.reshape(1, 1, -1, 1)).astype(y.dtype)


def attention(q, k, v, bias=None, drop=lambda weights: weights):
  """Returns softmax(q k^T / sqrt(d) + bias) v, (batch, queries, heads, d).

  Args:
    q: (batch, queries, heads, d).
    k: (batch, keys, heads, d).
    v: likewise.
    bias: (1, heads, queries, keys), or None.
    drop: what happens to the weights before they are used.
  """
  weights = drop(attention_weights(q, k, bias))
  v = v.swapaxes(1, 2)
  y = jnp.einsum("bhqk,bhkd->bhqd", weights.astype(v.dtype), v)
  return y.swapaxes(1, 2)


def attention_weights(q, k, bias=None):
  """Returns softmax(q k^T / sqrt(d) + bias), (batch, heads, queries, keys).

  In float32 or wider; each row sums to 1. Arguments as in `attention`.
  """
  # Heads before tokens, and q scaled instead of the larger logits: both are
  # faster on CPU.
  q, k = (x.swapaxes(1, 2) for x in (q * q.shape[-1] ** -0.5, k))
  wide = jnp.promote_types(q.dtype, jnp.float32)
  logits = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=wide)
  return nn.softmax(logits if bias is None else logits + bias)


def add_maps(out: Mapping[str, Any]):
  """Adds `attention_maps` to the intermediates of every attention in `out`.

  The maps are recomputed from queries, keys and bias, since flash attention
  never stores them. `out` comes from a `vit.Model`; ValueError if a block of
  your own did not leave its queries and keys there.
  """
  found = {k: v for k, v in out["encoder"].items() if k.startswith("block")}
  if "pool" in out:
    found["pool"] = out["pool"]
  for name, inner in found.items():
    if not {"query", "key"} <= inner.keys():
      raise ValueError(
        f"attention_maps: the intermediates of {name} hold no 'query' and "
        f"'key', only {', '.join(sorted(inner))}. Let the block call "
        "attention.Attention with out=…, as encoder.EncoderBlock does."
      )
    q, k, bias = map(inner.get, ("query", "key", "attn_bias"))
    inner["attention_maps"] = attention_weights(q, k, bias)


def of_block(config, where, tokens, make_norm) -> Attention:
  """Returns the attention of a block with these options, placement and tokens.

  `make_norm(name=…)` makes the normalizer of the concatenated heads.
  """
  if where.prefix_qkv and not sum(tokens.around):
    raise ValueError(
      f"block_ln={config.block_ln!r} projects class token and registers apart, "
      "and this block sees none. Use pool_type='tok' without cls_blocks, or "
      "registers=4."
    )
  bind = lambda choice: functools.partial(
    config.bind(choice), dtype=config.dtype
  )
  # Named after Flax's class, so that parameter names match big_vision's.
  return Attention(
    config.num_heads,
    config.head_dim,
    qkv_bias=config.qkv_bias,
    dropout=config.attn_dropout,
    make_norm=make_norm if where.sa_inner else None,
    make_qk_norm=bind("qk_norm"),
    make_v_norm=bind("v_norm"),
    rope=lambda module, d: config.bind("rope")(module, tokens, d),
    logit_scale=config.logit_scale,
    prefix=tokens if where.prefix_qkv else None,
    head_scale=where.head_scale,
    kernel_init=config.inits.dense,
    init_gain=where.weight_gain,
    dtype=config.dtype,
    impl=config.attn_impl,
    name="MultiHeadDotProductAttention_0",
  )


def check(config):
  """Raises ValueError if attention options of an `encoder.Config` conflict."""
  if config.head_dim is None and config.width % config.num_heads:
    raise ValueError(
      f"width={config.width} must be a multiple of num_heads={config.num_heads}"
      ", or give head_dim."
    )
  d = config.head_dim or config.width // config.num_heads
  if config.rope != "none" and d % 4:
    raise ValueError(
      f"rope={config.rope!r} turns pairs of channels by rows and by columns: "
      f"head_dim or width / num_heads must be a multiple of 4, got {d}."
    )
  scaled = any(where.head_scale == "out" for where in config.block_placements)
  if scaled and config.width % config.num_heads:
    raise ValueError(
      f"head_scale='out' scales width / num_heads channels each: width="
      f"{config.width} must be a multiple of num_heads={config.num_heads}."
    )
  for choice in ("qk_norm", "v_norm"):
    if not config.bind(choice).func.PER_TOKEN:
      raise ValueError(
        f"{choice}={getattr(config, choice)!r} has statistics over several "
        f"tokens. Use one of {', '.join(norms.QK_NORMS)}."
      )
