"""Normalizers of one token or of one image, without running statistics."""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn.models.norms.base import Normalizer, along_width, center, split_heads


class LayerNorm(Normalizer):
  """(x - mean) / sqrt(var + eps) * scale + bias (arXiv 1607.06450).

  The variance is taken in two passes: on constant patches, which are common in
  images, E[x^2] - E[x]^2 has rounding errors comparable to eps.
  """

  eps: float = 1e-6

  def __call__(self, x, train=False):
    scale, bias = self.affine(x.shape[-1])

    @jax.checkpoint  # keeps nothing but x for the backward pass
    def normalize(x, scale, bias):
      x = self.upcast(x)  # float32
      y = x - x.mean(axis=-1, keepdims=True)
      var = jnp.square(y).mean(axis=-1, keepdims=True)
      scale, bias = (along_width(p, y) for p in (scale, bias))
      return self.cast(y * jax.lax.rsqrt(var + self.eps) * scale + bias)

    return normalize(x, scale, bias)

  @nn.compact
  def affine(self, width):
    """Returns the parameters `scale` and `bias`, (width,)."""
    start = nn.initializers.constant(self.scale_init)
    scale = self.param("scale", start, (width,))
    return scale, self.param("bias", nn.initializers.zeros, (width,))


class Standardize(Normalizer):
  """LayerNorm without scale and bias."""

  eps: float = 1e-6

  @nn.compact
  def __call__(self, x, train=False):
    y, multiplier = center(self.upcast(x), self.eps, axis=-1)
    return self.cast(self.scaled(y, multiplier))

  def scaled(self, y, multiplier):
    return y * multiplier


class LayerNormNoBias(Standardize):
  """LayerNorm with a scale only."""

  def scaled(self, y, multiplier):
    return self.scale(y, multiplier)


class Affine(Normalizer):
  """Returns scale * x + bias: LayerNorm's learnable half alone."""

  @nn.compact
  def __call__(self, x, train=False):
    return self.scale_and_bias(x)


class RMSNormNoScale(Normalizer):
  """x / sqrt(mean(x^2) + eps): RMSNorm without its scale."""

  eps: float = 1e-6

  @nn.compact
  def __call__(self, x, train=False):
    x = self.upcast(x)
    mean_square = jnp.square(x).mean(axis=-1, keepdims=True)
    return self.cast(self.scaled(x, jax.lax.rsqrt(mean_square + self.eps)))

  def scaled(self, x, multiplier):
    return x * multiplier


class RMSNorm(RMSNormNoScale):
  """x / sqrt(mean(x^2) + eps) * scale (arXiv 1910.07467, Equation 4)."""

  def scaled(self, x, multiplier):
    return self.scale(x, multiplier)


class RMSNormPlusOne(RMSNormNoScale):
  """x / sqrt(mean(x^2) + eps) * (1 + scale), scale starting at 0.

  RMSNorm as in Gemma (arXiv 2403.08295): the same function, but weight decay
  pulls the factor towards 1 instead of 0.
  """

  def scaled(self, x, multiplier):
    start = nn.initializers.constant(self.scale_init - 1)
    scale = self.param("scale", start, x.shape[-1:])
    return x * multiplier * (1 + along_width(scale, x))


class SeeDNorm(RMSNormNoScale):
  """(tanh(x · beta) * alpha + scale) * x / sqrt(mean(x^2) + eps).

  arXiv 2510.22777, where `scale` is gamma; all three are (width,), and x · beta
  is one number per token. There is no code, and initial values were not read in
  the paper: here beta = 0 and alpha = scale = 1, which is an RMSNorm.
  """

  def scaled(self, x, multiplier):
    alpha = self.param("alpha", nn.initializers.ones, x.shape[-1:])
    beta = self.param("beta", nn.initializers.zeros, x.shape[-1:])
    seed = jnp.tanh((x * along_width(beta, x)).sum(axis=-1, keepdims=True))
    y = x * multiplier
    return self.scale(y) + seed * along_width(alpha, x) * y


