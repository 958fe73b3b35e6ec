"""The stem: patches, their embedding, and the LayerNorms around it.

Dual PatchNorm (arXiv 2302.01327, Section 3.3): x = LN(PE(LN(x))).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import einops
import flax.linen as nn
import jax.numpy as jnp

from dpn import errors
from dpn.models import init, norms


@dataclasses.dataclass(frozen=True)
class StemNorms:
  """Which normalizer, if any, stands before and after the embedding."""

  ln0: str | None = None
  ln1: str | None = None
  ln1_after_posemb: bool = False


# Section 3.3 (dpn) and the ablations of Table 6.
STEM_LN = {
  "none": StemNorms(),
  "dpn": StemNorms(ln0="layernorm", ln1="layernorm"),
  "pre": StemNorms(ln0="layernorm"),
  "post": StemNorms(ln1="layernorm"),
  "post_posemb": StemNorms(ln1="layernorm", ln1_after_posemb=True),
  "only_learnable": StemNorms(ln0="affine", ln1="affine"),
  "rmsnorm": StemNorms(ln0="rmsnorm", ln1="rmsnorm"),
  "no_learnable": StemNorms(ln0="standardize", ln1="standardize"),
}


def get_norms(stem_ln: str) -> StemNorms:
  """Returns the entry of `STEM_LN`, or raises naming the nearest one."""
  if stem_ln not in STEM_LN:
    raise ValueError(errors.unknown("stem_ln", stem_ln, STEM_LN))
  return STEM_LN[stem_ln]


def patchify(image, patch_size):
  """Cuts images into flattened patches.

  Args:
    image: (batch, rows * P, cols * Q, channels).
    patch_size: (P, Q) in pixels.

  Returns:
    (batch, rows, cols, P * Q * channels), each patch in the order row, column,
    channel.
  """
  p, q = patch_size
  if image.ndim != 4 or image.shape[1] % p or image.shape[2] % q:
    raise ValueError(
      f"Images of shape {image.shape} (batch, rows, cols, channels) cannot be "
      f"cut into {p}x{q} patches: both sides must be multiples of the patch "
      "size. Resize or crop them in config.input.pp, or change model.variant."
    )
  return einops.rearrange(image, "b (h p) (w q) c -> b h w (p q c)", p=p, q=q)


class PatchEmbedding(nn.Module):
  """Dense projection of flattened patches, stored as a convolution kernel.

  The kernel keeps the shape (P, Q, channels, width), so that a checkpoint of a
  convolutional stem fits any stem unchanged.
  """

  width: int
  patch_size: tuple[int, int]
  kernel_init: Callable = init.INITS["big_vision"].embedding
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, patches):  # (..., P * Q * channels)
    pixels = patches.shape[-1]
    channels = pixels // (self.patch_size[0] * self.patch_size[1])
    kernel = self.param(
      "kernel",
      self.kernel_init,
      (*self.patch_size, channels, self.width),
    )
    bias = self.param("bias", nn.initializers.zeros, (self.width,))
    patches, kernel, bias = nn.dtypes.promote_dtype(
      patches, kernel, bias, dtype=self.dtype
    )
    x = patches @ kernel.reshape(pixels, self.width)
    return x + bias.reshape((1,) * (x.ndim - 1) + (-1,))


class ConvEmbedding(nn.Module):
  """The tokenizer of compact Transformers (arXiv 2104.05704, Section 3.3).

  Each layer is a convolution without bias, ReLU, and max pooling that halves
  the grid. All but the last have `HIDDEN` channels.
  """

  HIDDEN = 64

  width: int
  kernel_size: int
  num_layers: int
  kernel_init: Callable = init.INITS["cct"].embedding
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x):  # (batch, rows, cols, channels)
    k, pad = self.kernel_size, self.kernel_size // 2
    for i in range(self.num_layers):
      x = nn.Conv(
        self.width if i == self.num_layers - 1 else self.HIDDEN,
        (k, k),
        padding=pad,
        use_bias=False,
        kernel_init=self.kernel_init,
        dtype=self.dtype,
        name=f"Conv_{i}",
      )(x)
      x = nn.max_pool(nn.relu(x), (3, 3), (2, 2), padding=((1, 1), (1, 1)))
    return x  # (batch, rows / 2^layers, cols / 2^layers, width)


class Stem(nn.Module):
  """The normalizers of `stem_ln`, named `ln0` and `ln1`.

  Used in three places, each of which is the identity where `stem_ln` has no
  normalizer: x = after_posemb(after(PE(before(patches))) + posemb).
  """

  stem_ln: str
  dtype: Any = jnp.float32

  def setup(self):
    spec = get_norms(self.stem_ln)
    # ln0 sees raw pixels: it stays in float32, whatever the matmuls do.
    self.ln0 = norms.make(spec.ln0) if spec.ln0 else None
    self.ln1 = norms.make(spec.ln1, dtype=self.dtype) if spec.ln1 else None
    self.ln1_after_posemb = spec.ln1_after_posemb

  def before(self, patches):
    return self.ln0(patches) if self.ln0 else patches

  def after(self, x):
    return self.ln1(x) if self.ln1 and not self.ln1_after_posemb else x

  def after_posemb(self, x):
    return self.ln1(x) if self.ln1 and self.ln1_after_posemb else x
