"""The normalizers that a Vision Transformer can be built from.

To add one, subclass `Normalizer` and add a line to `NORMS`; or keep it in a
package of your own and give its import path, `norm="mypkg.norms:Derf"`.
"""

from typing import Any

import jax.numpy as jnp

from dpn import registry
from dpn.models.norms import (
  dtn,
  pointwise,
  power_norm,
  running,
  stateless,
  unified,
)
from dpn.models.norms.base import Normalizer, TokenGrid

__all__ = ["NORMS", "QK_NORMS", "Normalizer", "TokenGrid", "find", "make"]

NORMS = {
  "none": stateless.NoNorm,
  "layernorm": stateless.LayerNorm,
  "layernorm_no_bias": stateless.LayerNormNoBias,
  "standardize": stateless.Standardize,
  "affine": stateless.Affine,
  "rmsnorm": stateless.RMSNorm,
  "rmsnorm_plus_one": stateless.RMSNormPlusOne,
  "seednorm": stateless.SeeDNorm,
  "centernorm": stateless.CenterNorm,
  "bhyt": stateless.BHyT,
  "scalenorm": stateless.ScaleNorm,
  **pointwise.NORMS,
  "instancenorm": stateless.InstanceNorm,
  "groupnorm": stateless.GroupNorm,
  "batchnorm": running.BatchNorm,
  "switchable": running.SwitchableNorm,
  "prepbn": running.PRepBN,
  "powernorm": power_norm.PowerNorm,
  "unifiednorm": unified.UnifiedNorm,
  "dtn": dtn.DTN,
}
# For the queries, keys and values of each head.
QK_NORMS = {
  "none": stateless.Identity,
  "layernorm": stateless.LayerNorm,
  "layernorm_no_bias": stateless.LayerNormNoBias,
  "standardize": stateless.Standardize,
  "rmsnorm": stateless.RMSNorm,
  "rmsnorm_no_scale": stateless.RMSNormNoScale,
  "scalenorm": stateless.ScaleNorm,
  "l2": stateless.L2Norm,
}


def find(option: str, norm: str, known=NORMS) -> type[Normalizer]:
  """Returns the class that the value of an option names.

  Raises:
    ValueError: it is neither `known` nor the import path of such a class.
  """
  found = registry.lookup(option, norm, known)
  if not (isinstance(found, type) and issubclass(found, Normalizer)):
    raise ValueError(
      f"{option}={norm!r} is {found!r}, expected a subclass of "
      "norms.Normalizer."
    )
  return found


def make(
  norm: str,
  *,
  name: str | None = None,
  dtype=None,
  tokens: TokenGrid | None = None,
  scale_init: float = 1.0,
  **options: Any,
) -> Normalizer:
  """Returns a normalizer of (…, width) as a Linen module.

  Args:
    norm: one of `NORMS`, or an import path.
    name: of the module in the parameter tree.
    dtype: of the result; the statistics stay in float32 or wider.
    tokens: how the tokens it will see are arranged.
    scale_init: factor on the initial value of its `scale`.
    **options: the fields of its class, as in `make("derf", alpha=0.7)`.
  """
  dtype = jnp.dtype(dtype) if dtype else None
  bound = registry.bind("norm", norm, NORMS, options)
  kw = {"tokens": tokens or TokenGrid(), "scale_init": scale_init}
  return bound(name=name, dtype=dtype, **kw)
