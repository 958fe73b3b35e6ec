"""Rewrites models exactly, into others that compute the same."""

import dataclasses
import math
import re
from collections.abc import Sequence

import numpy as np

from dpn.weights.vit_params import VitParams

# What is added to the residual streams of the blocks and of attention pooling.
_WRITES = (
  r"pos_embedding|cls|registers"
  r"|(.*/)?(MultiHead\w+_0/out|MlpBlock_0/Dense_1)/.*"
)


def with_epsilon(model: VitParams, eps: float) -> VitParams:
  """Returns the model with LayerNorms of another epsilon.

  LN(x; eps) = LN(c x; c² eps): a pre-norm model whose residual stream is c
  times as large needs no other change.

  Raises:
    ValueError: attention pooling without a head returns the stream itself.
  """
  options = model.options
  c = math.sqrt(eps / options["norm_kw"]["eps"])
  # stem/ln1 keeps its own epsilon: its output is scaled, not its input.
  ln1 = "stem/ln1/scale" in model.arrays
  writes = re.compile(f"{_WRITES}|{'stem/ln1' if ln1 else 'embedding'}/.*")
  arrays = {
    name: c * x if writes.fullmatch(name) else x
    for name, x in model.arrays.items()
  }
  if options["pool_type"] == "map":  # its sum goes to the head unnormalized
    direct = options["final_norm"] and "pre_logits/kernel" not in arrays
    if "head/kernel" not in arrays or not direct:
      raise ValueError(
        f"The epsilon {options['norm_kw']['eps']:g} cannot become {eps:g} in a "
        "model with attention pooling but without a head, or a norm before it."
      )
    arrays["head/kernel"] = arrays["head/kernel"] / c
  options = {**options, "norm_kw": {"eps": eps}}
  return dataclasses.replace(model, arrays=arrays, options=options)


def without_biases(model: VitParams, templates: Sequence[str]) -> VitParams:
  """Returns the model without some biases; positions absorb the embedding's.

  `templates` are their names, {i} for the number of a block.

  Raises:
    ValueError: a bias other than the embedding's is not zero.
  """
  arrays = dict(model.arrays)
  some = re.compile("|".join(templates).replace("{i}", r"\d+"))
  for name in filter(some.fullmatch, model.arrays):
    bias = arrays.pop(name)
    if name == "embedding/bias":
      table = np.array(arrays["pos_embedding"])
      table[:, int(model.cls_row) :] += bias
      arrays["pos_embedding"] = table
    elif bias.any():
      raise ValueError(
        f"{name} is not zero, and timm's models with RMSNorm and SwiGLU have "
        "no such bias. --to ours keeps it."
      )
  return dataclasses.replace(model, arrays=arrays)


def without_linear_stem(model: VitParams) -> VitParams:
  """Returns a model with a plain stem if its stem is linear, else unchanged."""
  stems = {"only_learnable": _without_affine, "whiten": _without_whitening}
  stem_ln, arrays = model.options["stem_ln"], dict(model.arrays)
  if stem_ln not in stems or model.options["stem"] != "patch":
    return model
  kernel = arrays["embedding/kernel"]
  matrix = kernel.reshape(-1, kernel.shape[-1])  # (pixels, width)
  matrix, bias = stems[stem_ln](arrays, matrix, arrays["embedding/bias"])
  arrays["embedding/kernel"] = matrix.reshape(kernel.shape)
  arrays["embedding/bias"] = bias
  options = {**model.options, "stem_ln": "none"}
  return dataclasses.replace(model, arrays=arrays, options=options)


def _without_affine(arrays, matrix, bias):
  """Removes the stem's arrays; returns the embedding's with them folded in."""
  (scale0, bias0), (scale1, bias1) = (
    [arrays.pop(f"stem/{ln}/{leaf}") for leaf in ("scale", "bias")]
    for ln in ("ln0", "ln1")
  )
  bias = (bias0 @ matrix + bias) * scale1 + bias1
  return scale0[:, None] * matrix * scale1, bias


def _without_whitening(arrays, matrix, bias):
  """Likewise, for `whiten`."""
  at = "batch_stats/stem/whiten"
  mean, whiten = (arrays.pop(f"{at}/{leaf}") for leaf in ("mean", "matrix"))
  matrix = whiten.astype(np.float64) @ matrix
  bias = bias - mean @ matrix
  return matrix.astype(np.float32), bias.astype(np.float32)


def without_weight_norm(model: VitParams) -> VitParams:
  """Returns the model with its σReparam, if any, folded into the kernels.

  Any other `weight_norm` stays, as only its code knows what it does.
  """
  if model.options["weight_norm"] != "sigma_reparam":
    return model
  arrays = dict(model.arrays)
  for name in [name for name in arrays if name.endswith("/sigma")]:
    layer = name.removesuffix("/sigma")
    u = arrays.pop(f"batch_stats/{layer}/u").astype(np.float64)
    kernel = arrays[f"{layer}/kernel"]
    matrix = kernel.reshape(len(u), -1).astype(np.float64)
    v = u @ matrix  # one iteration, as in evaluation
    v /= np.linalg.norm(v)
    gain = arrays.pop(name) / np.linalg.norm(matrix @ v)
    arrays[f"{layer}/kernel"] = (gain * kernel).astype(np.float32)
  options = {**model.options, "weight_norm": "none"}
  return dataclasses.replace(model, arrays=arrays, options=options)
