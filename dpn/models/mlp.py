"""The Transformer's feed-forward layer."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn import errors
from dpn.models import init, norms
from dpn.models.norms import base

GELUS = {
  "tanh": functools.partial(nn.gelu, approximate=True),
  "exact": functools.partial(nn.gelu, approximate=False),
}


def check_gelu(gelu: str):
  """Raises ValueError naming the nearest if `gelu` is unknown."""
  if gelu not in GELUS:
    raise ValueError(errors.unknown("gelu", gelu, GELUS))


class Mlp(nn.Module):
  """Dense, GELU, dropout, Dense.

  Attributes:
    mlp_dim: width of the hidden layer.
    dropout: rate, of the hidden layer.
    gelu: one of `GELUS`: the tanh approximation or the exact function.
    inner_norm: see `norms.make`; of the hidden layer.
    inner: where that is, `after_act`, `before_act` or `none`.
    layout: of the tokens, for `inner_norm`.
    kernel_init: of both kernels, times `init_gain`.
    bias_init: of both biases.
    dtype: of the matrix products and the result.
  """

  mlp_dim: int
  dropout: float = 0.0
  gelu: str = "tanh"
  inner_norm: str = "layernorm"
  inner: str = "none"
  layout: base.Layout | None = None
  kernel_init: Callable = init.INITS["big_vision"].dense
  bias_init: Callable = init.INITS["big_vision"].mlp_bias
  init_gain: float = 1.0
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, deterministic=True):  # (batch, tokens, width)
    kw = {
      "dtype": self.dtype,
      "kernel_init": init.scaled(self.kernel_init, self.init_gain),
      "bias_init": self.bias_init,
    }

    def norm(x):
      module = norms.make(
        self.inner_norm, name="norm", dtype=self.dtype, layout=self.layout
      )
      return module(x, not deterministic)

    width = x.shape[-1]
    x = nn.Dense(self.mlp_dim, name="Dense_0", **kw)(x)
    if self.inner == "before_act":
      x = norm(x)
    # The backward pass takes tanh or erf anew, cheaper than keeping it.
    x = jax.checkpoint(GELUS[self.gelu])(x)
    x = nn.Dropout(self.dropout)(x, deterministic)
    if self.inner == "after_act":
      x = norm(x)
    return nn.Dense(width, name="Dense_1", **kw)(x)
