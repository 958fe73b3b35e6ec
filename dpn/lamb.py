"""LAMB (arXiv 1904.00962) as in NVIDIA Apex, DeiT III and ViT-5."""

import functools
import re

import jax
import jax.numpy as jnp
import optax

from dpn import trees

KERNELS = r"(.*/)?kernel"


def scale_by_lamb(
  weight_decay: float = 0.0,
  kernels: str = KERNELS,
  *,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-6,
) -> optax.GradientTransformation:
  """Returns Adam whose updates of kernels are as long as the kernels.

  With u = adam + weight_decay * w, the update of a kernel w is ‖w‖/‖u‖ u; other
  parameters get Adam's. So the length includes decay, and `config.wd` should be
  0. In scanned blocks each block's kernel has its own length. So have, unlike
  in DeiT III and ViT-5, the kernels of queries, keys and values. optax's `lamb`
  also scales the updates of parameters that do not decay.

  `kernels` is a pattern for whole names; `b1`, `b2`, `eps` are Adam's.
  """

  def adapt(path, update, param):
    name = trees.name(path)
    if not re.fullmatch(kernels, name):
      return update
    update = update + weight_decay * param
    axes = tuple(trees.unstacked_axes(name, param.ndim))
    square = lambda x: jnp.square(x).sum(axes, keepdims=True)
    old, new = square(param), square(update)
    ratio = jnp.sqrt(old / jnp.where(new > 0, new, 1))
    return update * jnp.where((old > 0) & (new > 0), ratio, 1)

  return optax.chain(
    optax.scale_by_adam(b1, b2, eps),
    optax.stateless(functools.partial(jax.tree.map_with_path, adapt)),
  )
