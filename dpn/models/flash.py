"""Flash attention by cuDNN, where it works.

It never writes the (queries, keys) weights to memory, but supports only half
precision, some head sizes and some devices. Instead of repeating its rules,
`choose_impl` tries it once per shape and compares the result with XLA's.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

IMPLS = ("auto", "xla", "cudnn")
# In bfloat16 the kernels differ by about 1%, with an unmasked token far more.
_TOLERANCE = 0.1
_ASSUMED = contextvars.ContextVar("assumed", default="")


def choose_impl(
  impl: str, shape: tuple[int, int, int], dtype: jnp.dtype, plain: bool
) -> str:
  """Returns which kernel computes attention, "xla" or "cudnn".

  Args:
    impl: one of `IMPLS`.
    shape: (tokens, heads, head size) of queries, keys and values.
    dtype: of queries, keys and values.
    plain: there is neither a bias on the logits nor dropout of the weights.

  Raises:
    ValueError: impl is "cudnn", which does not work here.
  """
  assumed = _ASSUMED.get()
  if "xla" in (impl, assumed):
    return "xla"
  problem: str | None = (
    "it is not used with a bias on the logits or attn_dropout"
  )
  if plain and assumed == "cudnn" and jnp.dtype(dtype).itemsize == 2:
    problem = None
  elif plain:
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

  It works if its output and each of its gradients are within `_TOLERANCE` of
  XLA's, by norm. `shape` is (tokens, heads, head size).
  """
  if dtype.itemsize != 2:
    return f"the dtype is {dtype.name}"
  if jax.default_backend() != "gpu":
    return f"the device is a {jax.default_backend().upper()}"
  try:
    # The caller may be tracing a model: run now, outside of that trace.
    with jax.ensure_compile_time_eval():
      found, wanted = (
        trial(attend, shape, dtype)
        for attend in (cudnn_attention, jax.nn.dot_product_attention)
      )
  except Exception as e:  # whatever failed, XLA's kernel still works
    problem = str(e)
  else:
    pairs = zip(found, wanted, strict=True)
    norm = np.linalg.norm
    error = np.max([norm(x - y) / norm(y) for x, y in pairs])  # or NaN
    problem = f"it differs from XLA's by {error:.0%}"
    if error < _TOLERANCE:
      return None
  logging.warning("No cuDNN attention for %s %s: %s", shape, dtype, problem)
  return problem


def cudnn_attention(q, k, v):
  """Returns softmax(q k^T / sqrt(d)) v by cuDNN's flash attention.

  JAX refuses to differentiate it for an odd number of tokens, as with a class
  token, so we pad to an even number and mask the padded token. Arguments and
  result are as in `attention.attention`.
  """
  attend = jax.nn.dot_product_attention
  fused = functools.partial(attend, implementation="cudnn")
  queries, keys = q.shape[1], k.shape[1]
  if queries % 2 == keys % 2 == 0:
    return fused(q, k, v)
  even = lambda x: jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))
  # Computed from q so that jax.vmap (over seeds, say) batches the lengths, too.
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
  """Returns the output and gradients of an attention for random inputs.

  All logits are near -8, so an unmasked padded token, whose logit is 0, would
  take nearly all of the weight.
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
def assume(impl: str):
  """Traces attention with this kernel, whatever works on the devices here.

  Args:
    impl: "xla", to count its FLOPs; "cudnn", in half precision only, to compile
      for GPUs that are elsewhere; or "", to assume nothing.
  """
  token = _ASSUMED.set(impl)
  try:
    yield
  finally:
    _ASSUMED.reset(token)