class BHyT(RMSNormNoScale):
  """tanh(lam / kappa * x / sqrt(mean(x^2) + eps)) * scale (arXiv 2601.09719).

  The paper's BHyT*, with the statistics of every token; `lam` is a learned
  number, (1,). The faster form, which estimates the statistics of a block's
  second norm from the first norm's, is not implemented.
  """

  lam: float = 2.0
  kappa: float = 10.0

  def scaled(self, x, multiplier):
    lam = self.param("lam", nn.initializers.constant(self.lam), (1,))
    return self.scale(jnp.tanh(x * (multiplier * lam[0] / self.kappa)))


class CenterNorm(Normalizer):
  """width / (width - 1) * (x - mean) * scale + bias (arXiv 2304.09856).

  It divides by no statistic, so that it is Lipschitz, and does not use `eps`.
  """

  @nn.compact
  def __call__(self, x, train=False):
    x, width = self.upcast(x), x.shape[-1]
    y = x - x.mean(axis=-1, keepdims=True)
    return self.scale_and_bias(y, width / max(width - 1, 1))


def reciprocal(square, eps):
  """Returns 1 / max(root, eps), or 0 where the root is 0.

  So vectors of zeros stay zeros and pass no gradient on: it would be 1 / eps
  times as large. First steps have them where a class token starts as zeros.
  """
  # Clamped before the root, whose gradient at zero is infinite.
  root = jax.lax.rsqrt(jnp.maximum(square, eps**2))
  return jnp.where(square > 0, root, 0)


class ScaleNorm(Normalizer):
  """g * x / max(||x||, eps), g starting at sqrt(width).

  arXiv 1910.05895, Equation 5, has one `scalar` g; the comparison in Table 2 of
  arXiv 2112.02624 was run with a `vector`, one g per channel.
  """

  g: Literal["vector", "scalar"] = "vector"

  @nn.compact
  def __call__(self, x, train=False):
    x = self.upcast(x)
    square = jnp.square(x).sum(axis=-1, keepdims=True)
    multiplier = reciprocal(square, self.eps)
    init = nn.initializers.constant(x.shape[-1] ** 0.5)
    return self.cast(self.scale(x, multiplier, init, self.g == "scalar"))


class L2Norm(Normalizer):
  """x / max(||x||, eps) * sqrt(d) * scale of (…, heads, d), for `qk_norm`.

  Each head has a scale of its own, which starts at 1 / sqrt(d): vectors have
  length 1 at first. As in lucidrains/vit-pytorch, where logits are not scaled:
  with `logit_scale="one"` softmax starts out nearly uniform.
  """

  eps: float = 1e-12

  @nn.compact
  def __call__(self, x, train=False):
    x, (*batch, heads, d) = self.upcast(x), x.shape
    multiplier = reciprocal(jnp.square(x).sum(-1, keepdims=True), self.eps)
    init = nn.initializers.constant(d**-0.5)
    scale = self.param("scale", init, (heads, d))
    scale = scale.reshape((1,) * len(batch) + (heads, d))
    return self.cast(x * multiplier * (d**0.5 * scale))


class Identity(Normalizer):
  """Returns x."""

  RESERVED = (*Normalizer.RESERVED, "eps")

  @nn.compact
  def __call__(self, x, train=False):
    return x


class NoNorm(Identity):
  """Returns x; `eps` is for LayerNorms elsewhere, such as after the blocks."""

  RESERVED = Normalizer.RESERVED

  eps: float = 1e-6


class InstanceNorm(Normalizer):
  """Each channel of each image over its tokens; the variance is unbiased."""

  PER_TOKEN = False

  @nn.compact
  def __call__(self, x, train=False):  # (batch, tokens, width)
    y, multiplier = center(self.upcast(x), self.eps, axis=1, ddof=1)
    return self.scale_and_bias(y, multiplier)


class GroupNorm(Normalizer):
  """Each head's channels of each image, over these channels and all tokens.

  arXiv 1803.08494, Equation 7, with as many groups as attention heads.
  """

  PER_TOKEN = False

  @nn.compact
  def __call__(self, x, train=False):  # (batch, tokens, width)
    g = split_heads(self.upcast(x), self.tokens.num_heads)
    y, multiplier = center(g, self.eps, axis=(1, 3))
    return self.scale_and_bias((y * multiplier).reshape(x.shape))
