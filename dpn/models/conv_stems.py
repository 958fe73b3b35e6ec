"""Stems of several convolutions with BatchNorm, instead of one embedding."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from dpn.models import init, norms
from dpn.models.dense import plus_bias

_scaled = nn.initializers.variance_scaling
# Initializers for the 3 x 3 convolutions of `Conv3x3` and for its last one. The
# authors' code counts one pixel of the nine in the fan-out.
KERNELS = {
  "he": (nn.initializers.he_normal(), nn.initializers.lecun_normal()),
  "released": tuple(_scaled(x, "fan_out", "normal") for x in (2 * 9, 1)),
}


class Stem(nn.Module):
  """Base: convolutions `Conv_i`, each followed by a `BatchNorm_i`."""

  width: int  # channels of the result
  side: int  # of a token, in pixels
  dtype: Any = jnp.float32

  def conv(self, i, x, channels, side, **kw):
    """Returns x convolved with kernels of `side` x `side` pixels."""
    sides, name = (side, side), f"Conv_{i}"
    return nn.Conv(channels, sides, dtype=self.dtype, name=name, **kw)(x)

  def norm(self, i, x, train):  # (batch, rows, cols, channels)
    norm = norms.make("batchnorm", name=f"BatchNorm_{i}", dtype=self.dtype)
    y = norm(x.reshape(x.shape[0], -1, x.shape[-1]), train)
    return y.reshape(x.shape)


class HMlp(Stem):
  """The hierarchical MLP of arXiv 2203.09795, Section 5.

  Non-overlapping convolutions of P/4, 2 and 2 pixels, with width / 4, width / 4
  and width channels, so that patches do not see each other. A BatchNorm follows
  each, with GELUs in between.
  """

  kernel_init: Callable = init.INITS["big_vision"].embedding

  @nn.compact
  def __call__(self, x, train=False):  # (batch, rows, cols, channels)
    narrow = self.width // 4
    layers = ((narrow, self.side // 4), (narrow, 2), (self.width, 2))
    for i, (channels, k) in enumerate(layers):
      x = nn.gelu(x, approximate=False) if i else x
      x = self.conv(i, x, channels, k, strides=k, kernel_init=self.kernel_init)
      x = self.norm(i, x, train)
    return x  # (batch, rows / P, cols / P, width)


class _Conv1x1(nn.Module):
  """flax.linen.Conv of single pixels, with `plus_bias`."""

  features: int
  kernel_init: Callable
  dtype: Any

  @nn.compact
  def __call__(self, x):
    shape = (1, 1, x.shape[-1], self.features)
    kernel = self.param("kernel", self.kernel_init, shape, jnp.float32)
    bias = self.param("bias", nn.initializers.zeros, shape[-1:], jnp.float32)
    x, kernel = nn.dtypes.promote_dtype(x, kernel[0, 0], dtype=self.dtype)
    return plus_bias(x @ kernel, bias)


class Conv3x3(Stem):
  """The convolutional stem of ViT_C (arXiv 2106.14881, Section 4).

  log2(P) convolutions of 3 x 3 pixels and stride 2, without biases, each with
  BatchNorm and ReLU; the channels double until there are `width`. Then one of
  1 x 1. With P = 16 it costs about as much as a block, which the paper drops.
  """

  kernels: str = "released"  # one of `KERNELS`

  @nn.compact
  def __call__(self, x, train=False):  # (batch, rows, cols, channels)
    kernel_init, last_init = KERNELS[self.kernels]
    layers = self.side.bit_length() - 1
    kw = {"strides": 2, "padding": 1, "use_bias": False}
    for i in range(layers):
      channels = self.width >> (layers - 1 - i)
      x = self.conv(i, x, channels, 3, kernel_init=kernel_init, **kw)
      x = nn.relu(self.norm(i, x, train))
    last = _Conv1x1(self.width, last_init, self.dtype, name=f"Conv_{layers}")
    return last(x)  # (batch, rows / P, cols / P, width)
