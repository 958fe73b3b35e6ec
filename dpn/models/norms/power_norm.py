"""PowerNorm (arXiv 2003.07845, Algorithm 2): running second moments.

Every channel is divided by the root of its second moment over batch and tokens,
a running one after a warmup. The backward pass is not the derivative of this:
it subtracts a running estimate of the gradient along the normalized output.

The estimate is known only after the backward pass, so no forward pass can store
it. It is therefore an input of the custom derivative, and *its cotangent is its
next value*. It is kept in Flax's collection for such inputs: the training step
also differentiates with respect to `OVERWRITE_WITH_GRADIENT` and stores the
gradient as the new value. Otherwise the estimate, and with it the correction,
stays zero.

Differs from the paper, like the code used for the comparison in arXiv
2112.02624: each head's channels are first divided by their root mean square.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen import fp8_ops

from dpn.models.norms import base

OVERWRITE_WITH_GRADIENT = fp8_ops.OVERWRITE_WITH_GRADIENT
DECAY = 0.9  # of both running estimates


@jax.custom_vjp
def divide(x, forward_rms, backward_rms, ema):
  """Returns x / forward_rms, with PowerNorm's backward pass.

  Args:
    x: (batch, tokens, width).
    forward_rms: (1, 1, width).
    backward_rms: (1, 1, width), by which the gradient is divided.
    ema: (1, 1, width), whose cotangent is its next value.
  """
  return _divide_forward(x, forward_rms, backward_rms, ema)[0]


def _divide_forward(x, forward_rms, backward_rms, ema):
  z = x / forward_rms
  return z, (z, backward_rms, ema)


def _divide_backward(residuals, grad):
  z, backward_rms, ema = residuals
  grad = grad - (1 - DECAY) * ema * z
  ema = ema + (grad * z).mean(axis=(0, 1), keepdims=True)
  zeros = jnp.zeros_like(backward_rms)
  return grad / backward_rms, zeros, zeros, ema


divide.defvjp(_divide_forward, _divide_backward)


class PowerNorm(base.Normalizer):
  """x / sqrt(E[x^2] + eps) * scale + bias.

  Attributes:
    warmup: training steps in which each batch is divided by its own second
      moment, and the running one also averages over all steps so far.
  """

  PER_TOKEN = False

  warmup: int = 3000

  @nn.compact
  def __call__(self, x, train=False):  # (batch, tokens, width)
    x = self.upcast(x)
    x = base.group_rms(x, self.tokens.num_heads, self.eps)
    width = (x.shape[-1],)
    phi = self.variable("batch_stats", "phi", jnp.ones, width)
    step = self.variable("batch_stats", "step", jnp.zeros, (), jnp.int32)
    if self.is_initializing() or train:
      ema = self.variable(OVERWRITE_WITH_GRADIENT, "ema", jnp.zeros, width)
    if self.is_initializing() or not train:
      return self.scale_and_bias(x / self.root(phi.value, x))

    count = step.value + 1
    psi = jnp.square(x).mean(axis=(0, 1))
    average = phi.value + (psi - phi.value) / count
    new_phi = jnp.where(count < self.warmup, average, phi.value)
    new_phi = DECAY * new_phi + (1 - DECAY) * psi
    forward = jnp.where(count <= self.warmup, psi, phi.value)
    backward = jnp.where(count < self.warmup, psi, new_phi)
    z = divide(
      x,
      self.root(forward, x),
      self.root(backward, x),
      base.along_width(ema.value, x),
    )
    phi.value, step.value = new_phi.astype(phi.value.dtype), count
    return self.scale_and_bias(z)

  def root(self, second_moment, x):
    return jnp.sqrt(base.along_width(second_moment, x) + self.eps)
