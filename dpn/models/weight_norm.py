"""Norms of weights, instead of or alongside norms of activations.

`WEIGHT_NORMS` are functions of `train` that return a context manager. It
reparametrizes every module called within that has a `kernel`: dense layers,
convolutions, the patch embedding and the head, whoever wrote them.
"""

import contextlib
import math
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp


def sigma_reparam(train: bool):
  """W = sigma / s(W) * kernel, s being the largest singular value.

  σReparam (arXiv 2303.06296, Equation 3). Beside `kernel` there are a parameter
  `sigma` (1,), which starts at s(W), and in `batch_stats` the vector `u` of the
  inputs: at first the first right singular vector, updated in training by one
  power iteration per call. Evaluation iterates once more without storing it, as
  the authors' code does. No gradient flows through the iteration.

  Differs from the code, which has one matrix, and so one `sigma`, for queries,
  keys and values. The paper also removes all LayerNorms (`norm="none"`,
  `final_norm=False`) and draws kernels as `weight_init="deit"` does, which
  makes s(W) about 1 at a width of 768 and too small at a width of 64.
  """
  gains: dict[int, tuple] = {}  # a head called twice still iterates once

  def intercept(call, args, kwargs, context):
    module = context.module
    if context.method_name != "__call__":
      return call(*args, **kwargs)
    if module.is_initializing() and not module.has_variable("params", "kernel"):
      y = call(*args, **kwargs)  # may create the kernel; the gain is 1
      if module.has_variable("params", "kernel"):
        _start(module)
      return y
    if not module.has_variable("params", "sigma"):
      return call(*args, **kwargs)
    if id(module) not in gains:
      gains[id(module)] = _gain(module, train), module  # kept: ids are reused
    x, *args = args
    x = (x * gains[id(module)][0]).astype(x.dtype)  # as if W were multiplied
    return call(x, *args, **kwargs)

  return nn.intercept_methods(intercept)


def _matrix(module):
  """Returns the kernel as (inputs, outputs) in float32 or wider."""
  kernel = module.get_variable("params", "kernel")
  features = getattr(module, "features", 0)
  outputs = len(features) if isinstance(features, tuple) else 1
  inputs = kernel.shape[: kernel.ndim - outputs]
  matrix = kernel.reshape(math.prod(inputs), -1)
  return matrix.astype(jnp.promote_types(kernel.dtype, jnp.float32))


def _start(module):
  u, s, _ = jnp.linalg.svd(_matrix(module), full_matrices=False)
  module.param("sigma", lambda key: s[:1])
  module.variable("batch_stats", "u", lambda: u[:, 0])


def _gain(module, train):
  """Returns sigma / s(W), after one power iteration."""
  matrix = _matrix(module)
  fixed = jax.lax.stop_gradient(matrix)
  u = module.variable("batch_stats", "u")
  v = _unit(u.value @ fixed)
  new_u = _unit(fixed @ v)
  if train:
    u.value = new_u
  return module.get_variable("params", "sigma")[0] / (new_u @ matrix @ v)


def _unit(x):
  return x / jnp.maximum(jnp.linalg.norm(x), 1e-12)


WEIGHT_NORMS: Mapping[str, Callable] = {
  "none": lambda train: contextlib.nullcontext(),
  "sigma_reparam": sigma_reparam,
}
