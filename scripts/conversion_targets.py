"""Our layout in those of other libraries, with what each has no place for."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpn.models import norms, placement, posemb
from dpn.weights import infer, torch_names
from dpn.weights import metadata as origin
from dpn.weights.files import STATISTICS
from scripts import conversion_files, conversion_source

DOCS = "docs/checkpoints.md"
BIG_VISION = {
  "stem_ln": "none",
  "conv_stem": None,
  "posemb_join": "add",
  "block_ln": placement.get("sa=pre,mlp=pre"),
  "norm": "layernorm",
  "gelu": "tanh",
  "qkv_bias": True,
}
# Stems whose LayerNorms can be named elsewhere; the others are not LayerNorms,
# or stand behind the sum with the positions.
STEMS = ("none", "post", "pre", "dpn")
TIMM_GELUS = {"tanh": "gelu_tanh", "exact": "gelu"}
HF_GELUS = {"tanh": "gelu_pytorch_tanh", "exact": "gelu"}
TIMM_POOLS = {"tok": "token", "gap": "avg", "map": "map"}


def write(
  source: conversion_source.Checkpoint, to: str, no_embed_class: bool
) -> conversion_files.Written:
  """Returns what to write.

  Args:
    source: the model.
    to: key of `WRITERS`.
    no_embed_class: see `scripts.convert`.

  Raises:
    ValueError: the other library cannot express the model.
  """
  if no_embed_class and to != "timm":
    raise ValueError("--no_embed_class is a convention of timm: --to timm.")
  if to == "timm":
    return _timm(source, no_embed_class)
  return WRITERS[to](source)


def _ours(source):
  return conversion_files.Written(source.arrays, _metadata(source, "ours"))


def _big_vision(source):
  options, notes = source.model, []
  stats = [k for k in source.arrays if k.startswith(f"{STATISTICS}/")]
  arrays = {
    name if name in stats else f"params/{name}": x
    for name, x in source.arrays.items()
  }
  differ = [
    f"{name}={getattr(options, name)!r}"
    for name, plain in BIG_VISION.items()
    if _comparable(name, getattr(options, name)) != _comparable(name, plain)
  ]
  if options.pool_type not in ("tok", "gap", "map", "0", "none"):
    differ.append(f"pool_type={options.pool_type!r}")
  if options.posemb.partition(",")[0] not in ("learn", "sincos2d"):
    differ.append(f"posemb={options.posemb!r}")
  if differ:
    notes.append(
      f"big_vision's own ViT does not have {', '.join(differ)}: this file "
      f"keeps our names, and only our model computes it. See {DOCS}."
    )
  return conversion_files.Written(
    arrays, _metadata(source, "ours"), notes=notes
  )


def _comparable(name, value):
  return (
    origin.CHECKED[name](value)
    if name in origin.CHECKED and isinstance(value, str)
    else value
  )


def _timm(source, no_embed_class):
  model = source.model
  _check_plain(source, "timm", TIMM_POOLS)
  arrays = _with_posemb(source)
  tokens = model.pool_type == "tok"
  row = tokens and not no_embed_class
  if no_embed_class and source.has_row:
    raise ValueError(
      "--no_embed_class: the class token of this model has a position of its "
      "own (posemb_join='add,cls_row=true'). Leave the flag out."
    )
  if row and not source.has_row:
    arrays["pos_embedding"] = torch_names.with_cls_row(arrays["pos_embedding"])
  args, notes = _timm_args(source, no_embed_class)
  written = torch_names.from_ours(arrays, "timm")
  notes += _homeless(arrays, torch_names.TIMM)
  mean, std = _mean_and_std(source)
  size = args.get("img_size", 224)
  config = {
    "architecture": "vit_base_patch16_224",
    "num_classes": args["num_classes"],
    "num_features": model.width,
    "global_pool": args["global_pool"],
    "model_args": args,
    "pretrained_cfg": {
      "custom_load": False,
      "input_size": [args.get("in_chans", 3), size, size],
      "mean": mean,
      "std": std,
      "num_classes": args["num_classes"],
      "first_conv": "patch_embed.proj",
      "classifier": "head",
    },
  }
  metadata = _metadata(source, "timm", cls_row=row, timm=args)
  notes.insert(0, f"timm.models.vision_transformer.VisionTransformer(**{args})")
  return conversion_files.Written(
    written, metadata, {"config.json": config}, notes
  )


def _timm_args(source, no_embed_class):
  """Returns arguments of timm's VisionTransformer, and notes on others."""
  model, notes = source.model, []
  rows, cols = model.patch_size
  args = {
    "patch_size": rows if rows == cols else [rows, cols],
    "embed_dim": model.width,
    "depth": model.depth,
    "num_heads": model.num_heads,
    "mlp_ratio": (model.mlp_dim or 4 * model.width) / model.width,
    "qkv_bias": model.qkv_bias,
    "num_classes": model.num_classes or 0,
    "class_token": model.pool_type == "tok",
    "global_pool": TIMM_POOLS[model.pool_type],
    "fc_norm": False,
    "act_layer": TIMM_GELUS[model.gelu],
  }
  size, note = _image_size(source)
  if size:
    args = {"img_size": size, **args}
  else:
    notes.append(f"{note}: give VisionTransformer its img_size.")
  if (channels := infer.channels(source.arrays)) != 3:
    args["in_chans"] = channels
  if no_embed_class:
    args["no_embed_class"] = True
  if model.stem_ln in ("post", "dpn"):
    args["embed_norm_layer"] = "layernorm"
  if (eps := norms.epsilon(model.norm)) != 1e-6:
    notes.append(
      "timm's LayerNorm has another epsilon: add "
      f"norm_layer=functools.partial(torch.nn.LayerNorm, eps={eps:g})."
    )
  return args, notes


