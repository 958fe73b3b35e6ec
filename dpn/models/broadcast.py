"""Parameters that all examples of a batch share."""

import jax
import jax.numpy as jnp

_TERMS = 8  # XLA turns products with a vector back into sums


def over_batch(x, batch):
  """Returns x (1, …) repeated for each example, (batch, …).

  The gradient is a sum over the batch. For such a sum XLA on NVIDIA GPUs stores
  the batch innermost, also in the residual stream of all blocks, so that
  LayerNorm's statistics become separate kernels and matrix products need
  transposes. On these GPUs the sum is therefore a product of matrices.
  """

  def tile(x, times):
    return jnp.broadcast_to(x, (times, *x.shape[1:]))

  def product(x):
    first = tile(jnp.eye(1, _TERMS, dtype=x.dtype), batch)  # exact: 1·x + 0 …
    return jnp.tensordot(first, tile(x, _TERMS), 1, precision="highest")

  default = lambda x: tile(x, batch)
  return jax.lax.platform_dependent(x, cuda=product, default=default)
