"""Multi-head dot-product attention with big_vision's parameter tree."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from dpn.models import init
from dpn.models.norms import base

IMPLS = ("auto", "xla", "cudnn")
_MOST_ERROR = 0.1  # of what cuDNN computes, see `probe_cudnn`
_ONLY_XLA = contextvars.ContextVar("only_xla", default=False)


class Attention(nn.Module):
  """Attention of `x_q` over `x_kv` (arXiv 1706.03762, Section 3.2.2).

  Parameters, with H heads of d = width / H channels: `query`, `key`, `value`
  with kernels (width, H, d), and `out` with kernel (H, d, width).

  Attributes:
    num_heads: H.
    qkv_bias: whether query, key and value have biases.
    dropout: rate, of the attention weights.
    make_norm: returns a normalizer of that name, for the concatenated heads
      before `out`; None for none.
    make_qk_norm: likewise, for the d channels of each head's queries and keys,
      `query_ln` and `key_ln` (arXiv 2302.05442, Section 2).
    head_scale: see `placement.Placement`.
    kernel_init: of all four kernels.
    init_gain: factor on the initial `value` and `out` kernels.
    dtype: of the matrix products and the result.
    impl: one of `IMPLS`, see `choose_impl`.
  """

  num_heads: int
  qkv_bias: bool = True
  dropout: float = 0.0
  make_norm: Callable[..., nn.Module] | None = None
  make_qk_norm: Callable[..., nn.Module] | None = None
  head_scale: str = "none"
  kernel_init: Callable = init.INITS["big_vision"].dense
  init_gain: float = 1.0
  dtype: Any = jnp.float32
  impl: str = "xla"

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
      return nn.DenseGeneral(
        (self.num_heads, width // self.num_heads),
        use_bias=self.qkv_bias,
        kernel_init=kernel_init,
        dtype=self.dtype,
        name=name,
      )(x)

    q = project("query", x_q, self.kernel_init)
    k = project("key", x_kv, self.kernel_init)
    v = project("value", x_kv, scaled)
    if self.make_qk_norm:
      q = self.make_qk_norm(name="query_ln")(q, not deterministic)
      k = self.make_qk_norm(name="key_ln")(k, not deterministic)
    if out is not None:
      out |= {"query": q, "key": k, "attn_bias": bias}
    y = self.attend(q, k, v, bias, deterministic)  # (batch, queries, heads, d)
    if self.head_scale == "heads":
      y = self.scale_heads(y)
    if self.make_norm:
      y = y.reshape(*y.shape[:2], width)
      y = self.make_norm(name="norm")(y, not deterministic)
      y = base.split_heads(y, self.num_heads)
    y = nn.DenseGeneral(
      width, axis=(-2, -1), kernel_init=scaled, dtype=self.dtype, name="out"
    )(y)  # (batch, queries, width)
    if self.head_scale == "out":
      y = self.scale_heads(base.split_heads(y, self.num_heads))
      y = y.reshape(*y.shape[:2], width)
    return y

  def attend(self, q, k, v, bias, deterministic):
    """Returns softmax(q k^T / sqrt(d) + bias) v, (batch, queries, heads, d).

    XLA's is written as in jax.nn.dot_product_attention, which can neither drop
    weights nor compute in double precision.
    """
    plain = bias is None and (deterministic or not self.dropout)
    if choose_impl(self.impl, q.shape[1:], q.dtype, plain) == "cudnn":
      return cudnn_attention(q, k, v)
    weights = attention_weights(q, k, bias)
    weights = nn.Dropout(self.dropout)(weights, deterministic)
    v = v.swapaxes(1, 2)
    y = jnp.einsum("bhqk,bhkd->bhqd", weights.astype(v.dtype), v)
    return y.swapaxes(1, 2)

  def scale_heads(self, y):  # (batch, queries, heads, d)
    scale = self.param("head_scale", nn.initializers.ones, (self.num_heads,))
    return y * scale.reshape(1, 1, -1, 1).astype(y.dtype)


def attention_weights(q, k, bias=None):
  """Returns softmax(q k^T / sqrt(d) + bias), (batch, heads, queries, keys).

  Args:
    q: (batch, queries, heads, d).
    k: (batch, keys, heads, d).
    bias: (1, heads, queries, keys), or None.

  Returns:
    float32 or wider; each row sums to 1.
  """
  # Heads before tokens, and q scaled instead of the larger logits: both are
  # faster on CPU.
  q, k = (x.swapaxes(1, 2) for x in (q * q.shape[-1] ** -0.5, k))
  wide = jnp.promote_types(q.dtype, jnp.float32)
  logits = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=wide)
  return nn.softmax(logits if bias is None else logits + bias)


def add_maps(out: Mapping[str, Any]):
  """Adds `attention_maps` to the intermediates of every attention in `out`.

  They are `attention_weights` of its queries, keys and bias, whatever kernel
  the attention itself ran on.

  Args:
    out: of a `vit.Model`.

  Raises:
    ValueError: a block of one's own did not leave its queries and keys there.
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
    inner["attention_maps"] = attention_weights(
      inner["query"], inner["key"], inner.get("attn_bias")
    )


