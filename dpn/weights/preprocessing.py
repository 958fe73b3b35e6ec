"""How images are prepared for a model, as a string of `input_pipeline.pp`.

Runs record it in their config, timm and Hugging Face in files beside their
parameters; anything left open defaults to big_vision's evaluation. This module
only writes strings and translates them; `describe` tells what they do.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from dpn import calls
from dpn.weights.pixels import Pixels

Size = tuple[int, int]  # rows and cols, in pixels

DEFAULT_SIDE = 224
BIG_VISION = Pixels((0.5,), (0.5,))  # value_range(-1, 1)
_TIMM_METHODS = ("bicubic", "bilinear", "nearest")
_HF_METHODS = {0: "nearest", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers


@dataclasses.dataclass(frozen=True)
class Preprocess:
  """How to turn an image into the input that a model was made for.

  Attributes:
    pp: ops on the key "image", none of them random, for
      `dpn.input_pipeline.pp.make`.
    shape: (rows, cols, channels) of the result; rows and cols are None if the
      ops leave them open, and nothing else tells them.
    pixels: mean and standard deviation that the ops normalize with; None
      unless exactly one op normalizes.
    assumed: the ops that are defaults, because no file states them.
  """

  pp: str
  shape: tuple[int | None, int | None, int]
  pixels: Pixels | None
  assumed: tuple[str, ...] = ()


def describe(pp: str | None) -> dict[str, Any]:
  """Returns what a string does to images, see `input_pipeline.pp.describe`.

  The user's own ops are known if `config.pp_modules` has been read.
  """
  found = calls.describe(pp or "")
  return found | {"pixels": found["pixels"] and Pixels(*found["pixels"])}


def make(
  pp: str | None,
  pixels: Pixels | None,
  size: Size | tuple[None, None] | None,
  patch: tuple[int, int, int],
) -> Preprocess:
  """Returns the preprocessing of a model.

  Args:
    pp: the ops stated in a file, None to assume big_vision's.
    pixels: stated in a file without `pp`, None to assume big_vision's.
    size: the image size that the model has positions for, (None, None) if that
      is unknown; None if it takes any size.
    patch: (rows, cols, channels) of the pixels for one token.
  """
  channels = patch[2]
  if pp is not None:
    does = describe(pp)
    shape = (*(does["size"] or size or (None, None)), channels)
    return Preprocess(pp, shape, does["pixels"])
  if size is None:
    rows, cols = (max(DEFAULT_SIDE // px, 1) * px for px in patch[:2])
    size = rows, cols
  resizing, values = _resizing(*size), str(pixels or BIG_VISION)
  return Preprocess(
    "|".join([_decode(channels), *resizing, values]),
    (*size, channels),
    pixels or BIG_VISION,
    assumed=(*resizing, *([] if pixels else [values])),
  )


def _resizing(rows, cols):
  """Returns big_vision's evaluation ops, which crop an eighth off."""
  if rows is None:
    return []
  if rows != cols:
    return [f"resize({(rows, cols)})"]
  return [f"resize_small({rows * 8 // 7})", f"central_crop({rows})"]


def of_run(config: Mapping[str, Any]) -> str | None:
  """Returns a run's preprocessing for evaluation, None if it evaluates nothing.

  Classification takes precedence over other evaluators.
  """
  sections = (config.get("evals") or {}).items()
  kinds = [(section.get("type", name), section) for name, section in sections]
  kinds.sort(key=lambda both: both[0] != "classification")  # stable
  found = (
    describe(section[key])
    for kind, section in kinds
    for key in ("pp_fn", "pp_eval", "pp_img")
    if kind != "corruptions" and isinstance(section.get(key), str)
  )
  does = next((x for x in found if x["image_ops"]), None)
  if does is None or does["size"]:
    return does["image_ops"] if does else None
  # Sliding windows, or images that have the right size already.
  window = describe((config.get("input") or {}).get("pp"))["size"]
  crop = f"|central_crop({window})" if window else ""
  return does["image_ops"] + crop


def of_timm(config: Mapping[str, Any], pixels: Pixels | None) -> str | None:
  """Returns timm's `create_transform` as a string, None if underspecified.

  `config` is the `pretrained_cfg`.
  """
  size = config.get("input_size")
  method = config.get("interpolation")
  mode = config.get("crop_mode") or "center"
  known = pixels and method in _TIMM_METHODS and _are_px(size, 3)
  if not known or mode not in ("center", "squash"):
    return None
  channels, *size = size  # type: ignore[misc]
  percent = config.get("crop_pct") or 0.875
  rows, cols = (math.floor(side / percent) for side in size)
  if mode == "squash":
    resizing = f"resize({(rows, cols)}{_by(method)})"
  elif rows == cols:
    resizing = f"resize_small({rows}{_by(method)}, rounded=False)"
  else:
    return None
  crop = f"central_crop({tuple(size)}, rounded=True)"
  return "|".join([_decode(channels), resizing, crop, str(pixels)])


