"""Writes a Vision Transformer in the layout of another library."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpn import registry
from dpn.models import posemb
from dpn.weights import (
  arguments,
  big_vision,
  files,
  fold,
  hf_vit,
  metadata,
  names,
  preprocessing,
  source,
  timm_vit,
  vit_pytorch,
)
from dpn.weights.vit_params import VitParams

DOCS = "docs/checkpoints.md"
# By library, the options that its own Vision Transformer has.
SUPPORTED: dict[str, Mapping[str, Sequence]] = {
  "big_vision": big_vision.SUPPORTED,
  "naflex_vit": big_vision.SUPPORTED_NAFLEX,
  "timm": timm_vit.SUPPORTED,
  "hf": hf_vit.SUPPORTED,
  **vit_pytorch.SUPPORTED,
}
SUFFIXES = {
  "ours": [".safetensors", ""],
  "big_vision": [".npz"],
  "naflex_vit": [".npz"],
  "timm": [".safetensors", ""],
  "hf": [".safetensors", ""],
  **{key: [".safetensors"] for key in vit_pytorch.SUPPORTED},
}
_UNKNOWN_GRID = "The grid is not known: tell the model the images' size."


@dataclasses.dataclass(frozen=True)
class Exported:
  """What to write.

  Attributes:
    arrays: by name.
    metadata: of the file.
    config: what a folder's other files hold, as {file: JSON}.
    notes: what to tell the user.
  """

  arrays: Mapping[str, np.ndarray]
  metadata: Mapping[str, str]
  config: Mapping[str, Any]
  notes: Sequence[str]


def export(
  model: VitParams,
  to: str,
  *,
  no_embed_class: bool = False,
  extra_modules: bool = False,
) -> Exported:
  """Returns what to write for another library.

  Args:
    model: see `vit_params.read`.
    to: a key of `SUFFIXES`.
    no_embed_class: timm's class token has no position.
    extra_modules: write Dual PatchNorm's norms for a model to which the user
      has added them; the library's own model would not apply them.

  Raises:
    ValueError: the other library cannot express the model.
  """
  if no_embed_class and to != "timm":
    raise ValueError("--no_embed_class is a convention of timm: --to timm.")
  if to == "ours":
    return Exported(model.arrays, _metadata(model), {}, [])
  if to != "big_vision":
    model = fold.without_linear_stem(fold.without_weight_norm(model))
  wrong = _unsupported(model.options, to, extra_modules)
  if to == "big_vision":
    return _big_vision(model, wrong)
  if wrong:
    advice, title = "", "big_vision's NaFlexViT"
    if to in source.LIBRARIES:
      title = source.LIBRARIES[to].title
      is_vit_pytorch = to in vit_pytorch.SUPPORTED
      extended = ("stem_eps=", "norm_kw=") if is_vit_pytorch else "stem_ln="
      if model.options["stem_ln"] in names.STEMS and any(
        reason.startswith(extended) for reason in wrong
      ):
        advice = f" --extra_modules is for a model extended as {DOCS} shows."
    raise ValueError(
      f"{title} has no such Vision Transformer: "
      f"{'; '.join(wrong)}. --to ours and --to big_vision keep everything."
      + advice
    )
  if to in vit_pytorch.SUPPORTED:
    return _vit_pytorch(model, to)
  model = _with_positions(model)
  if to == "naflex_vit":
    return _naflex(model)
  return _timm(model, no_embed_class) if to == "timm" else _hf(model)


def _unsupported(options, to, extra_modules) -> list[str]:
  """Returns the options that a library lacks, with the values that it has."""
  supported: dict[str, Any] = dict(SUPPORTED[to])
  eps = {"eps": timm_vit.EPS}
  if to == "timm" and (kind := timm_vit.KINDS.get(options["stem_ln"])):
    supported |= kind.supported
    [eps] = kind.supported["norm_kw"]
    if options["pool_type"] == "tok":  # the norm includes the class token
      supported["posemb_join_kw"] = [{"cls": True}]
  elif extra_modules and to != "naflex_vit":
    if to in vit_pytorch.SUPPORTED:
      supported |= {k: [options[k]] for k in ("stem_eps", "norm_kw")}
    else:
      supported["stem_ln"] = names.STEMS
  if to == "timm" and options["pool_norm"] and options["norm"] == "layernorm":
    supported |= {"final_norm": [False], "pool_norm": [True]}
  if to == "timm" and options["qk_norm"] != "none":
    supported["qk_norm_kw"] = [eps]
  if to == "hf" and options["num_classes"]:
    supported["rep_size"] = [False]
  if options["stem_ln"] == "none":
    del supported["stem_eps"]
  return [
    f"{name}={options[name]!r} (only {', '.join(map(str, known))})"
    for name, known in supported.items()
    if not any(metadata.agree(options[name], x) for x in known)
  ]


def _big_vision(model, unsupported):
  is_param = lambda name: not name.startswith(f"{files.STATISTICS}/")
  arrays = {
    f"params/{name}" if is_param(name) else name: x
    for name, x in model.arrays.items()
  }
  notes = []
  if unsupported:
    notes.append(
      f"big_vision's own ViT does not have {'; '.join(unsupported)}: this file "
      f"keeps our names, and only our model computes it. See {DOCS}."
    )
  return Exported(arrays, _metadata(model), {}, notes)


def _naflex(model):
  """Returns big_vision's NaFlexViT, which has no class token."""
  options, grid = model.options, model.grid or (0, 1)
  if grid[0] != grid[1]:
    raise ValueError(
      "big_vision's NaFlexViT has positions for as many rows as columns of "
      f"patches; this model has {model.grid or 'an unknown grid'}. Give "
      "--resolution with the side of square images."
    )
  arrays = big_vision.to_naflex(model.arrays, grid)
  known = ("num_classes", "width", "depth", "mlp_dim", "num_heads")
  args = {k: options[k] for k in (*known, "rep_size", "pool_type")}
  args["nposemb"] = grid[0]
  args["patchln_pre"] = options["stem_ln"] in ("pre", "dpn")
  args["patchln_post"] = options["stem_ln"] in ("post", "dpn")
  return Exported(
    {f"params/{name}": x for name, x in arrays.items()},
    _metadata(model, "naflex_vit", naflex_vit=args),
    {},
    [
      f"naflex_vit.Model(**{args})",
      "Its patches are in the order row, column.",
    ],
  )


