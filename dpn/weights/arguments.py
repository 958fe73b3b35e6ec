"""Arguments with which other libraries make the same model as ours."""

from typing import Any

import numpy as np

from dpn.weights import hf_vit, timm_vit
from dpn.weights.vit_params import VitParams


def timm(model: VitParams, no_embed_class: bool) -> dict[str, Any]:
  """Returns arguments of timm's VisionTransformer."""
  options, size = model.options, _image_size(model)
  ratio = options["mlp_dim"] / options["width"]
  if int(options["width"] * ratio) != options["mlp_dim"]:
    ratio = (options["mlp_dim"] + 0.5) / options["width"]  # rounded down again
  args: dict[str, Any] = {"img_size": size} if size else {}
  args |= {
    "patch_size": _side(*model.patch[:2]),
    "embed_dim": options["width"],
    "depth": options["depth"],
    "num_heads": options["num_heads"],
    "mlp_ratio": ratio,
    "qkv_bias": options["qkv_bias"],
    "num_classes": options["num_classes"] or 0,
    "class_token": options["pool_type"] == "tok",
    "global_pool": _their_name(timm_vit.POOLS, options["pool_type"]),
    "fc_norm": options["pool_norm"],
  }
  if options["mlp"] == "mlp":  # a gated one has its own
    args["act_layer"] = _their_name(timm_vit.GELUS, options["gelu"])
  if model.patch[2] != 3:
    args["in_chans"] = model.patch[2]
  if no_embed_class:
    args["no_embed_class"] = True
  if options["registers"]:
    args["reg_tokens"] = options["registers"]
  if options["qk_norm"] != "none":
    args["qk_norm"] = True
  if options["layer_scale"] is not None:
    args["init_values"] = options["layer_scale"]
  if options["stem_ln"] in ("post", "dpn"):
    args["embed_norm_layer"] = "layernorm"
  return args


def hugging_face(model: VitParams) -> dict[str, Any]:
  """Returns the config.json of ViTModel or ViTForImageClassification."""
  options = model.options
  classes, width, rep_size = map(
    options.get, ("num_classes", "width", "rep_size")
  )
  config = {
    "architectures": ["ViTForImageClassification" if classes else "ViTModel"],
    "model_type": "vit",
    "hidden_size": width,
    "num_hidden_layers": options["depth"],
    "num_attention_heads": options["num_heads"],
    "intermediate_size": options["mlp_dim"],
    "hidden_act": _their_name(hf_vit.GELUS, options["gelu"]),
    "layer_norm_eps": options["norm_kw"]["eps"],
    "patch_size": _side(*model.patch[:2]),
    "num_channels": model.patch[2],
    "qkv_bias": options["qkv_bias"],
  }
  known = {
    "image_size": _image_size(model),
    "num_labels": classes,
    "pooler_output_size": width if rep_size is True else rep_size,
  }
  return config | {key: value for key, value in known.items() if value}


def _image_size(model):
  grid = model.grid
  return _side(*np.multiply(grid, model.patch[:2]).tolist()) if grid else None


def _side(rows, cols):
  """Returns the side of a square, or (rows, cols)."""
  return rows if rows == cols else [rows, cols]


def _their_name(table, value):
  return next(theirs for theirs, ours in table.items() if ours == value)
