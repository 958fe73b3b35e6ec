"""Compact Transformers, for small images (arXiv 2104.05704).

`lite-7/4` is a ViT with patches of 4 pixels and a class token, `cvt-7/4` pools
the sequence instead, `cct-7/3x1` also has one convolution of size 3 for a stem.
The number after the name is the depth. The block, `block_ln="cct"`, follows the
authors' code, not their Equation 1.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

_SHARED = {
  "width": 256,
  "mlp_dim": 512,
  "num_heads": 4,
  "block_ln": "cct",
  "norm_kw": {"eps": 1e-5},
  "gelu": "exact",
  "qkv_bias": False,
  "weight_init": "cct",
  "head_zeroinit": False,
}
VARIANTS: dict[str, dict] = {
  f"{name}-{depth}": {**_SHARED, "depth": depth, **pooling}  # type: ignore[dict-item]
  for name, pooling in {
    "lite": {"pool_type": "tok", "posemb_join_kw": {"cls": True}},
    "cvt": {"pool_type": "seq"},
    "cct": {"pool_type": "seq"},
  }.items()
  for depth in (6, 7)
}


def decode_stem(text: str) -> dict[str, Any]:
  """Returns the options of the stem "3x1": kernel size x convolutions."""
  kernel_size, num_layers = map(int, text.split("x"))
  kw = {"kernel_size": kernel_size, "num_layers": num_layers}
  return {"stem": "conv", "stem_kw": kw}


def conv(image, ln0, ln1, config, *, kernel_size: int = 3, num_layers: int = 1):
  """Returns the tokens of compact Transformers (arXiv 2104.05704).

  There are no patches, so `ln0` is not used. Arguments as in `stem.patch`;
  options as in `ConvEmbedding`.
  """
  embed = ConvEmbedding(config, kernel_size, num_layers, name="embedding")
  return ln1(embed(image))  # (batch, rows / p, cols / p, width), `token_pixels`


def stride(kernel_size: int) -> int:
  """Returns a convolution's stride, as in the authors' code: 2 for 7 × 7."""
  if kernel_size % 2 == 0:
    raise ValueError(
      f"stem='conv' has convolutions of odd sides, got {kernel_size}: with an "
      "even one its grid would have another row and column than it needs."
    )
  return max(1, kernel_size // 2 - 1)


def token_pixels(kernel_size: int = 3, num_layers: int = 1) -> int:
  """Returns p such that a token of the stem `conv` covers p × p pixels."""
  return (2 * stride(kernel_size)) ** num_layers


class ConvEmbedding(nn.Module):
  """The tokenizer of compact Transformers (arXiv 2104.05704, Section 3.3).

  Each layer is a convolution without bias, with a `stride`, ReLU, and max
  pooling that halves the grid. All but the last have `HIDDEN` channels.
  """

  HIDDEN = 64

  config: Any
  kernel_size: int  # in pixels
  num_layers: int

  @nn.compact
  def __call__(self, x):  # (batch, rows, cols, channels)
    k, pad = self.kernel_size, self.kernel_size // 2
    for i in range(self.num_layers):
      x = nn.Conv(
        self.HIDDEN if i < self.num_layers - 1 else self.config.width,
        (k, k),
        strides=stride(k),
        padding=pad,
        use_bias=False,
        kernel_init=self.config.inits.embedding,
        dtype=self.config.dtype,
        name=f"Conv_{i}",
      )(x)
      x = halve(halve(nn.relu(x), axis=1), axis=2)
    return x


def halve(x: jax.Array, axis: int) -> jax.Array:
  """Returns max pooling of size 3 and stride 2 along one axis, of x ≥ 0.

  On both axes this is 3 × 3 max pooling without reduce_window, whose gradient
  is slow on CPUs and not deterministic on GPUs (google/flax issue 4233).
  """
  end = x.shape[axis] + x.shape[axis] % 2
  # Padding with zeros is neutral after a ReLU.
  x = jnp.pad(x, [(int(i == axis),) * 2 for i in range(x.ndim)])
  neighbours = (
    jax.lax.slice_in_dim(x, start, start + end - 1, 2, axis)
    for start in range(3)
  )
  return functools.reduce(jnp.maximum, neighbours)


class SequencePool(nn.Module):
  """A mean weighted by a learned score (arXiv 2104.05704, Section 3.2)."""

  @nn.compact
  def __call__(self, x):  # (batch, tokens, width) → (batch, width)
    score = nn.Dense(1, kernel_init=nn.initializers.normal(0.02), name="score")
    return (nn.softmax(score(x), axis=1) * x).sum(axis=1)