def of_hugging_face(
  image: Mapping[str, Any], pixels: Pixels | None, channels: int = 3
) -> str | None:
  """Returns what an image processor of transformers does, None if unclear.

  `image` is its preprocessor_config.json.
  """
  ops, size = [_decode(channels)], image.get("size")
  if image.get("do_resize", True):
    method = _HF_METHODS.get(image.get("resample", 2))
    side = size.get("shortest_edge") if isinstance(size, Mapping) else None
    if method and _are_px([side], 1):
      ops.append(f"resize_small({side}{_by(method)}, rounded=False)")
    elif method and (both := size_of(size)):
      ops.append(f"resize({both}{_by(method)})")
    else:
      return None
  if image.get("do_center_crop"):
    if not (both := size_of(image.get("crop_size"))):
      return None
    ops.append(f"central_crop({both})")
  return "|".join([*ops, str(pixels)]) if pixels else None


def for_library(
  pp: str | None, library: str
) -> tuple[dict[str, Any], list[str]]:
  """Returns `pp` as entries of timm's or transformers' config, and notes."""
  if pp is None:
    return {}, []
  resized = describe(pp)["resized"]
  say = {"timm": _as_timm, "transformers": _as_hugging_face}[library]
  is_area = resized and resized["method"] == "area"
  resized = {**resized, "method": "bilinear"} if is_area else resized
  if not resized or not (said := say(**resized)):
    note = f"{library} has no words for this model's preprocessing, {pp!r}: "
    return {}, [f"{note}its own is written."]
  if is_area:
    note = f"{library} has no method 'area', as in {pp!r}: bilinear is written."
    return said, [note]
  if resized["antialias"]:
    return said, []
  return said, [
    f"{library} antialiases images that it makes smaller, which this model's "
    f"preprocessing does not: {pp!r}."
  ]


def _as_timm(size, crop, method, **_) -> dict[str, Any] | None:
  """Returns what `of_timm` reads, None if timm cannot express it."""
  rows, cols = size if isinstance(size, tuple) else (size, size)
  if rows != cols or crop[0] != crop[1] or method not in _TIMM_METHODS:
    return None
  percent = crop[0] / rows
  if math.floor(crop[0] / percent) != rows:
    percent = crop[0] / (rows + 0.5)  # rounded down again
  mode = "squash" if isinstance(size, tuple) else "center"
  return {"crop_pct": percent, "crop_mode": mode, "interpolation": method}


def _as_hugging_face(size, crop, method, **_) -> dict[str, Any] | None:
  """Returns what `of_hugging_face` reads, None if it cannot be expressed."""
  numbers = {name: number for number, name in _HF_METHODS.items()}
  if method not in numbers:
    return None
  both = lambda x: {"height": x[0], "width": x[1]}
  image = {"do_resize": True, "resample": numbers[method]}
  if size == crop:
    return {**image, "size": both(size)}
  size = both(size) if isinstance(size, tuple) else {"shortest_edge": size}
  # ViTImageProcessor does not crop.
  kind = {"image_processor_type": "CLIPImageProcessor"}
  crop = {"do_center_crop": True, "crop_size": both(crop)}
  return {**kind, **image, "size": size, **crop}


def size_of(size) -> Size | None:
  """Returns the (rows, cols) that JSON of a library states, if it does."""
  if isinstance(size, Mapping):
    size = [size.get("height"), size.get("width")]
  size = [size, size] if isinstance(size, int) else size
  return tuple(size) if _are_px(size, 2) else None


def _are_px(size, count) -> bool:
  """Returns whether `size` is a list of `count` positive integers."""
  whole = lambda x: isinstance(x, int) and x > 0
  is_list = isinstance(size, list | tuple) and len(size) == count
  return is_list and all(map(whole, size))


def _by(method) -> str:
  """Returns arguments that resize as Pillow does, which antialiases."""
  smooth = "" if method == "nearest" else ", antialias=True"
  return f', method="{method}"{smooth}'


def _decode(channels) -> str:
  return "decode(channels=1)" if channels == 1 else "decode"
