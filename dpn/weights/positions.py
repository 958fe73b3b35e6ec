"""Fits learned position embeddings of a file to a model's grid of patches.

Grids are (rows, cols) in patches; unknown ones are taken to be squares.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import scipy.ndimage
from absl import logging

from dpn.models import compact
from dpn.weights import preprocessing
from dpn.weights.files import Flat
from dpn.weights.metadata import ModelMetadata


def fit(
  loaded: Flat,
  wanted: Flat,
  file: ModelMetadata,
  options: Mapping[str, Any],
  *,
  image_size: Sequence[int] | None = None,
  grid: Sequence[int] | None = None,
  align_corners: bool = True,
) -> tuple[Flat, set[str]]:
  """Returns the arrays with positions that fit, and what was resized.

  Each change is described as in "7×7 to 14×14".

  Args:
    loaded: arrays of a file by our names.
    wanted: of the model, or their shapes.
    file: what is known about the file's model.
    options: of the model; may be empty.
    image_size: see `load.load_variables`.
    grid: see `load.load_variables`, `posemb_grid`.
    align_corners: see `bilinear`.
  """
  changes = set()
  old_known = known_grid(file, loaded)
  new_known = grid or _in_patches(image_size, wanted, options)
  # The images of one of our runs need not be square.
  old_may_be_oblong = file.layout == "ours" and file.options and not old_known
  fits_anyway = not new_known or (old_may_be_oblong and not grid)

  def resize(x, tokens, row):
    if grid and math.prod(grid) != tokens:
      raise ValueError(
        f"model_load.posemb_grid={tuple(grid)} does not have the model's "
        f"{tokens} patches. Give rows and columns of images, in patches."
      )
    count = x.shape[-2] - row
    old, new = grid_of(count, old_known), grid_of(tokens, new_known)
    is_for_these = tokens == count and fits_anyway
    if is_for_these or None in (old, new) or old == new:
      return x
    changes.add("{}×{} to {}×{}".format(*old, *new))
    return resize_grid(x, old, new, row, bilinear(file, align_corners))

  row = "cls" in wanted  # a block's own positions always have one then
  loaded = dict(loaded)
  for name in names(loaded):
    if "/" in name and name in wanted:
      tokens = wanted[name].shape[-2] - row
      loaded[name] = resize(loaded[name], tokens, row)
  # Positions of text form no grid.
  if "pos_embedding" in loaded and "Embed_0/embedding" not in wanted:
    has_row = file.cls_row
    if file.layout == "ours" and has_row is None:
      has_row = has_cls_row(file.options)
    _fit_shared(loaded, wanted, has_row, has_cls_row(options), resize)
  return loaded, changes


def _fit_shared(loaded, wanted, has_row, wants_row, resize):
  """Fits the position embeddings (1, tokens, width) in `loaded`.

  Files from before 2022 also embed the position of the class token, in front:
  one row more than a square. The row stays if the model has one, too; otherwise
  it is added to the token itself. Whether there is a row may be unknown, None.
  """
  x, shape = loaded["pos_embedding"], None
  if "pos_embedding" in wanted:
    shape = wanted["pos_embedding"].shape
  if x.ndim != 3:
    return
  has_row = has_row and "cls" in loaded
  if has_row is None and x.shape == shape:
    if wants_row is None:
      return
    has_row = wants_row
  if has_row is None:
    one_more = shape is not None and x.shape[1] == shape[1] + 1
    has_row = square_plus_one(x.shape[1]) or ("cls" in loaded and one_more)
  if wants_row is None:
    wants_row = "cls" in wanted and shape and square_plus_one(shape[1])
  if has_row and not wants_row:
    logging.info("The class token takes over its position embedding.")
    if "cls" in loaded:
      # A sum in half precision would lose digits that the file has.
      dtype = np.promote_types(x.dtype, np.float32)
      loaded["cls"] = loaded["cls"].astype(dtype) + x[:, :1]
    x, has_row = x[:, 1:], False
  if shape:
    x = resize(x, shape[1] - has_row, has_row)
  loaded["pos_embedding"] = x


def has_cls_row(options: Mapping[str, Any]) -> bool | None:
  """Returns whether the class token has a position, None if that is unknown."""
  if not {"pool_type", "posemb_join"} <= options.keys():
    return None
  in_blocks = options["posemb_join"] != "add"
  own = in_blocks or (options.get("posemb_join_kw") or {}).get("cls", False)
  return options["pool_type"] == "tok" and own


def names(flat: Iterable[str]) -> list[str]:
  """Returns the names of learned positions, of the model or of each block."""
  return [name for name in flat if name.rpartition("/")[2] == "pos_embedding"]


def grid_of(tokens: int, known: Sequence[int] | None) -> tuple[int, int] | None:
  """Returns (rows, cols) of `tokens` patches: `known` if it fits, or a square.

  None if they form no square.
  """
  if known and math.prod(known) == tokens:
    rows, cols = known
    return rows, cols
  side = math.isqrt(tokens)
  return (side, side) if side**2 == tokens else None


def known_grid(file: ModelMetadata, flat: Flat) -> tuple[int, int] | None:
  """Returns (rows, cols) of the patches that a file is for, None if unknown."""
  size = file.image_size or preprocessing.describe(file.pp)["size"]
  return _in_patches(size, flat, file.options)


def without_register_rows(flat: Flat, file: ModelMetadata) -> Flat:
  """Returns the arrays with the registers' positions added to the registers.

  In timm registers have positions, between class token and patches, unless the
  class token has none.

  Raises:
    ValueError: the grid is not known, and no square fits, or two do.
  """
  registers, table = flat.get("registers"), flat.get("pos_embedding")
  cls = "cls" in flat
  theirs = file.layout == "timm" and not (cls and file.cls_row is False)
  if not theirs or registers is None or table is None:
    return flat
  number, rows = registers.shape[1], table.shape[-2]
  counts = {rows, rows - cls}, {rows - cls - number}  # without them, and with
  grid = known_grid(file, flat)
  fits = [grid is not None and math.prod(grid) in n for n in counts]
  if not any(fits):
    fits = [any(x > 1 and math.isqrt(x) ** 2 == x for x in n) for n in counts]
  if fits[0] == fits[1]:
    raise ValueError(
      f"it has {number} registers and {rows} positions, and does not tell "
      "whether some are the registers'. Say for which images they are: put "
      "a config.json beside the file, "
      '{"pretrained_cfg": {"input_size": [3, 224, 320]}}.'
    )
  if fits[0]:
    return flat
  wide = registers.astype(np.promote_types(registers.dtype, np.float32))
  own = np.s_[int(cls) : cls + number]
  patches = np.delete(table, own, axis=-2)
  registers = wide + table[..., own, :]
  return {**flat, "registers": registers, "pos_embedding": patches}


def class_token_as_register(flat: Flat, file: ModelMetadata) -> Flat:
  """Turns a class token that is not pooled into one more register.

  timm's models may have one and pool the patches (global_pool="avg" or "map"),
  as MAE's finetuned ones do. With its position added, it acts as a register.
  """
  table, pool = flat.get("pos_embedding"), file.options.get("pool_type")
  # In front of the blocks our model normalizes a class token, but no register.
  normalized = file.options.get("stem_ln") == "post_posemb"
  if pool not in ("gap", "map") or "cls" not in flat or normalized:
    return flat
  if file.layout != "timm" or table is None:
    return flat
  rows, grid, has_row = table.shape[-2], known_grid(file, flat), file.cls_row
  if has_row is None:
    has_row = rows != (math.prod(grid) if grid else math.isqrt(rows) ** 2)
  rest = {k: x for k, x in flat.items() if k != "cls"}
  token = flat["cls"].astype(np.promote_types(flat["cls"].dtype, np.float32))
  if has_row:
    token = token + table[..., :1, :]
    rest["pos_embedding"] = table[..., 1:, :]
  registers = [token, *([flat["registers"]] if "registers" in flat else [])]
  return {**rest, "registers": np.concatenate(registers, axis=1)}


def _in_patches(image_size, flat, options):
  """Returns (rows, cols) of an image's patches, None if that is unknown."""
  kernel = flat.get("embedding/kernel")
  if not image_size or (kernel is None and "patch_size" not in options):
    return None
  # A stem of several convolutions has no such kernel.
  pixels = token_pixels(options) if kernel is None else kernel.shape[:2]
  return in_patches(image_size, pixels, options.get("stem"))


