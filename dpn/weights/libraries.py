"""What timm and transformers say of a model in the files beside it."""

from typing import Any, TypedDict

import numpy as np

from dpn.weights import preprocessing, timm_models
from dpn.weights.pixels import Pixels

_HF_TANH = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh")
_HF_GELUS = {
  **dict.fromkeys(["gelu", "gelu_python"], "exact"),
  **dict.fromkeys(_HF_TANH, "tanh"),
}
_TIMM_GELUS = {"gelu": "exact", "gelu_tanh": "tanh"}
_TIMM_POOLS = {"token": "tok", "avg": "gap", "map": "map", "": "none"}
# Arguments of timm's class that make other functions of equal names.
_TIMM_OTHERS = ("norm_layer", "block_fn", "mlp_layer", "attn_layer")
_PRE = {"sa": "pre", "mlp": "pre", "post": "branch"}


class PixelValues(TypedDict, total=False):
  mean: list[float] | float | None
  std: list[float] | float | None


class _TimmArgs(TypedDict, total=False):
  act_layer: str | None
  global_pool: str | None
  no_embed_class: bool | None
  num_heads: int


class _TimmImage(PixelValues, total=False):
  crop_mode: str | None
  crop_pct: float | None
  input_size: list[int] | None
  interpolation: str | None


class Timm(_TimmImage, total=False):
  """config.json of timm."""

  architecture: str
  global_pool: str | None
  model_args: _TimmArgs
  pretrained_cfg: _TimmImage


class HuggingFace(TypedDict, total=False):
  """config.json of transformers."""

  hidden_act: str
  layer_norm_eps: float
  model_type: str
  num_attention_heads: int
  pooler_act: str


class HuggingFaceImage(TypedDict, total=False):
  """preprocessor_config.json of transformers."""

  crop_size: dict | list[int] | int | None
  do_center_crop: bool | None
  do_normalize: bool | None
  do_resize: bool | None
  do_rescale: bool | None
  rescale_factor: float
  image_mean: list[float] | float | None
  image_std: list[float] | float | None
  resample: int | None
  size: dict | list[int] | int | None


def timm(config: Timm, arch: str | None) -> dict[str, Any]:
  """Returns fields of `metadata.ModelMetadata` for a model of timm.

  Args:
    config: its config.json, empty if there is none.
    arch: name of the model, if a person gives it.

  Raises:
    ValueError: ours cannot be the model, or both name different ones.
  """
  args = config.get("model_args", {})
  said = str(config.get("architecture", "")).partition(".")[0]
  if arch and said not in ("", arch.partition(".")[0]):
    raise ValueError(
      f"arch={arch!r} contradicts the file's config.json, which has {said!r}."
    )
  name = arch or said
  others = [x for x in _TIMM_OTHERS if x in args]
  if "_rpn_" in name or others:
    raise ValueError(
      "The file's model has other blocks or norms than ours, although their "
      f"arrays have the same names: {', '.join(others) or name}."
    )
  model = timm_models.find(name)
  options = {
    "gelu": "exact",
    **{"norm": "layernorm", "norm_kw": {"eps": 1e-6}},
    **{"block_ln": "placement", "block_ln_kw": _PRE},
    **(model.options if model else {}),
  }
  guessed = [] if model else ["gelu", "norm_kw", "block_ln_kw"]
  if act := args.get("act_layer"):
    options["gelu"] = _gelu(act, _TIMM_GELUS)
    guessed = guessed[1:]
  if heads := args.get("num_heads"):
    options["num_heads"] = heads
  pool = args.get("global_pool", config.get("global_pool"))
  if pool is not None:
    options["pool_type"] = _timm_pool(pool)
  row = None if model is None else model.cls_row
  if args.get("no_embed_class") is not None:
    row = not args["no_embed_class"]
  source = "its config.json" if config else "timm's defaults"
  image = config.get("pretrained_cfg", config)
  values = pixels(image.get("mean"), image.get("std"))
  return {
    "options": options,
    "pixels": values,
    "pp": preprocessing.of_timm(image, values),
    "cls_row": row,
    "source": f"timm's {arch}" if arch else source,
    "guessed": tuple(guessed),
  }


def _timm_pool(pool):
  if pool not in _TIMM_POOLS:
    raise ValueError(
      f"The file's model pools by {pool!r}, according to its config.json; ours "
      f"has {', '.join(map(repr, _TIMM_POOLS))}."
    )
  return _TIMM_POOLS[pool]


def hugging_face(
  config: HuggingFace, image: HuggingFaceImage
) -> dict[str, Any]:
  """Returns fields of `metadata.ModelMetadata` for a model of transformers.

  Args:
    config: its config.json, empty if there is none.
    image: its preprocessor_config.json, likewise.

  Raises:
    ValueError: ours cannot be the model.
  """
  if (act := config.get("pooler_act", "tanh")) != "tanh":
    raise ValueError(
      f"The file's model has the activation {act!r} behind its pooler, "
      "according to its config.json; ours has tanh."
    )
  options = {
    "gelu": _gelu(config.get("hidden_act", "gelu"), _HF_GELUS),
    "norm": "layernorm",
    "norm_kw": {"eps": config.get("layer_norm_eps", 1e-12)},
    "num_heads": config.get("num_attention_heads"),
    # I-JEPA alone has no class token.
    "pool_type": None if config.get("model_type") == "ijepa" else "tok",
  }
  mean, std = image.get("image_mean"), image.get("image_std")
  if image.get("do_normalize") is False:
    mean, std = (0.0,), (1.0,)
  # Both are of levels from 0 to 255 times a factor, ours of levels to 1.
  factor = image.get("rescale_factor", 1 / 255)
  white = 255 * (factor if image.get("do_rescale", True) else 1)
  values = pixels(mean, std, white)
  source, guessed = "its config.json", ()
  if not config:
    source, guessed = "the defaults of transformers", ("gelu", "norm_kw")
  return {
    "options": {k: v for k, v in options.items() if v is not None},
    "pixels": values,
    "pp": preprocessing.of_hugging_face(image, values) if image else None,
    "cls_row": True,
    "source": source,
    "guessed": guessed,
  }


def pixels(mean=None, std=None, white: float = 1.0) -> Pixels | None:
  """Returns pixels of images from 0 to `white`; None if a file lacks them."""
  if not mean or not std:
    return None
  if np.size(mean) != np.size(std) or np.min(std) <= 0 or white <= 0:
    raise ValueError(
      f"The file's pixels have mean {mean} and std {std}; expected as many of "
      "both, and each std above 0."
    )
  return Pixels(np.divide(mean, white), np.divide(std, white))


def _gelu(act, known):
  if act not in known:
    raise ValueError(
      f"The file's model has the activation {act!r}; ours has GELU, exact or "
      f"approximated by tanh ({', '.join(known)})."
    )
  return known[act]
