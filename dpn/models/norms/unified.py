"""Unified Normalization (arXiv 2208.01313): a window of second moments.

Every channel is divided by the root of the geometric mean of the last batches'
second moments, not centered; evaluation takes a running average. The backward
pass subtracts a running estimate of the gradient along the normalized output,
which is kept as PowerNorm's is (`power_norm`).

Where the paper and its code differ, this follows the code: the gradient's
factor r is within [1/5, 5], and 1 for the first 1,000 steps or the warmup; the
test for outliers compares the window with the variance of all of its roots.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn.models.norms import base
from dpn.models.norms.power_norm import DECAY, OVERWRITE_WITH_GRADIENT

RATIO_AFTER = 1000  # steps, before which r is 1
MAX_RATIO = 5.0


@jax.custom_vjp
def divide(x, scale, rms, ratio, flags, state):
  """Returns x / rms * scale, with the backward pass of Unified Normalization.

  Args:
    x: (…, width).
    scale: (width,).
    rms: (width,).
    ratio: (width,), r in the paper.
    flags: floats, 0 or 1: `skip`, the batch is an outlier; `alone`, there is no
      mean over the window; `slot` (window, 1), where the window is written.
    state: `ema` (width,) and `window` (window, width), whose cotangents are
      their next values.
  """
  return _forward(x, scale, rms, ratio, flags, state)[0]


def _forward(x, scale, rms, ratio, flags, state):
  z = x / base.along_width(rms, x)
  residuals = z, scale, rms, ratio, flags, state
  return z * base.along_width(scale, x), residuals


def _backward(residuals, grad):
  z, scale, rms, ratio, flags, state = residuals
  wide = lambda vector: base.along_width(vector, z)
  g = grad * wide(scale * ratio)
  along = (g * z).mean(base.batch_axes(z))
  skip, ema = flags["skip"], state["ema"]
  written = jnp.where(skip, ema, along)[None]
  window = jnp.where(flags["slot"], written, state["window"])
  mean = jnp.where(flags["alone"], along, window.mean(axis=0))
  ema = DECAY * ema + (1 - DECAY) * mean
  g = g - wide(jnp.where(skip, mean, ema)) * z
  by_scale = (grad * wide(ratio) * z).sum(base.batch_axes(z))
  zeros = jax.tree.map(jnp.zeros_like, (rms, ratio, flags))
  return g / wide(rms), by_scale, *zeros, {"ema": ema, "window": window}


divide.defvjp(_forward, _backward)


class UnifiedNorm(base.Normalizer):
  """x / sqrt(geometric mean of E[x^2] + eps) * scale + bias.

  Attributes:
    window: number of batches in the mean; 1 divides each by its own moments.
    warmup: training steps in which each batch is divided by its own moments.
    filter_outliers: leave batches out of the window if their second moments
      differ much from it; the authors advise this for images.
  """

  PER_TOKEN = False

  window: int = 4
  warmup: int = 4000
  filter_outliers: bool = False

  @nn.compact
  def __call__(self, x, train=False):  # (…, width)
    if self.window < 1:
      raise ValueError(f"unifiednorm got window={self.window}, expected >= 1.")
    x, width = self.upcast(x), x.shape[-1:]
    start = nn.initializers.constant(self.scale_init)
    scale = self.param("scale", start, width)
    var = self.variable("batch_stats", "var", jnp.ones, width)
    shape = (self.window, *width)
    moments = self.variable("batch_stats", "window", jnp.zeros, shape)
    step = self.variable("batch_stats", "step", jnp.zeros, (), jnp.int32)
    if self.is_initializing() or train:
      own = lambda name, shape: self.variable(
        OVERWRITE_WITH_GRADIENT, name, jnp.zeros, shape
      )
      state = {"ema": own("ema", width), "window": own("window", shape)}
    if self.is_initializing() or not train:
      rms = base.along_width(jnp.sqrt(var.value + self.eps), x)
      return self.bias(x / rms * base.along_width(scale, x))

    count = step.value + 1
    slot = (jnp.arange(self.window) == count % self.window)[:, None]
    # `divide` has a gradient of its own; a logarithm's is NaN at zero.
    batch = jax.lax.stop_gradient(jnp.square(x).mean(base.batch_axes(x)))
    window = jnp.where(slot, batch[None], moments.value)
    geometric = jnp.exp(jnp.log(window).mean(axis=0))
    skip = jnp.asarray(self.window == 1)
    if self.filter_outliers and self.window > 1:
      spread = jnp.sqrt(moments.value).var(ddof=1)
      far = window.mean(axis=0) - geometric > spread * self.window
      skip = (count >= self.warmup) & far.any()
      window = jnp.where(slot & skip, var.value[None], window)
    alone = (count <= self.window) | (count < self.warmup) | skip
    used = jnp.where(alone, batch, geometric)
    ratio = jnp.sqrt((used + self.eps) / (var.value + self.eps))
    fixed = (count <= max(RATIO_AFTER, self.warmup)) | skip
    ratio = jnp.clip(jnp.where(fixed, 1.0, ratio), 1 / MAX_RATIO, MAX_RATIO)
    flags = {"skip": skip, "alone": alone, "slot": slot}
    flags = jax.tree.map(lambda flag: flag.astype(x.dtype), flags)
    state = {name: variable.value for name, variable in state.items()}
    y = divide(x, scale, jnp.sqrt(used + self.eps), ratio, flags, state)
    dtype = var.value.dtype
    moments.value, step.value = window.astype(dtype), count
    var.value = (DECAY * var.value + (1 - DECAY) * used).astype(dtype)
    return self.bias(y)
