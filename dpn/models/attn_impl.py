"""Which program computes attention: XLA's, or cuDNN's fused one.

cuDNN's never writes the (queries, keys) weights to memory, but knows only half
precision, some head sizes and some devices. Rather than to repeat its rules,
`auto` tries it: forward and backward on one example, once for each shape, when
the model is first traced.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from absl import logging

from dpn import errors

IMPLS = ("auto", "xla", "cudnn")


def check(impl: str):
  """Raises ValueError naming the nearest if `impl` is unknown."""
  if impl not in IMPLS:
    raise ValueError(errors.unknown("attn_impl", impl, IMPLS))


def resolve(
  impl: str,
  shape: tuple[int, int, int],
  dtype: jnp.dtype,
  unsupported: Sequence[str] = (),
) -> str:
  """Returns "xla" or "cudnn".

  Args:
    impl: one of `IMPLS`.
    shape: (tokens, heads, head size) of queries, keys and values.
    dtype: of them.
    unsupported: what is wanted that cuDNN is not used for, in words.

  Raises:
    ValueError: cudnn is asked for and cannot do it here.
  """
  check(impl)
  if impl == "xla":
    return "xla"
  if unsupported:
    problem = f"it is not used with {' and '.join(unsupported)}"
  else:
    problem = probe(tuple(shape), jnp.dtype(dtype))
  if problem is None:
    return "cudnn"
  if impl == "cudnn":
    raise ValueError(
      f"attn_impl='cudnn' does not work here: {problem}. It needs an NVIDIA "
      "GPU and dtype_mm='bfloat16'; attn_impl='auto' uses it where it works."
    )
  return "xla"


@functools.cache
def probe(shape: tuple[int, int, int], dtype: jnp.dtype) -> str | None:
  """Returns why cuDNN's attention fails at this shape here; None if it works.

  Args:
    shape: (tokens, heads, head size).
    dtype: of queries, keys and values.
  """
  if jax.default_backend() != "gpu":
    return f"the device is a {jax.default_backend().upper()}"
  if dtype.itemsize != 2:
    return f"the dtype is {dtype.name}"
  try:
    # Also when a model is just being traced: run, do not trace this as well.
    with jax.ensure_compile_time_eval():
      attend(jnp.ones((1, *shape), dtype))
  except Exception as e:  # whatever it is, XLA's program will do
    logging.info("No cuDNN attention for %s %s: %s", shape, dtype, e)
    return str(e)
  return None


def attend(x: jax.Array):
  """Runs cuDNN's attention of x over itself, and its gradient."""

  def total(x):
    y = jax.nn.dot_product_attention(x, x, x, implementation="cudnn")
    return y.astype(jnp.float32).sum()

  jax.block_until_ready(jax.jit(jax.value_and_grad(total))(x))
