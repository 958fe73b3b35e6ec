"""The normalizers a Vision Transformer can be built from, by name.

Here stand those without memory: statistics of one token or of one image. See
`running`, `power_norm` and `dtn` for the others.
"""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn import options
from dpn.models.norms import base, dtn, power_norm, running


class LayerNorm(base.Normalizer):
  """(x - mean) / sqrt(var + eps) * scale + bias (arXiv 1607.06450).

  The variance is taken in two passes: E[x^2] - E[x]^2 loses digits comparable
  to eps on constant patches, which are common in images.
  """

  eps: float = 1e-6

  @nn.compact
  def __call__(self, x, train=False):
    width = (x.shape[-1],)
    scale = self.param("scale", nn.initializers.ones, width)
    bias = self.param("bias", nn.initializers.zeros, width)

    @jax.checkpoint  # x is kept for the backward pass, and nothing besides
    def normalize(x, scale, bias):
      y, multiplier = standardize(self.upcast(x), self.eps, axis=-1)
      scale, bias = (base.along_width(p, y) for p in (scale, bias))
      return self.cast(y * multiplier * scale + bias)

    return normalize(x, scale, bias)


class Standardize(base.Normalizer):
  """LayerNorm without scale and bias."""

  eps: float = 1e-6

  @nn.compact
  def __call__(self, x, train=False):
    y, multiplier = standardize(self.upcast(x), self.eps, axis=-1)
    return self.cast(y * multiplier)


class Affine(base.Normalizer):
  """Returns scale * x + bias: LayerNorm's learnable half alone."""

  @nn.compact
  def __call__(self, x, train=False):
    return self.scale_and_bias(x)


class RMSNorm(base.Normalizer):
  """x / sqrt(mean(x^2) + eps) * scale (arXiv 1910.07467, Equation 4)."""

  eps: float = 1e-6

  @nn.compact
  def __call__(self, x, train=False):
    x = self.upcast(x)
    mean_square = jnp.square(x).mean(axis=-1, keepdims=True)
    return self.cast(self.scale(x, jax.lax.rsqrt(mean_square + self.eps)))


class ScaleNorm(base.Normalizer):
  """g * x / max(||x||, eps), g starting at sqrt(width).

  arXiv 1910.05895, Equation 5, has one `scalar` g; the comparison in Table 2 of
  arXiv 2112.02624 was run with a `vector`, one g per channel.
  """

  g: Literal["vector", "scalar"] = "vector"

  @nn.compact
  def __call__(self, x, train=False):
    x = self.upcast(x)
    square = jnp.square(x).sum(axis=-1, keepdims=True)
    # Clamped before the root, whose gradient at zero is infinite.
    multiplier = jax.lax.rsqrt(jnp.maximum(square, self.eps**2))
    init = nn.initializers.constant(x.shape[-1] ** 0.5)
    return self.cast(self.scale(x, multiplier, init, self.g == "scalar"))


class InstanceNorm(base.Normalizer):
  """Each channel of each image over its tokens; the variance is unbiased."""

  @nn.compact
  def __call__(self, x, train=False):  # (batch, tokens, width)
    if x.shape[1] < 2:
      raise ValueError(
        "norm='instancenorm' takes the variance over an image's tokens and "
        f"needs at least two of them, got {x.shape[1]}. Use larger images or "
        "smaller patches."
      )
    y, multiplier = standardize(self.upcast(x), self.eps, axis=1, ddof=1)
    return self.scale_and_bias(y, multiplier)


class GroupNorm(base.Normalizer):
  """The channels of each head of each image, over them and all its tokens.

  arXiv 1803.08494, Equation 7, with as many groups as attention heads.
  """

  @nn.compact
  def __call__(self, x, train=False):  # (batch, tokens, width)
    g = base.split_heads(self.upcast(x), self.layout.num_heads)
    y, multiplier = standardize(g, self.eps, axis=(1, 3))
    return self.scale_and_bias((y * multiplier).reshape(x.shape))


def standardize(x, eps, axis, ddof=0):
  """Returns x - mean and 1 / sqrt(var + eps) over `axis`."""
  y = x - x.mean(axis, keepdims=True)
  var = jnp.square(y).mean(axis, keepdims=True)
  if ddof:
    tokens = x.shape[axis]
    var = var * (tokens / (tokens - ddof))
  return y, jax.lax.rsqrt(var + eps)


NORMS = {
  "layernorm": LayerNorm,
  "standardize": Standardize,
  "affine": Affine,
  "rmsnorm": RMSNorm,
  "scalenorm": ScaleNorm,
  "instancenorm": InstanceNorm,
  "groupnorm": GroupNorm,
  "batchnorm": running.BatchNorm,
  "switchable": running.SwitchableNorm,
  "powernorm": power_norm.PowerNorm,
  "dtn": dtn.DTN,
}


def make(
  kind: str,
  *,
  name: str | None = None,
  dtype=None,
  layout: base.Layout | None = None,
) -> base.Normalizer:
  """Returns the normalizer `kind` as a Linen module.

  Args:
    kind: one of `NORMS`, with options: `"dtn,pos_init=released,eps=1e-6"`. The
      options are the module's own fields.
    name: of the module in the parameter tree.
    dtype: of the result; the statistics stay in float32 or wider.
    layout: of the tokens it will see.

  Raises:
    ValueError: on an unknown kind, option or value, naming the nearest.
  """
  kw = {"layout": layout} if layout else {}
  cls = options.parse("norm", kind, NORMS)
  return cls(name=name, dtype=jnp.dtype(dtype) if dtype else None, **kw)


def epsilon(kind: str) -> float:
  """Returns the epsilon of a normalizer."""
  return _option(kind, "eps")


def plain(kind: str) -> str:
  """Returns the LayerNorm with the epsilon of `kind`.

  For the places where the literature keeps LayerNorm whatever stands in the
  blocks: after the last one, and on position embeddings.
  """
  return f"layernorm,eps={epsilon(kind)}"


def joins_late(kind: str) -> bool:
  """Returns whether `kind` keeps the class token out of all but late blocks."""
  return _option(kind, "cls") == "late"


def _option(kind, name):
  """Returns an option of `kind`, None if it has no such option."""
  norm = options.parse("norm", kind, NORMS)
  return norm.keywords.get(name, getattr(norm.func, name, None))
