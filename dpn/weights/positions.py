"""Fits learned position embeddings of a file to a model's grid of patches."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from dpn.weights.files import Flat


@dataclasses.dataclass
class Resizing:
  """Resizes positions to a model's grid, and keeps what it did in words.

  Grids are (rows, cols) in patches, None if unknown; then they are squares.

  Attributes:
    given: the model's, as the user says.
    new: the model's, by the size of its images.
    old: the file's, by the size of its images.
    made_here: whether the file is of a run, whose images need not be square.
    align_corners: see `resize_grid`.
    changes: "7×7 to 14×14".
  """

  given: Sequence[int] | None
  new: Sequence[int] | None
  old: Sequence[int] | None
  made_here: bool
  align_corners: bool
  changes: set[str] = dataclasses.field(default_factory=set)

  def __call__(self, x, tokens, row):
    if self.given and math.prod(self.given) != tokens:
      raise ValueError(
        f"model_load.posemb_grid={tuple(self.given)} does not have the model's "
        f"{tokens} patches. Give rows and columns of images, in patches."
      )
    count = x.shape[-2] - row
    untold = self.new is None or (self.old is None and self.made_here)
    if tokens == count and untold and not self.given:
      return x  # the file is for such images
    old = grid_of(count, self.old)
    new = grid_of(tokens, self.given or self.new)
    if old is None or new in (None, old):
      return x
    self.changes.add("{}×{} to {}×{}".format(*old, *new))
    return resize_grid(x, old, new, row, self.align_corners)


def has_cls_row(options: Mapping[str, Any]) -> bool | None:
  """Returns whether the class token has a position, None if that is unknown."""
  if not {"pool_type", "posemb_join"} <= options.keys():
    return None
  in_blocks = options["posemb_join"] != "add"
  own = in_blocks or options.get("posemb_join_kw", {}).get("cls", False)
  return options["pool_type"] == "tok" and own


def match(
  loaded: Flat,
  wanted: Flat,
  has_row: bool | None,
  wants_row: bool | None,
  resize: Callable[[Any, int, bool], Any],
) -> Flat:
  """Fits the position embeddings, (1, tokens, width), to the model's grid.

  Files from before 2022 embed the position of the class token as well, in
  front: one row more than a square. It stays in a model that has it too, or
  else the token itself takes it over.

  Args:
    loaded: of the file.
    wanted: of the model.
    has_row: whether the file has such a row, None if unknown.
    wants_row: whether the model has, None if unknown.
    resize: of (positions, number of patches, whether a class row is first).
  """
  row = "cls" in wanted  # a block's own positions always have one then
  for name in names(loaded):
    if "/" in name and name in wanted:
      tokens = wanted[name].shape[-2] - row
      loaded = {**loaded, name: resize(loaded[name], tokens, row)}
  x = loaded.get("pos_embedding")
  if "Embed_0/embedding" in wanted:  # of text, which is no grid
    return loaded
  shape = getattr(wanted.get("pos_embedding"), "shape", None)
  if x is None or x.ndim != 3:
    return loaded
  has_row = has_row and "cls" in loaded  # None stays unknown
  if has_row is None:
    if x.shape == shape:
      if wants_row is None:
        return loaded
      has_row = wants_row
    else:
      has_row = square_plus_one(x.shape[1]) or (
        "cls" in loaded and shape is not None and x.shape[1] == shape[1] + 1
      )
  if wants_row is None:
    wants_row = shape is not None and "cls" in wanted
    wants_row = wants_row and square_plus_one(shape[1])
  if has_row and not wants_row:
    logging.info("The class token takes over its position embedding.")
    if "cls" in loaded:
      # A sum in half precision would lose digits that the file has.
      dtype = np.promote_types(x.dtype, np.float32)
      loaded = {**loaded, "cls": loaded["cls"].astype(dtype) + x[:, :1]}
    x, has_row = x[:, 1:], False
  if shape:
    x = resize(x, shape[1] - has_row, has_row)
  return {**loaded, "pos_embedding": x}


def names(flat: Flat) -> list[str]:
  """Returns the names of learned positions, of the model or of each block."""
  return [name for name in flat if name.rpartition("/")[2] == "pos_embedding"]


def grid_of(tokens: int, known: Sequence[int] | None) -> tuple[int, int] | None:
  """Returns (rows, cols) of so many patches: `known` if it fits, or a square.

  None if they make no square.
  """
  if known and math.prod(known) == tokens:
    return tuple(known)
  side = math.isqrt(tokens)
  return (side, side) if side**2 == tokens else None


def in_patches(image_size, flat):
  """Returns (rows, cols) of an image's patches, None if that is unknown."""
  kernel = flat.get("embedding/kernel")
  if not image_size or kernel is None:
    return None
  return tuple(
    px // patch for px, patch in zip(image_size, kernel.shape[:2], strict=True)
  )


def resize_grid(x, old, new, has_row: bool, align_corners: bool = True):
  """Returns a grid of positions resized bilinearly to another.

  Args:
    x: (…, has_row + tokens, width).
    old: (rows, cols) of these tokens.
    new: (rows, cols) to get.
    has_row: whether the first row is the class token's, which is kept.
    align_corners: whether corners fall on corners, as in big_vision; otherwise
      the edges of both grids coincide, and patches lie half a patch inside, as
      in PyTorch and `jax.image.resize`.
  """
  import scipy.ndimage  # 0.4 s that few runs need

  row, table = np.split(x, [int(has_row)], axis=-2)
  *leading, _, width = table.shape
  # SciPy knows no half precision.
  dtype = np.promote_types(x.dtype, np.float32)
  table = scipy.ndimage.zoom(
    table.reshape(-1, *old, width).astype(dtype),
    (1, *np.divide(new, old), 1),
    order=1,
    **({} if align_corners else {"grid_mode": True, "mode": "nearest"}),
  )
  table = table.reshape(*leading, math.prod(new), width)
  return np.concatenate([row.astype(dtype), table], axis=-2)


def square_plus_one(rows: int) -> bool:
  return math.isqrt(rows) ** 2 + 1 == rows
