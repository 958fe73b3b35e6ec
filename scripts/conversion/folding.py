"""Folds norms that are linear in evaluation into the layers after them."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from dpn.weights import fold, vit_params

# Options with which all norms of blocks are linear in evaluation and stand
# before dense layers.
LINEAR_NORMS = ("affine", "batchnorm", "prepbn", "unifiednorm")
_FOLDABLE: Mapping[str, Sequence] = {
  "norm": LINEAR_NORMS,
  **{"block_ln": ("placement",), "posemb_join": ("add",)},
  **{"cls_blocks": (None,), "prefix_norm": ("shared",), "pool_norm": (False,)},
  "mlp": ("mlp", "geglu", "swiglu"),
}


def without_norms(model: vit_params.VitParams) -> vit_params.VitParams:
  """Returns a model with linear norms folded into the dense layers after them.

  These are the norms of the blocks, the one after the last block if
  `final_norm="norm"`, and what `weight_norm` does. Other norms stay. ValueError
  if a norm to fold is not linear, or not before a dense layer.
  """
  model = fold.without_weight_norm(model)
  options, arrays = dict(model.options), dict(model.arrays)
  if options["norm"] == "none":
    return model
  wrong = {k: options[k] for k in _FOLDABLE if options[k] not in _FOLDABLE[k]}
  kw = options["block_ln_kw"]
  where = {k: x for k, x in kw.items() if k in ("sa", "mlp")}
  if {*where.values()} - {"pre"}:
    wrong["block_ln_kw"] = where
  after = _after_encoder(arrays, options["pool_type"])
  if (last := options["final_norm"] == "norm") and not after:
    wrong["pool_type"] = options["pool_type"]
  if wrong:
    got = "; ".join(f"{name}={value!r}" for name, value in wrong.items())
    raise ValueError(
      f"--fold_norms needs norm={' or '.join(LINEAR_NORMS)}, before the "
      "attention, the MLP and, with final_norm='norm', the head, and nothing "
      f"else in between; this model has {got}."
    )
  for i in range(options["depth"]):
    block = f"Transformer/encoderblock_{i}"
    attention = f"{block}/MultiHeadDotProductAttention_0"
    layers = [f"{attention}/{x}" for x in ("query", "key", "value")]
    _fold_norm(arrays, options, f"{block}/LayerNorm_0", layers)
    layers = [f"{block}/MlpBlock_0/{x}" for x in ("Dense_0", "gate")]
    layers = [layer for layer in layers if f"{layer}/kernel" in arrays]
    _fold_norm(arrays, options, f"{block}/LayerNorm_1", layers)
  if last:
    _fold_norm(arrays, options, "Transformer/encoder_norm", after)
  eps = {"eps": options["norm_kw"]["eps"]}  # of LayerNorms elsewhere
  options |= {"norm": "none", "norm_kw": eps, "qkv_bias": True}
  options |= {"final_norm": False} if last else {}
  return dataclasses.replace(model, arrays=arrays, options=options)


def _after_encoder(arrays, pool_type):
  """Returns the names of the dense layers that see the encoded tokens."""
  attention = "MAPHead_0/MultiHeadDotProductAttention_0"
  if pool_type == "map":
    return [f"{attention}/key", f"{attention}/value"]
  dense = [x for x in ("pre_logits", "head") if f"{x}/kernel" in arrays]
  return dense[:1] if pool_type in ("tok", "0", "gap") else []


def _fold_norm(arrays, options, norm, layers):
  """Folds a norm a x + b into dense layers W x + c, in place."""
  found = {
    name.removeprefix("batch_stats/").removeprefix(f"{norm}/"): arrays.pop(name)
    for name in list(arrays)
    if name.removeprefix("batch_stats/").startswith(f"{norm}/")
  }
  a, b = found["scale"].astype(np.float64), found["bias"]
  if "var" in found:
    a = a / np.sqrt(found["var"] + options["norm_kw"]["eps"])
    b = b - found.get("mean", 0) * a
  a = a + found.get("eta", 0)
  for layer in layers:
    kernel = arrays[f"{layer}/kernel"]
    bias = arrays.get(f"{layer}/bias", 0) + np.tensordot(b, kernel, 1)
    kernel = a.reshape(-1, *[1] * (kernel.ndim - 1)) * kernel
    arrays[f"{layer}/kernel"] = kernel.astype(np.float32)
    arrays[f"{layer}/bias"] = bias.astype(np.float32)
