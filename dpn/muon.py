"""Muon for a Vision Transformer's parameters: optax's, with Adam for the rest.

Muon orthogonalizes the momentum of a matrix (arXiv 2502.16982, Algorithm 2).
Attention's kernels have three dimensions here: a head's channels count as
outputs of queries, keys and values and as inputs of `out`, so that each kernel
is one matrix (inputs, outputs), in scanned blocks one for each block.
"""

import functools
import re
from typing import Literal

import jax
import optax
from optax import contrib

from dpn import trees

# Kernels of blocks and of attention pooling, but not of embedding and head.
MATRICES = r"(.*/)?(encoderblock(_\d+)?|layers_\d+|MAPHead_0)/.*/kernel"
_PER_HEAD = ("query", "key", "value")


def scale_by_muon(
  matrices: str = MATRICES,
  *,
  beta: float = 0.95,
  nesterov: bool = True,
  ns_coeffs: Literal["standard", "dion"] = "standard",
  consistent_rms: float | None = 0.2,
  b1: float = 0.9,
  b2: float = 0.999,
  eps: float = 1e-8,
  mu_dtype: str | jax.typing.DTypeLike | None = None,
) -> optax.GradientTransformation:
  """Returns Muon (arXiv 2502.16982) for matrices, Adam for other parameters.

  timm's Muon is `nesterov=False, ns_coeffs="dion", b2=0.95, eps=1e-7`, but has
  queries, keys and values in one matrix and works in half precision.

  Args:
    matrices: pattern of the whole names of the parameters that Muon takes.
    beta: decay of Muon's momentum.
    nesterov: whether Muon's momentum is Nesterov's.
    ns_coeffs: coefficients of the five Newton-Schulz steps: the same for all,
      or optax's "dion", one set for each.
    consistent_rms: root mean square of a matrix's update, about that of Adam's,
      so that one `lr` suits both. None multiplies an orthogonal matrix by
      sqrt(max(1, outputs / inputs)) instead.
    b1: Adam's, like b2 and eps; Muon has the same eps.
    b2: see b1.
    eps: see b1.
    mu_dtype: dtype of Muon's and Adam's first moments.
  """
  make = functools.partial(
    contrib.muon,
    -1.0,  # optax descends; config.lr and the sign come later
    ns_coeffs=ns_coeffs,
    beta=beta,
    eps=eps,
    mu_dtype=mu_dtype,
    adam_b1=b1,
    adam_b2=b2,
    consistent_rms=consistent_rms,
    muon_weight_dimension_numbers=lambda params: dimensions(params, matrices),
  )
  # optax gives Adam Nesterov momentum if Muon has it. Both transformations have
  # the same state, and XLA does not compute the updates that are not used.
  muon, plain = make(nesterov=nesterov), make(nesterov=False)

  def update(grads, state, params=None):
    updates, after = muon.update(grads, state, params)
    others, _ = plain.update(grads, state, params)
    choose = lambda path, x, other: (
      x if _is_matrix(trees.name(path), x, matrices) else other
    )
    return jax.tree.map_with_path(choose, updates, others), after

  return optax.GradientTransformation(muon.init, update)


def dimensions(params: trees.Tree, matrices: str = MATRICES) -> trees.Tree:
  """Returns optax's MuonDimensionNumbers by parameter, None for Adam's."""

  def of(path, x):
    name = trees.name(path)
    if not _is_matrix(name, x, matrices):
      return None
    axes = tuple(trees.unstacked_axes(name, x.ndim))
    layer = name.split("/")[-2].removesuffix("_prefix")
    per_head = len(axes) == 3 and layer in _PER_HEAD
    inputs = 1 if per_head else len(axes) - 1
    return contrib.MuonDimensionNumbers(axes[:inputs], axes[inputs:])

  return jax.tree.map_with_path(of, params)


def _is_matrix(name, x, matrices):
  named = re.fullmatch(matrices, name)
  return named and len(trees.unstacked_axes(name, x.ndim)) > 1
