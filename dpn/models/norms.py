"""The per-token normalizers a Vision Transformer is built from.

All of them act on the last axis, `(..., width)`, take their statistics in at
least float32 and return `dtype` (None: the promoted type of input and
parameters, as Flax does). epsilon is 1e-6, Flax's default and the papers'.
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from dpn import names

EPSILON = 1e-6


class Affine(nn.Module):
  """Returns scale * x + bias: LayerNorm's learnable half alone."""

  dtype: Any = None

  @nn.compact
  def __call__(self, x):
    shape = (x.shape[-1],)
    scale = self.param("scale", nn.initializers.ones, shape)
    bias = self.param("bias", nn.initializers.zeros, shape)
    lead = (1,) * (x.ndim - 1)
    y = x * scale.reshape(*lead, -1) + bias.reshape(*lead, -1)
    return y.astype(self.dtype or y.dtype)


def _layernorm(**kw):
  # The one-pass variance E[x^2] - E[x]^2 loses digits comparable to epsilon on
  # constant patches, which are common in images.
  return nn.LayerNorm(epsilon=EPSILON, use_fast_variance=False, **kw)


def _standardize(**kw):
  return _layernorm(use_scale=False, use_bias=False, **kw)


def _rmsnorm(**kw):
  return nn.RMSNorm(epsilon=EPSILON, **kw)


NORMS = {
  "layernorm": _layernorm,
  "rmsnorm": _rmsnorm,
  "affine": Affine,
  "standardize": _standardize,
}


def make(kind: str, *, name: str | None = None, dtype=None) -> nn.Module:
  """Returns the normalizer `kind` as a Linen module.

  Args:
    kind: `layernorm`; `rmsnorm`, x / sqrt(mean(x^2) + eps) * scale; `affine`,
      scale and bias without normalization; `standardize`, LayerNorm without
      scale and bias.
    name: of the module in the parameter tree.
    dtype: of the result; the statistics stay in float32 or wider.

  Raises:
    ValueError: if `kind` is unknown.
  """
  if kind not in NORMS:
    raise ValueError(names.unknown("norm", kind, NORMS))
  return NORMS[kind](name=name, dtype=jnp.dtype(dtype) if dtype else None)
