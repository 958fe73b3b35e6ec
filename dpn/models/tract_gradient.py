"""TrAct (arXiv 2410.23970): trains a first layer as if training its outputs.

A gradient step of the kernel moves the outputs by x x^T g: along the directions
in which inputs are large, so bright patches count more than dark ones. TrAct
takes the kernel step that moves the outputs as closely along g as possible.
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def matmul(x, kernel, regularization: float):
  """Returns x @ kernel. The kernel's gradient is (x^T x / n + λ I)^-1 x^T g.

  g is the gradient with respect to the result, and n the number of rows of x,
  over all devices; with `config.grad_accum`, of one part of the batch. The
  gradient of x is the usual one.

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