def choose_impl(
  impl: str, shape: tuple[int, int, int], dtype: jnp.dtype, plain: bool
) -> str:
  """Returns which kernel computes attention, "xla" or "cudnn".

  cuDNN's flash attention never writes the (queries, keys) weights to memory,
  but supports only half precision, some head sizes and some devices. Instead of
  repeating its rules, `auto` tries it once per shape, forward and backward, and
  compares what comes out with XLA's.

  Args:
    impl: one of `IMPLS`.
    shape: (tokens, heads, head size) of queries, keys and values.
    dtype: of them.
    plain: neither a bias on the logits nor dropout of weights is wanted.

  Raises:
    ValueError: cudnn is asked for and does not work here.
  """
  if impl == "xla" or _ONLY_XLA.get():
    return "xla"
  problem = "it is not used with a bias on the logits or attn_dropout"
  if plain:
    problem = probe_cudnn(tuple(shape), jnp.dtype(dtype))
  if problem is None:
    return "cudnn"
  if impl == "cudnn":
    raise ValueError(
      f"attn_impl='cudnn' does not work here: {problem}. It needs an NVIDIA "
      "GPU and dtype_mm='bfloat16'; attn_impl='auto' uses it where it works."
    )
  return "xla"


@functools.cache
def probe_cudnn(shape: tuple[int, int, int], dtype: jnp.dtype) -> str | None:
  """Returns why cuDNN's attention fails at this shape here; None if it works.

  It works if what it computes, and each gradient, is that of XLA's to 10% in
  norm: bfloat16 leaves about 1%, a token too much far more.

  Args:
    shape: (tokens, heads, head size).
    dtype: of queries, keys and values.
  """
  if jax.default_backend() != "gpu":
    return f"the device is a {jax.default_backend().upper()}"
  if dtype.itemsize != 2:
    return f"the dtype is {dtype.name}"
  try:
    # A model may just be being traced: run this now, do not trace it as well.
    with jax.ensure_compile_time_eval():
      found, wanted = (
        trial(attend, shape, dtype)
        for attend in (cudnn_attention, jax.nn.dot_product_attention)
      )
  except Exception as e:  # whatever it is, XLA's kernel will do
    problem = str(e)
  else:
    pairs = zip(found, wanted, strict=True)
    norm = np.linalg.norm
    error = np.max([norm(x - y) / norm(y) for x, y in pairs])  # NaN if one is
    problem = f"it differs from XLA's by {error:.0%}"
    if error < _MOST_ERROR:
      return None
  logging.warning("No cuDNN attention for %s %s: %s", shape, dtype, problem)
  return problem


def cudnn_attention(q, k, v):
  """Returns softmax(q k^T / sqrt(d)) v by cuDNN's flash attention.

  JAX refuses to train it with an odd number of tokens, which a class token
  brings: then there is one more, and the lengths say that it is none.

  Args:
    q: (batch, queries, heads, d).
    k: (batch, keys, heads, d).
    v: likewise.
  """
  fused = functools.partial(
    jax.nn.dot_product_attention, implementation="cudnn"
  )
  queries, keys = q.shape[1], k.shape[1]
  if queries % 2 == keys % 2 == 0:
    return fused(q, k, v)
  even = lambda x: jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))
  # Of q, so that jax.vmap, as over seeds, makes them one for each example, too.
  length = lambda n: n + 0 * q[:, 0, 0, 0].astype(jnp.int32)
  y = fused(
    *map(even, (q, k, v)),
    query_seq_lengths=length(queries),
    key_value_seq_lengths=length(keys),
  )
  return y[:, :queries]


def trial(
  attend: Callable, shape: tuple[int, int, int], dtype: jnp.dtype
) -> list[np.ndarray]:
  """Returns what attention computes, and its gradients, for made-up inputs.

  Logits are about -8, so that a token of zeros, were it not left out, would
  have nearly all the weight.

  Args:
    attend: (q, k, v) → y.
    shape: (tokens, heads, head size).
    dtype: of q, k and v.
  """
  q, k, v, dy = jax.random.normal(jax.random.key(0), (4, 1, *shape))
  scale = (8 / shape[-1] ** 0.5) ** 0.5
  q, k = scale * (1 + 0.5 * q), -scale * (1 + 0.5 * k)
  q, k, v, dy = (x.astype(dtype) for x in (q, k, v, dy))

  @jax.jit
  def run(q, k, v, dy):
    y, pull_back = jax.vjp(attend, q, k, v)
    return y, *pull_back(dy)

  return [np.asarray(x, np.float32) for x in run(q, k, v, dy)]


@contextlib.contextmanager
def only_xla():
  """What is traced inside has XLA's attention, whose operations one can see."""
  token = _ONLY_XLA.set(True)
  try:
    yield
  finally:
    _ONLY_XLA.reset(token)