def _timm(model, no_embed_class):
  if no_embed_class and model.cls_row:
    raise ValueError(
      "--no_embed_class: the class token of this model has a position of its "
      "own (posemb_join_kw={'cls': True}). Leave the flag out."
    )
  options = model.options
  prefix = (options["pool_type"] == "tok") + options["registers"]
  prefix *= not no_embed_class
  kind, notes = timm_vit.KINDS.get(model.options["stem_ln"]), []
  eps = model.options["norm_kw"]["eps"]
  if kind:
    model = fold.without_biases(model, kind.no_biases)
  elif eps != timm_vit.EPS:
    model = fold.with_epsilon(model, timm_vit.EPS)
    notes.append(
      f"timm's LayerNorm has the epsilon {timm_vit.EPS:g}, this model {eps:g}: "
      "the residual stream is scaled so that both compute the same."
    )
  arrays, more = _in_torch_names(model, "timm", prefix)
  if kind:
    arrays = {k.replace(*kind.renamed): x for k, x in arrays.items()}
  args = arguments.timm(model, no_embed_class)
  size = np.broadcast_to(args.get("img_size", 224), 2).tolist()
  image, unsaid = preprocessing.for_library(model.pp, "timm")
  mean, std = (model.pixels or preprocessing.BIG_VISION).of(model.patch[2])
  config = {
    "architecture": kind.architecture if kind else "vit_base_patch16_224",
    "num_classes": args["num_classes"],
    "num_features": args["embed_dim"],
    "global_pool": args["global_pool"],
    "model_args": args,
    "pretrained_cfg": {
      "custom_load": False,
      "input_size": [model.patch[2], *size],
      **{"mean": mean, "std": std},
      "num_classes": args["num_classes"],
      "first_conv": "patch_embed.proj",
      "classifier": "head",
      **image,
    },
  }
  made = f"timm.models.vision_transformer.VisionTransformer(**{args})"
  if kind:
    made = f"timm.create_model({kind.architecture!r}, **{args})"
  return Exported(
    arrays,
    _metadata(model, "timm", cls_row=not no_embed_class, timm=args),
    {"config.json": config},
    [made, *more, *notes, *unsaid],
  )