def _hf(source):
  model = source.model
  _check_plain(source, "hf", {"tok": "class token"})
  arrays = _with_posemb(source)
  if not source.has_row:
    arrays["pos_embedding"] = torch_names.with_cls_row(arrays["pos_embedding"])
  written = torch_names.from_ours(arrays, "hf")
  notes = _homeless(arrays, torch_names.HF)
  title = "ViTModel"
  if model.num_classes:
    title = "ViTForImageClassification"
    written = {
      name if name.startswith("classifier.") else f"vit.{name}": x
      for name, x in written.items()
    }
    if model.rep_size:
      notes.append(
        f"{title} has no tanh layer before its head: vit.pooler.dense is in "
        f"the file, and has to be put in by hand. See {DOCS}."
      )
  elif not model.rep_size:
    notes.append(
      "There is no tanh layer: ViTModel(config, add_pooling_layer=False)."
    )
  config = _hf_config(source, title)
  if "image_size" not in config:
    notes.append(f"{_image_size(source)[1]}: set image_size in its config.")
  mean, std = _mean_and_std(source)
  size = config.get("image_size", 224)
  image = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": size, "width": size},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": mean,
    "image_std": std,
  }
  return conversion_files.Written(
    written,
    _metadata(source, "hf", cls_row=True, hf=config),
    {"config.json": config, "preprocessor_config.json": image},
    [f"{title}, ViTConfig(**{config})", *notes],
  )


def _hf_config(source, title):
  model = source.model
  rows, cols = model.patch_size
  config = {
    "architectures": [title],
    "model_type": "vit",
    "hidden_size": model.width,
    "num_hidden_layers": model.depth,
    "num_attention_heads": model.num_heads,
    "intermediate_size": model.mlp_dim or 4 * model.width,
    "hidden_act": HF_GELUS[model.gelu],
    "layer_norm_eps": norms.epsilon(model.norm),
    "patch_size": rows if rows == cols else [rows, cols],
    "num_channels": infer.channels(source.arrays),
    "qkv_bias": model.qkv_bias,
  }
  if size := _image_size(source)[0]:
    config["image_size"] = size
  if model.num_classes:
    config["num_labels"] = model.num_classes
  if model.rep_size:
    config["pooler_output_size"] = (
      model.width if model.rep_size is True else model.rep_size
    )
  return config


def _check_plain(source, key, pools):
  """Raises ValueError if the library's block or pooling is another one."""
  model, title = source.model, torch_names.LAYOUTS[key].title
  wrong = []
  if not model.norm.startswith("layernorm"):
    wrong.append(f"norm={model.norm!r} (only layernorm)")
  if placement.get(model.block_ln) != BIG_VISION["block_ln"]:
    wrong.append(f"block_ln={model.block_ln!r} (only sa=pre,mlp=pre)")
  if not model.posemb_join.startswith("add"):
    wrong.append(f"posemb_join={model.posemb_join!r} (only add)")
  if posemb.is_relative(model.posemb):
    wrong.append(f"posemb={model.posemb!r} (only absolute ones)")
  if model.conv_stem:
    wrong.append(f"conv_stem={model.conv_stem!r} (only patches)")
  if model.stem_ln not in STEMS:
    wrong.append(f"stem_ln={model.stem_ln!r} (only {', '.join(STEMS)})")
  if model.pool_type not in pools:
    wrong.append(f"pool_type={model.pool_type!r} (only {', '.join(pools)})")
  if wrong:
    raise ValueError(
      f"{title} has no such Vision Transformer: {'; '.join(wrong)}. --to ours "
      "and --to big_vision keep everything."
    )


def _with_posemb(source) -> dict[str, np.ndarray]:
  """Returns the arrays, fixed position embeddings among them."""
  arrays = dict(source.arrays)
  if "pos_embedding" not in arrays:
    grid = source.grid
    if not grid:
      raise ValueError(
        f"posemb={source.options['posemb']!r} has no parameters; to write its "
        "table, add --resolution with the size of the images in pixels."
      )
    kind = posemb.get_kind(source.model.posemb)
    table = kind.table(None, grid, source.model.width, int(source.has_row))
    arrays["pos_embedding"] = np.asarray(table)
  return arrays


def _mean_and_std(source):
  pixels = source.pixels or conversion_source.MINUS_ONE_TO_ONE
  return pixels.of(infer.channels(source.arrays))


def _image_size(source) -> tuple[int | None, str]:
  """Returns the side of the square images, or None and what is wrong."""
  rows, cols = source.model.patch_size
  tokens = source.tokens or math.prod(source.grid)
  side = math.isqrt(tokens)
  if side**2 != tokens or rows != cols:
    return None, f"The {tokens} patches of {rows}x{cols} px may lie in any grid"
  return side * rows, ""


def _homeless(arrays, layout) -> list[str]:
  """Returns notes on the arrays that the library's own model cannot hold."""
  found = [
    m
    for m in layout.without_place
    if any(k.startswith(f"{m}/") for k in arrays)
  ]
  if not found:
    return []
  listed = ", ".join(f"{m} ({layout.modules[m]}.*)" for m in found)
  return [
    f"{layout.title}'s own model has no place for {listed}. {DOCS} has the few "
    "lines that add it."
  ]


def _metadata(source, layout, **more) -> Mapping[str, Any]:
  return origin.metadata(
    origin.describe(source.model), source.pixels, layout, **more
  )


WRITERS = {
  "ours": _ours,
  "big_vision": _big_vision,
  "timm": _timm,
  "hf": _hf,
}
