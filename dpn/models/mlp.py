"""The MLP of an encoder block."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn.models import init
from dpn.models.dense import DenseGeneral

GELUS: dict[str, Callable] = {
  "tanh": functools.partial(nn.gelu, approximate=True),
  "exact": functools.partial(nn.gelu, approximate=False),
  "quick": lambda x: x * nn.sigmoid(1.702 * x),  # as in CLIP
}


class Mlp(nn.Module):
  """Dense, GELU, dropout, Dense.

  If `gated`, the GELU acts on a second Dense, `gate`, instead, and its result
  multiplies the first (arXiv 2002.05202, Equation 6).
  """

  mlp_dim: int  # width of the hidden layer
  dropout: float = 0.0
  gelu: Callable = GELUS["tanh"]
  gated: bool = False
  make_norm: Callable[..., nn.Module] | None = None  # name → normalizer
  inner_norm: str = "none"  # of the hidden layer, `after_act` or `before_act`
  kernel_init: Callable = init.INITS["big_vision"].dense
  bias_init: Callable = init.INITS["big_vision"].mlp_bias
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, deterministic=True):  # (batch, tokens, width)
    width = x.shape[-1]
    kw = {"kernel_init": self.kernel_init, "bias_init": self.bias_init}
    dense = functools.partial(DenseGeneral, dtype=self.dtype, **kw)
    up = dense(self.mlp_dim, name="Dense_0")(x)  # (batch, tokens, mlp_dim)
    x = dense(self.mlp_dim, name="gate")(x) if self.gated else up
    if self.inner_norm == "before_act":
      x = self.make_norm(name="norm")(x, not deterministic)
    # Recomputing tanh or erf in the backward pass is cheaper than storing it.
    x = jax.checkpoint(self.gelu)(x)
    x = x * up if self.gated else x
    x = nn.Dropout(self.dropout)(x, deterministic)
    if self.inner_norm == "after_act":
      x = self.make_norm(name="norm")(x, not deterministic)
    return dense(width, name="Dense_1")(x)


def swiglu(mlp_dim, *args, **kw) -> Mlp:
  """Returns a gated MLP with SiLU, whatever `gelu` is."""
  return Mlp(mlp_dim, *args, **{**kw, "gelu": nn.silu, "gated": True})


# For the same `mlp_dim`, a gated MLP has half as many parameters again.
MLPS = {
  "mlp": Mlp,
  "geglu": functools.partial(Mlp, gated=True),
  "swiglu": swiglu,
}


def of_block(config, where, make_norm) -> Mlp:
  """Returns the MLP of a block; arguments are as in `attention.of_block`."""
  return config.lookup("mlp")(
    config.mlp_dim,
    config.dropout,
    gelu=config.lookup("gelu"),
    make_norm=make_norm,
    inner_norm=where.mlp_inner,
    kernel_init=init.scaled(config.inits.dense, where.weight_gain),
    bias_init=config.inits.mlp_bias,
    dtype=config.dtype,
    name="MlpBlock_0",
  )