def _vit_pytorch(model, to):
  """Returns the state dict of a `ViT` or `SimpleViT`."""
  options, library = model.options, source.LIBRARIES[to]
  heads, size = options["num_heads"], model.grid
  patch, notes = model.patch[:2], []
  args = {
    "image_size": tuple(np.multiply(size, patch).tolist()) if size else None,
    "patch_size": patch,
    "num_classes": options["num_classes"] or 0,
    **{"dim": options["width"], "depth": options["depth"], "heads": heads},
    **{"mlp_dim": options["mlp_dim"], "channels": model.patch[2]},
    "dim_head": options["head_dim"] or options["width"] // heads,
  }
  title, arrays = "simple_vit.SimpleViT", dict(model.arrays)
  if to == "vit_pytorch":
    is_tok, title = options["pool_type"] == "tok", "vit.ViT"
    args["pool"] = "cls" if is_tok else "mean"
    arrays = dict(_with_positions(model).arrays)
    arrays.setdefault("cls", np.zeros((1, 0, options["width"]), np.float32))
    table = _with_rows(arrays["pos_embedding"], model.cls_row, int(is_tok))
    arrays["pos_embedding"] = table
  else:
    arrays.setdefault("head/kernel", np.zeros((options["width"], 0), "f"))
    arrays.setdefault("head/bias", np.zeros(0, "f"))
  stem = model.options["stem_eps"]
  found = {"": options["norm_kw"]["eps"], ".to_patch_embedding": stem}
  if {*found.values()} != {vit_pytorch.EPS}:
    notes += [
      f"[setattr(m, 'eps', {eps:g}) for m in model{part}.modules() if "
      "isinstance(m, torch.nn.LayerNorm)]"
      for part, eps in found.items()
    ]
  if not size:
    notes.append(_UNKNOWN_GRID)
  return Exported(
    names.from_ours(arrays, library),
    _metadata(model, to, cls_row=to == "vit_pytorch", vit_pytorch=args),
    {},
    [f"vit_pytorch.{title}(**{args})", *notes],
  )


def _hf(model):
  arrays, notes = _in_torch_names(model, "hf", 1)
  config = arguments.hugging_face(model)
  [title] = config["architectures"]
  if model.options["num_classes"]:
    prefix = lambda name: "" if name.startswith("classifier.") else "vit."
    arrays = {prefix(name) + name: x for name, x in arrays.items()}
  elif not model.options["rep_size"]:
    notes.append(
      "There is no tanh layer: ViTModel(config, add_pooling_layer=False)."
    )
  rows, cols = np.broadcast_to(config.get("image_size", 224), 2).tolist()
  said, unsaid = preprocessing.for_library(model.pp, "transformers")
  mean, std = (model.pixels or preprocessing.BIG_VISION).of(model.patch[2])
  image = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": rows, "width": cols},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": mean,
    "image_std": std,
    **said,
  }
  return Exported(
    arrays,
    _metadata(model, "hf", cls_row=True, hf=config),
    {"config.json": config, "preprocessor_config.json": image},
    [f"{title}, ViTConfig(**{config})", *notes, *unsaid],
  )


def _in_torch_names(model, to, prefix):
  """Returns arrays as PyTorch has them, and notes on what has no place there.

  `prefix` is the number of tokens before the patches that have positions there.
  """
  arrays, library = dict(model.arrays), source.LIBRARIES[to]
  table = _with_rows(arrays["pos_embedding"], model.cls_row, prefix)
  arrays["pos_embedding"] = table
  extra = [
    f"{ours} ({theirs}.*)"
    for theirs, ours in library.modules.items()
    if ours in library.extra and f"{ours}/scale" in arrays
  ]
  notes = []
  if extra:
    notes.append(
      f"{library.title}'s own model has no place for {', '.join(extra)}. "
      f"{DOCS} has the few lines that add it."
    )
  if not model.grid:
    notes.append(_UNKNOWN_GRID)
  return names.from_ours(arrays, library), notes


def _with_rows(positions, has: bool, prefix: int):
  """Returns a table with `prefix` rows before those of the patches.

  Added rows are zero and follow the row that the table `has`, if any.
  """
  return np.insert(positions, [int(has)] * (prefix - has), 0, axis=1)


def _with_positions(model):
  """Returns the model with a fixed table of positions written out."""
  if "pos_embedding" in model.arrays:
    return model
  name, kw, width = map(model.options.get, ("posemb", "posemb_kw", "width"))
  if not model.grid:
    raise ValueError(
      f"posemb={name!r} has no parameters; to write its table, "
      "add --resolution with the size of the images in pixels."
    )
  table = registry.bind("posemb", name, posemb.POSEMBS, kw)
  fixed = np.asarray(table(model.grid, width, int(model.cls_row)))
  arrays = {**model.arrays, "pos_embedding": fixed}
  return dataclasses.replace(model, arrays=arrays)


def _metadata(model, layout="ours", **more):
  more |= {metadata.LOADER: dict(model.loader)} if model.loader else {}
  return metadata.metadata(
    model.options, model.pixels, layout, pp=model.pp, **more
  )
