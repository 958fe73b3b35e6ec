"""nGPT for images (arXiv 2410.01131): everything lies on a hypersphere.

Tokens have length 1, and so has every kernel's vector along the embedding.
A block moves tokens towards its results: with u(x) = x / ‖x‖,

  x = u(x + |alpha| (u(f(x)) - x)),

Equations 10 and 11, for attention and for the MLP (Equations 16 and 20 to 22).
There are no other norms and no biases. A config selects it by import paths:

  model.block_ln="dpn.models.ngpt:Block", model.final_norm=False,
  model.stem_ln="dpn.models.ngpt:STEM_LN",
  model.weight_init="dpn.models.ngpt:INITS",
  model.weight_norm="dpn.models.ngpt:scaled_logits",
  projection="dpn.models.ngpt:project",

without weight decay and warmup. Pooling is the model's choice, such as `gap`.

Scales are learned as multiples of 1 / sqrt(width), except the MLP's. The
authors have no code for images. As in lucidrains' code for images, queries and
keys have separate scales, which the paper shares, and each pixel's vector of
the embedding has length 1. Unlike here, lucidrains' logits start sqrt(width)
times as large, `alpha` starts at 1 / depth, and it may be negative.
"""

import dataclasses
import functools
import math
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn.models import attention, dropout, encoder, init, norms, stem
from dpn.models.norms.base import along_width
from dpn.models.norms.stateless import reciprocal


def unit(x, axis=-1):
  """Returns x / ‖x‖ along an axis, in x's type; 0 for 0."""
  wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
  square = jnp.square(wide).sum(axis, keepdims=True)
  return (wide * reciprocal(square, 1e-12)).astype(x.dtype)


class Unit(norms.Normalizer):
  """x / ‖x‖."""

  @nn.compact
  def __call__(self, x, train=False):
    return unit(x)


STEM_LN = stem.StemLN(ln1=f"{__name__}:Unit", ln1_after_posemb=True)


class Block(encoder.EncoderBlock):
  """nGPT's block; of all norm options, only `v_norm` and `logit_scale` act.

  Attributes:
    alpha: initial size of the step towards each result.
    absolute: whether to use |alpha|, as in the authors' code for text.
  """

  alpha: float = 0.05
  absolute: bool = True

  @nn.compact
  def __call__(self, carry, drop_rate, deterministic=True):
    x, pe = carry
    config, out = self.config, {}
    if self.positions:
      raise ValueError("ngpt.Block needs posemb_join='add' and no 'rpe'.")
    if config.layer_scale is not None or config.mlp != "mlp":
      raise ValueError(
        "ngpt.Block has its own mlp and layer_scale: leave them out."
      )
    kw = {"drop_rate": drop_rate, "deterministic": deterministic}
    scaled = {"qk_norm": f"{__name__}:ScaledUnit", "qk_norm_kw": {}}
    own = dataclasses.replace(config, qkv_bias=False, **scaled)
    attend = attention.of_block(own, self.placement, self.tokens, None)
    y = out["sa"] = attend(x, x, None, deterministic, out)
    x = out["+sa"] = self.step(x, y, "alpha_sa", **kw)
    mlp = Mlp(config.mlp_dim, config.dropout, config.dtype, name="MlpBlock_0")
    y = out["mlp"] = mlp(x, deterministic)
    x = out["+mlp"] = self.step(x, y, "alpha_mlp", **kw)
    return (x, pe), out

  def step(self, x, y, name, *, drop_rate, deterministic):
    """Returns x moved towards y, both (batch, tokens, width)."""
    start = nn.initializers.constant(self.alpha * x.shape[-1] ** -0.5)
    alpha = self.param(name, start, x.shape[-1:]) * x.shape[-1] ** 0.5
    alpha = jnp.abs(alpha) if self.absolute else alpha
    y = (along_width(alpha, x) * (unit(y) - x)).astype(x.dtype)
    y = nn.Dropout(self.config.dropout)(y, deterministic)
    if self.config.stoch_depth and not deterministic:
      y = dropout.StochasticDepth()(y, drop_rate)
    return unit(x + y)


class ScaledUnit(norms.Normalizer):
  """s x / ‖x‖ for queries and keys; their product is multiplied by sqrt(d)."""

  @nn.compact
  def __call__(self, x, train=False):  # (batch, tokens, heads, d)
    heads, d = x.shape[-2:]
    start = nn.initializers.constant((heads * d) ** -0.5)
    scale = self.param("scale", start, (heads, d)) * (heads * d) ** 0.5
    # Attention divides by sqrt(d).
    return (unit(x) * (scale * d**0.5)[None, None]).astype(x.dtype)


class Mlp(nn.Module):
  """SwiGLU with scales of the hidden layer and its gate, and no biases."""

  mlp_dim: int
  dropout: float = 0.0
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, deterministic=True):  # (batch, tokens, width)
    dense = functools.partial(nn.Dense, use_bias=False, dtype=self.dtype)

    def scaled(name):
      y = dense(self.mlp_dim, kernel_init=_unit_normal(0), name=name)(x)
      scale = self.param(f"{name}_scale", nn.initializers.ones, (self.mlp_dim,))
      return (y * along_width(scale, y)).astype(y.dtype)

    y = nn.silu(scaled("gate") * x.shape[-1] ** 0.5) * scaled("hidden")
    y = nn.Dropout(self.dropout)(y, deterministic)
    return dense(x.shape[-1], kernel_init=_unit_normal(-1), name="out")(y)


def scaled_logits(train: bool):
  """Multiplies logits by learned scales s; a `weight_norm` (Equation 3)."""
  del train

  def intercept(call, args, kwargs, context):
    y = call(*args, **kwargs)
    head = context.module
    if context.method_name != "__call__" or head.name != "head":
      return y
    root = math.sqrt(args[0].shape[-1])
    start = nn.initializers.constant(1 / root)
    scale = head.param("logit_scale", start, (y.shape[-1],))
    return y * along_width(scale, y) * root

  return nn.intercept_methods(intercept)


def _unit_normal(axis):
  draw = nn.initializers.normal(1.0)
  return lambda *args, **kw: unit(draw(*args, **kw), axis)


INITS = init.INITS["big_vision"]._replace(  # attention's: length 1 on average
  embedding=_unit_normal(-1),
  cls=_unit_normal(-1),
  registers=_unit_normal(-1),
  head=_unit_normal(0),
  posemb=lambda width: _unit_normal(-1),
)
_BLOCK = r"Transformer/encoderblock(_\d+)?/.*/"
_INPUTS = rf"{_BLOCK}(query|key|value|gate|hidden)/kernel|head/kernel"
_OUTPUTS = rf"{_BLOCK}out/kernel|embedding/kernel|pos_embedding|cls|registers"


def project(name: str, x: jax.Array) -> jax.Array:
  """Returns a parameter with vectors of length 1; biases become 0.

  In a model of two towers it acts on the image tower.
  """
  if name.startswith("txt/"):
    return x
  name = name.removeprefix("img/")
  if name.endswith("/bias") and not name.startswith("stem/"):
    return jnp.zeros_like(x)
  if re.fullmatch(_INPUTS, name):
    return unit(x, 1 if "/encoderblock/" in name else 0)  # after blocks' axis
  return unit(x) if re.fullmatch(_OUTPUTS, name) else x
