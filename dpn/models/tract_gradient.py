"""TrAct (arXiv 2410.23970): a first layer trained as if its outputs were.

A gradient step of the kernel moves the outputs by x x^T g: along the directions
in which inputs are large, so bright patches count more than dark ones. TrAct
takes the kernel's step whose outputs come closest to a step along g itself.
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x, kernel, regularization: float):
  """Returns x @ kernel. Its kernel's gradient is (x^T x / n + λ I)^-1 x^T g.

  g is the gradient at the result, and n the number of rows of x: of all
  devices, but of one part of the batch with `config.grad_accum`. The gradient
  of x is the usual one.

  Args:
    x: (…, pixels).
    kernel: (pixels, width).
    regularization: λ, in units of a pixel's mean square.
  """
  return x @ kernel


def _forward(x, kernel, regularization):
  return x @ kernel, (x, kernel)


def _backward(regularization, saved, g):
  x, kernel = saved
  wide = jnp.promote_types(x.dtype, jnp.float32)
  rows = x.reshape(-1, x.shape[-1]).astype(wide)
  moments = rows.T @ rows / len(rows)
  moments += regularization * jnp.eye(len(moments), dtype=wide)
  usual = rows.T @ g.reshape(len(rows), -1).astype(wide)
  solved = jax.scipy.linalg.solve(moments, usual, assume_a="pos")
  return g @ kernel.T, solved.astype(kernel.dtype)


matmul.defvjp(_forward, _backward)
