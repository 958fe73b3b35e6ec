"""The normalizers that a Vision Transformer can be built from.

To add one: a subclass of `Normalizer` and a line in `NORMS`; or keep it in a
package of your own and name it, `norm="mypkg.norms:DyT"`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from dpn import registry
from dpn.models.norms import dtn, power_norm, running, stateless
from dpn.models.norms.base import Normalizer, TokenGrid

__all__ = ["NORMS", "Normalizer", "TokenGrid", "bind", "epsilon", "make"]

NORMS = {
  "layernorm": stateless.LayerNorm,
  "standardize": stateless.Standardize,
  "affine": stateless.Affine,
  "rmsnorm": stateless.RMSNorm,
  "scalenorm": stateless.ScaleNorm,
  "instancenorm": stateless.InstanceNorm,
  "groupnorm": stateless.GroupNorm,
  "batchnorm": running.BatchNorm,
  "switchable": running.SwitchableNorm,
  "powernorm": power_norm.PowerNorm,
  "dtn": dtn.DTN,
}
RESERVED = ("tokens", "dtype")  # fields that the model sets


def bind(norm: str, kw: Mapping[str, Any] | None = None) -> functools.partial:
  """Returns the class of a normalizer with the options `kw` bound.

  Args:
    norm: one of `NORMS`, or an import path.
    kw: its options, which are the fields of its class.

  Raises:
    ValueError: on an unknown name, option or value, naming the nearest.
  """
  cls = registry.lookup("norm", norm, NORMS)
  return registry.bind("norm", norm, cls, kw, reserved=RESERVED)


def make(
  norm: str,
  kw: Mapping[str, Any] | None = None,
  *,
  name: str | None = None,
  dtype=None,
  tokens: TokenGrid | None = None,
) -> Normalizer:
  """Returns a normalizer as a Linen module.

  Args:
    norm: see `bind`.
    kw: see `bind`.
    name: of the module in the parameter tree.
    dtype: of the result; the statistics stay in float32 or wider.
    tokens: how the tokens it will see are arranged.
  """
  more = {"tokens": tokens} if tokens else {}
  dtype = jnp.dtype(dtype) if dtype else None
  return bind(norm, kw)(name=name, dtype=dtype, **more)


def epsilon(norm: str, kw: Mapping[str, Any] | None = None) -> float:
  """Returns the epsilon of a normalizer.

  The literature keeps LayerNorm in some places whatever normalizes the blocks:
  after the last one, and on position embeddings. There it has this epsilon.
  """
  bound = bind(norm, kw)
  return bound.keywords.get("eps", bound.func.eps)
