"""The FLOPs of a computation, and the peak FLOP/s of a device.

For model FLOPs utilization, MFU (arXiv 2204.02311, Appendix B): the FLOPs that
the model needs, without those that rematerialization repeats, divided by what
the device's peak allows.
"""

import collections
import itertools
import math
import re
from collections.abc import Callable

import jax
from jax.extend import core

from dpn.models import flash

# Dense bfloat16 peak in FLOP/s, from the vendors' data sheets, by the first
# words of jax.Device.device_kind. On TPU v2 and v3 a device is half a chip.
PEAKS = {
  "NVIDIA A100": 312e12,
  "NVIDIA B200": 2250e12,
  "NVIDIA H100 PCIe": 756e12,
  "NVIDIA H100": 989e12,
  "NVIDIA H100 NVL": 835e12,
  "NVIDIA H200": 989e12,
  "NVIDIA H200 NVL": 835e12,
  "NVIDIA L4": 121e12,
  "NVIDIA L40": 181e12,
  "NVIDIA L40S": 362e12,
  "TPU v2": 22.5e12,
  "TPU v3": 61.5e12,
  "TPU v4": 275e12,
  "TPU v5 lite": 197e12,
  "TPU v5": 459e12,  # v5p
  "TPU v5p": 459e12,
  "TPU v6 lite": 918e12,
}


def peak(device: jax.Device) -> float | None:
  """Returns the device's bfloat16 peak in FLOP/s, None if it is not known."""
  kind = device.device_kind
  if " MIG " in kind:  # a part of a GPU
    return None
  fitting = [k for k in PEAKS if re.match(rf"{k}(?![\w.])", kind)]
  return PEAKS[max(fitting, key=len)] if fitting else None


def count(fn: Callable, *args) -> int:
  """Returns the FLOPs of the matrix products and convolutions in fn(*args).

  A multiply-add is two. Operations that do not affect the result are left out.
  The body of a loop counts as often as it runs, a while loop's once, and of a
  conditional the most expensive branch. Arguments may be arrays or shapes.
  """
  return by_scope(fn, *args).total()


def by_scope(fn: Callable, *args) -> collections.Counter[str]:
  """Returns the FLOPs of `count` by jax.named_scope, names joined by "/".

  Flax names a scope after every module and after some methods.
  """
  return _count(_jaxpr(fn, *args), "")


def of_training(fn: Callable, *args, trained) -> int:
  """Returns the FLOPs of fn(*args) and of its gradient.

  A product takes its FLOPs again for each of its two factors that depends on a
  trained argument: pixels do not, and neither does a frozen tower. In a loop or
  conditional both factors count as dependent if any of its inputs is.

  Args:
    fn: the loss.
    *args: its arguments, arrays or shapes.
    trained: a tree of booleans like `args`.
  """
  return _count(_jaxpr(fn, *args), "", jax.tree.leaves(trained)).total()


def _jaxpr(fn, *args):
  """Returns the jaxpr of fn(*args), where attention shows its operations."""
  with flash.assume("xla"):
    return jax.make_jaxpr(fn)(*args).jaxpr


def _count(jaxpr, scope, trained=()):
  """Counts by scope; `trained`: which inputs are, (): without a gradient."""
  needed = {v for v in jaxpr.outvars if isinstance(v, core.Var)}
  reached = set(itertools.compress(jaxpr.invars, trained))
  depends = lambda v: isinstance(v, core.Var) and v in reached
  for eqn in jaxpr.eqns:
    if any(map(depends, eqn.invars)):
      reached.update(eqn.outvars)
  total = collections.Counter()
  for eqn in reversed(jaxpr.eqns):
    if needed.isdisjoint(eqn.outvars) and not eqn.effects:
      continue
    needed.update(v for v in eqn.invars if isinstance(v, core.Var))
    name, params = eqn.primitive.name, eqn.params
    inner_scope = f"{scope}/{eqn.source_info.name_stack}"
    flags = [depends(v) for v in eqn.invars]
    times = 3 if any(flags) else 1
    if name in _MULTIPLY_ADDS:
      outputs = (1 + sum(flags)) * math.prod(eqn.outvars[0].aval.shape)
      total[inner_scope] += 2 * outputs * _MULTIPLY_ADDS[name](eqn)
    elif name == "cond":
      branches = params["branches"]
      if params.get("branches_platforms"):  # of jax.lax.platform_dependent
        branches = branches[-1:]  # the default
      branches = [_count(b.jaxpr, inner_scope) for b in branches]
      dearest = max(branches, key=collections.Counter.total)
      total.update({k: times * v for k, v in dearest.items()})
    else:
      times *= params["length"] if name == "scan" else 1
      # The programs that an operation calls, if any.
      for inner in (getattr(v, "jaxpr", v) for v in params.values()):
        if not isinstance(inner, core.Jaxpr):
          continue
        if name in _CALLS:
          total.update(_count(inner, inner_scope, flags))
        else:
          for key, flops in _count(inner, inner_scope).items():
            total[key] += times * flops
  return total


def _dot(eqn):
  (contracted, _), _ = eqn.params["dimension_numbers"]
  return math.prod(eqn.invars[0].aval.shape[i] for i in contracted)


def _convolution(eqn):
  kernel = eqn.invars[1].aval.shape
  out_channels = kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
  return math.prod(kernel) // out_channels


_CALLS = (
  "jit",
  "pjit",
  "closed_call",
  "checkpoint",
  "remat2",
  "custom_vjp_call",
)
# By operation: multiply-adds for each element of the result.
_MULTIPLY_ADDS = {"dot_general": _dot, "conv_general_dilated": _convolution}
