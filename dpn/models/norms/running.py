"""Normalizers with running statistics: BatchNorm, PRepBN, SwitchableNorm.

The statistics are in the collection `batch_stats`: updated when `train` is set
(the collection must be mutable then), read otherwise. Under jit, the mean of a
batch that is sharded over devices is the global batch's mean, so the statistics
are synchronized without further code.
"""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn.models.norms import base
from dpn.models.norms.stateless import LayerNorm


class Running(base.Normalizer):
  """Base with running mean and variance of every channel.

  Attributes:
    momentum: the weight of the newest batch in the running statistics.
  """

  PER_TOKEN = False

  momentum: float = 0.1

  def batch_moments(self, x, train, update=True):
    """Returns (mean, var), each (1, …, width), of the batch or running.

    As in PyTorch, a batch is normalized by its biased variance and the running
    average uses the unbiased one. It moves only if the scalar `update` is true.
    """
    mean = self.variable("batch_stats", "mean", jnp.zeros, (x.shape[-1],))
    var = self.variable("batch_stats", "var", jnp.ones, (x.shape[-1],))
    if not train:
      return tuple(base.along_width(v.value, x) for v in (mean, var))
    batch_mean, batch_var = moments(x, base.batch_axes(x))
    if not self.is_initializing():
      count = x.size // x.shape[-1]
      unbiased = batch_var.ravel() * (count / max(count - 1, 1))
      weight = jnp.where(update, self.momentum, 0.0)
      for kept, new in ((mean, batch_mean.ravel()), (var, unbiased)):
        mixed = (1 - weight) * kept.value + weight * new
        kept.value = mixed.astype(kept.value.dtype)
    return batch_mean, batch_var


class BatchNorm(Running):
  """Each channel over batch and tokens (arXiv 1502.03167, Algorithm 1)."""

  @nn.compact
  def __call__(self, x, train=False):  # (…, width)
    x = self.upcast(x)
    mean, var = self.batch_moments(x, train)
    return self.scale_and_bias(x - mean, jax.lax.rsqrt(var + self.eps))


class PRepBN(Running):
  """Turns from LayerNorm into RepBN in training (arXiv 2405.11582).

  y = λ LN(x) + (1 - λ) RepBN(x), Equation 4, with RepBN(x) = BN(x) + eta x,
  Equation 5. λ falls from 1 to 0 over `steps` training steps, which start after
  the first `warmup`; only from then on do the running statistics move. The
  count of training steps is saved with these statistics, in `batch_stats`.

  Evaluation uses RepBN alone, which is linear, so evaluations before λ reaches
  0 mean little. As eta x is not bounded, kernels have to start small, as with
  `weight_init="deit"`. LayerNorm's parameters are `ln`, its epsilon is 1e-6.

  Attributes:
    warmup: training steps of LayerNorm alone.
    steps: number of training steps over which λ falls, 1 or more.
  """

  warmup: int = 0
  steps: int = 300_000

  @nn.compact
  def __call__(self, x, train=False):  # (…, width)
    ln = LayerNorm(scale_init=self.scale_init, name="ln")
    count = self.variable("batch_stats", "step", jnp.zeros, (), jnp.int32)
    eta = self.param("eta", nn.initializers.ones, (1,))
    x = self.upcast(x)
    ramp = count.value - self.warmup  # of steps before this one
    mean, var = self.batch_moments(x, train, update=ramp >= 0)
    rep = self.scale(x - mean, jax.lax.rsqrt(var + self.eps))
    rep = self.bias(rep + base.along_width(eta, x) * x)
    if not (train or self.is_initializing()):
      return rep
    if not self.is_initializing():
      count.value += 1
    fraction = jnp.clip(ramp.astype(x.dtype) / max(self.steps, 1), 0, 1)
    return self.cast((1 - fraction) * ln(x) + fraction * rep)


class SwitchableNorm(Running):
  """A learned mixture of instance, layer and batch statistics.

  arXiv 1806.10779, Equations 3 and 5: one set of softmax weights for the means,
  another for the variances. The paper's layer statistics are over a whole
  `image`; `token` takes each token's, as LayerNorm in a Transformer does.

  Differs from the paper: batch statistics for evaluation are running averages
  instead of coming from a separate pass over the training set.
  """

  layer: Literal["image", "token"] = "image"

  @nn.compact
  def __call__(self, x, train=False):  # (batch, tokens, width)
    x = self.upcast(x)
    layer_axes = (1, 2) if self.layer == "image" else (2,)
    means, variances = zip(
      moments(x, (1,)),
      moments(x, layer_axes),
      self.batch_moments(x, train),
      strict=True,
    )
    mean = self.mix("mean_weight", means)
    var = self.mix("var_weight", variances)
    return self.scale_and_bias(x - mean, jax.lax.rsqrt(var + self.eps))

  def mix(self, name, statistics):
    weight = self.param(name, nn.initializers.ones, (3,))
    weight = nn.softmax(weight.astype(statistics[0].dtype))
    return sum(weight[i] * s for i, s in enumerate(statistics))


def moments(x, axes):
  """Returns mean and biased variance of x over `axes`, which keep size 1."""
  mean = x.mean(axes, keepdims=True)
  return mean, jnp.square(x - mean).mean(axes, keepdims=True)