def token_pixels(options: Mapping[str, Any]) -> Sequence[int]:
  """Returns the size in pixels, (rows, cols), of a model's token."""
  if options.get("stem") != "conv":
    return options["patch_size"]
  return (compact.token_pixels(**options.get("stem_kw", {})),) * 2


def in_patches(image_size, pixels, stem: str | None) -> tuple[int, int]:
  """Returns (rows, cols) of an image in patches of `pixels`, (rows, cols)."""
  up = stem == "conv"  # its pooling makes one more of what is left over
  size = zip(image_size, pixels, strict=True)
  rows, cols = (-(-side // p) if up else int(side) // p for side, p in size)
  return rows, cols


def bilinear(file: ModelMetadata, align_corners: bool = True) -> str:
  """Returns the method of `resize_grid` for runs that start from a file."""
  if file.layout == "naflex_vit":
    return "linear"
  return "corners" if align_corners else "half_pixel"


def of_library(file: ModelMetadata, options: Mapping[str, Any]) -> str:
  """Returns the method of `resize_grid` that a file's own library uses."""
  cubic = {
    "timm": "cubic",
    "hf": "cubic" if options["registers"] else "bicubic",
  }
  return cubic.get(file.layout) or bilinear(file)


def resize_grid(x, old, new, has_row: bool, method: str):
  """Returns a grid of positions resized to another.

  Args:
    x: (…, has_row + tokens, width).
    old: (rows, cols) of these tokens.
    new: (rows, cols) to get.
    has_row: whether the first row is the class token's, which is kept.
    method: "corners": bilinear, and corners fall on corners, as in big_vision;
      in all others the edges of both grids coincide. "half_pixel": bilinear,
      as in PyTorch. "linear", "cubic": those of `jax.image.resize`, which
      averages where the new grid is coarser, as big_vision's NaFlexViT and
      timm do. "bicubic": PyTorch's, which does not, as DINOv2 does.
  """
  row, table = np.split(x, [int(has_row)], axis=-2)
  *leading, _, width = table.shape
  # SciPy knows no half precision.
  dtype = np.promote_types(x.dtype, np.float32)
  table = table.reshape(-1, *old, width).astype(dtype)
  if method in ("linear", "cubic"):
    shape = (len(table), *new, width)
    table = np.asarray(jax.image.resize(table, shape, method))
  elif method == "bicubic":
    rows, cols = map(_bicubic, old, new)
    products = "ri,cj,tijw->trcw", rows, cols, table
    table = np.einsum(*products, optimize=True).astype(dtype)
  else:
    edges = {"grid_mode": True, "mode": "nearest"}
    zoom = (1, *np.divide(new, old), 1)
    edges = {} if method == "corners" else edges
    table = scipy.ndimage.zoom(table, zoom, order=1, **edges)
  table = table.reshape(*leading, math.prod(new), width)
  return np.concatenate([row.astype(dtype), table], axis=-2)


def _bicubic(old: int, new: int) -> np.ndarray:
  """Returns PyTorch's weights (new, old): Keys' kernel with a = -3/4."""
  at = (np.arange(new)[:, None] + 0.5) * old / new - 0.5
  taps = np.floor(at) + np.arange(-1, 3)
  x = np.abs(at - taps)
  near = (1.25 * x - 2.25) * x**2 + 1
  far = -0.75 * (((x - 5) * x + 8) * x - 4)
  weights = np.zeros((new, old))
  inside = np.clip(taps, 0, old - 1).astype(int)  # the edge is repeated
  rows = np.arange(new)[:, None]
  np.add.at(weights, (rows, inside), np.where(x <= 1, near, far))
  return weights


def square_plus_one(rows: int) -> bool:
  return math.isqrt(rows) ** 2 + 1 == rows
