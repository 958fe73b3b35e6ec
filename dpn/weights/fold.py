"""Models rewritten, exactly, into others that compute the same."""

import dataclasses
import math
import re

import numpy as np

from dpn.weights.vit_params import VitParams

# What is added to the residual stream, and what reads it unnormalized.
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
  # The first norm's own epsilon is not that of the blocks.
  ln1 = "stem/ln1/scale" in model.arrays
  writes = re.compile(f"{_WRITES}|{'stem/ln1' if ln1 else 'embedding'}/.*")
  arrays = {
    name: c * x if writes.fullmatch(name) else x
    for name, x in model.arrays.items()
  }
  if options["pool_type"] == "map":  # its sum goes to the head as it is
    if "head/kernel" not in arrays or "pre_logits/kernel" in arrays:
      raise ValueError(
        f"The epsilon {options['norm_kw']['eps']:g} cannot become {eps:g} in a "
        "model with attention pooling but without a head."
      )
    arrays["head/kernel"] = arrays["head/kernel"] / c
  options = {**options, "norm_kw": {"eps": eps}}
  return dataclasses.replace(model, arrays=arrays, options=options)


def without_linear_stem(model: VitParams) -> VitParams:
  """Returns a model as a plain one if its stem is linear, else as it is."""
  stems = {"only_learnable": _without_affine, "whiten": _without_whitening}
  stem_ln, arrays = model.options["stem_ln"], dict(model.arrays)
  if stem_ln not in stems:
    return model
  kernel = arrays["embedding/kernel"]
  matrix = kernel.reshape(-1, kernel.shape[-1])  # (pixels, width)
  matrix, bias = stems[stem_ln](arrays, matrix, arrays["embedding/bias"])
  arrays["embedding/kernel"] = matrix.reshape(kernel.shape)
  arrays["embedding/bias"] = bias
  options = {**model.options, "stem_ln": "none"}
  return dataclasses.replace(model, arrays=arrays, options=options)


def _without_affine(arrays, matrix, bias):
  """Takes the stem's arrays; returns the embedding's with them in it."""
  (scale0, bias0), (scale1, bias1) = (
    [arrays.pop(f"stem/{ln}/{leaf}") for leaf in ("scale", "bias")]
    for ln in ("ln0", "ln1")
  )
  bias = (bias0 @ matrix + bias) * scale1 + bias1
  return scale0[:, None] * matrix * scale1, bias


def _without_whitening(arrays, matrix, bias):
  """Likewise, for `whiten`."""
  mean, whiten = (
    arrays.pop(f"batch_stats/stem/whiten/{leaf}") for leaf in ("mean", "matrix")
  )
  matrix = whiten.astype(np.float64) @ matrix
  bias = bias - mean @ matrix
  return matrix.astype(np.float32), bias.astype(np.float32)


# Norms that are linear in evaluation.
LINEAR_NORMS = ("affine", "batchnorm", "prepbn", "unifiednorm")
# Options of the blocks whose norms stand before a dense layer, and of nothing
# else, with what they then are.
_BEFORE_DENSE = {
  "norm": (*LINEAR_NORMS, "none"),
  **{"block_ln": ("placement",), "posemb_join": ("add",)},
  **{"cls_blocks": (None,), "prefix_norm": ("shared",)},
}


def without_norms(model: VitParams) -> VitParams:
  """Returns a model whose linear norms are in the dense layers after them.

  Those are the norms of the blocks, also the one after the last if
  `final_norm="norm"`, and what `weight_norm` does. Other norms stay.

  Raises:
    ValueError: the norms are not linear, or not all stand before dense layers.
  """
  model = without_weight_norm(model)
  options = dict(model.options)
  wrong = [
    f"{name}={options[name]!r} (only {', '.join(map(repr, known))})"
    for name, known in _BEFORE_DENSE.items()
    if options[name] not in known
  ]
  where = options["block_ln_kw"]
  if options["block_ln"] == "placement" and where != {
    **where,
    **{"sa": "pre", "mlp": "pre"},
  }:
    wrong.append(f"block_ln_kw={where} (only sa and mlp of 'pre')")
  last = options["final_norm"] == "norm"
  if last and options["pool_type"] not in ("tok", "0", "gap", "map"):
    wrong.append(f"final_norm='norm' with pool_type={options['pool_type']!r}")
  if wrong:
    raise ValueError(
      "--fold_norms: norms can be folded where they are linear and stand "
      f"before a dense layer. This model has {'; '.join(wrong)}."
    )
  if options["norm"] == "none":
    return model
  arrays = dict(model.arrays)
  for i in range(options["depth"]):
    block = f"Transformer/encoderblock_{i}"
    attention = f"{block}/MultiHeadDotProductAttention_0"
    layers = [f"{attention}/{x}" for x in ("query", "key", "value")]
    _fold_norm(arrays, options, f"{block}/LayerNorm_0", layers)
    mlp = [f"{block}/MlpBlock_0/{x}" for x in ("Dense_0", "gate")]
    mlp = [x for x in mlp if f"{x}/kernel" in arrays]
    _fold_norm(arrays, options, f"{block}/LayerNorm_1", mlp)
  if last:
    norm = "Transformer/encoder_norm"
    _fold_norm(arrays, options, norm, _after_encoder(arrays, options))
  eps = {"eps": options["norm_kw"]["eps"]}  # of LayerNorms elsewhere
  options |= {"norm": "none", "norm_kw": eps, "qkv_bias": True}
  options |= {"final_norm": False} if last else {}
  return dataclasses.replace(model, arrays=arrays, options=options)


def _after_encoder(arrays, options):
  """Returns the names of the dense layers that see the encoded tokens."""
  if options["pool_type"] == "map":
    attention = "MAPHead_0/MultiHeadDotProductAttention_0"
    return [f"{attention}/key", f"{attention}/value"]
  for layer in ("pre_logits", "head"):
    if f"{layer}/kernel" in arrays:
      return [layer]
  raise ValueError("--fold_norms: no dense layer follows final_norm='norm'.")


def _fold_norm(arrays, options, norm, layers):
  """Moves a linear norm a x + b into dense layers, W x + c, in place."""
  found = {}
  for name in list(arrays):
    for prefix in (f"{norm}/", f"batch_stats/{norm}/"):
      if name.startswith(prefix):
        found[name.removeprefix(prefix)] = arrays.pop(name).astype(np.float64)
  a, b = found["scale"], found["bias"]
  if "var" in found:
    a = a / np.sqrt(found["var"] + options["norm_kw"]["eps"])
    b = b - found.get("mean", 0) * a
  a = a + found.get("eta", 0)
  for layer in layers:
    kernel = arrays[f"{layer}/kernel"].astype(np.float64)
    bias = arrays.get(f"{layer}/bias", 0) + np.tensordot(b, kernel, 1)
    kernel = a.reshape(-1, *[1] * (kernel.ndim - 1)) * kernel
    arrays[f"{layer}/kernel"] = kernel.astype(np.float32)
    arrays[f"{layer}/bias"] = bias.astype(np.float32)


def without_weight_norm(model: VitParams) -> VitParams:
  """Returns a model whose kernels are what `weight_norm` makes of them."""
  if model.options["weight_norm"] == "none":
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
