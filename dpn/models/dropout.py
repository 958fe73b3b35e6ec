"""Residual branches dropped at random."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class StochasticDepth(nn.Module):
  """Drops the whole branch of an example (arXiv 1603.09382).

  Scales the others by 1 / (1 - rate); each scanned block has its own rate.
  """

  @nn.compact
  def __call__(self, x, rate):
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    keep = jax.random.bernoulli(self.make_rng("dropout"), 1.0 - rate, shape)
    return jnp.where(keep, x / (1.0 - rate), 0).astype(x.dtype)
