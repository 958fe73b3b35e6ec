"""Starts a model from a parameter file, strictly.

Files of big_vision and its predecessors load unchanged, those of timm and
Hugging Face under our names. Everything that a file and the model do not share
is an error unless allowed.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from dpn import trees
from dpn.weights import (
  files,
  legacy,
  metadata,
  preprocessing,
  timm_models,
  torch_names,
)
from dpn.weights.files import Flat
from dpn.weights.pixels import Pixels


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """What a path holds, as it is there.

  Attributes:
    path: as given.
    arrays: by the names in the file.
    metadata: of the model.
    step: of the run, None if unknown.
  """

  path: str
  arrays: Flat
  metadata: metadata.ModelMetadata
  step: int | None = None


def read(path: str, arch: str | None = None) -> Checkpoint:
  """Returns the parameters that a path stands for, and what they are for.

  Args:
    path: see `files.locate`.
    arch: name of the model in timm, such as "vit_base_patch16_siglip_224", for
      files that do not say what they are.

  Raises:
    FileNotFoundError, ValueError, OSError: see `files.read`.
    ValueError: names of an unknown library; or a model that ours cannot be,
      or that is not that of `arch`.
  """
  where = files.locate(path)
  arrays, step = files.read_located(where)
  layout = torch_names.layout_of(path, arrays)
  said = metadata.read(where, layout, arch)
  if where.subtree:
    said = metadata.of_tower(said, where.subtree)
  if arch:
    timm_models.check(arch, arrays)
  return Checkpoint(path, arrays, said, step)


def load(path: str, params: Mapping[str, Any], **kw: Any) -> dict[str, Any]:
  """Returns `params` with the values of a parameter file.

  For models without running statistics; see `load_variables`.
  """
  return load_variables(path, {"params": params}, **kw)["params"]


def load_variables(
  path: str | Checkpoint,
  variables: Mapping[str, Any],
  *,
  options: Mapping[str, Any] | None = None,
  pixels: Pixels | None = None,
  advice: str | None = None,
  arch: str | None = None,
  dont_load: Sequence[str] = (),
  dont_check: Sequence[str] = (),
  image_size: Sequence[int] | None = None,
  posemb_grid: Sequence[int] | None = None,
  posemb_align_corners: bool = True,
  tell: Callable[[str], None] = logging.info,
) -> dict[str, Any]:
  """Returns `variables` with the values of a parameter file.

  Other layouts, and scanned blocks against looped ones, are converted. A
  `pos_embedding` for another grid of patches is resized.

  Args:
    path: see `files.locate`; or what `read` returned for it.
    variables: a model's `params` and, if it has any, `batch_stats`, which files
      hold as "batch_stats/<name>". `jax.ShapeDtypeStruct`s will do for all that
      is loaded. Other collections are returned as they are.
    options: of the model, as `Task.model_options` gives them, which must be
      those that the file says it was made for. None: nothing is compared.
    pixels: of the images that the model will see, compared likewise.
    advice: what to do if names or shapes differ; None: about `dont_load`.
    arch: see `read`.
    dont_load: regular expressions on whole names such as "head/kernel". What
      they match keeps its value in `variables`, and is ignored in the file.
    dont_check: options not to be compared, such as "gelu", or "pixels".
    image_size: (rows, cols) of the model's images in pixels, None if unknown.
    posemb_grid: (rows, cols) of the model's patches, if `image_size` does not
      tell and they make no square.
    posemb_align_corners: how positions are resized, see `resize_posemb`.
    tell: is called with a sentence if they are.

  Returns:
    NumPy arrays with the structure, shapes and dtypes of `variables`; a leaf of
    `dont_load` as it was given.

  Raises:
    FileNotFoundError, ValueError, OSError: see `read`.
    ValueError: names or shapes differ and `dont_load` does not match them; or
      the options do, and `dont_check` does not name them.
  """
  source = read(path, arch) if isinstance(path, str) else path
  file, wanted = source.metadata, files.flatten(variables)
  flat = _in_our_names(source, wanted)
  if "pos_embedding" in flat and "posemb" in file.options:
    # Other libraries' files have fixed positions written out.
    learned = {**file.options, "posemb": "learn", "posemb_kw": {}}
    file = dataclasses.replace(file, options=learned)
  options = options or {}
  differences = metadata.differences(file, options, pixels)
  loaded = legacy.match_scan(flat, wanted)
  resizing = _Resizing(
    posemb_grid,
    _in_patches(image_size, wanted),
    _in_patches(preprocessing.size_of(file.pp or ""), loaded),
    made_here=file.layout == "ours" and bool(file.options),
    align_corners=posemb_align_corners,
  )
  loaded = _match_posemb(
    loaded, wanted, file.cls_row, has_cls_row(options), resizing
  )
  patterns = _listed(dont_load)
  masks = trees.masks({**loaded, **wanted}, patterns, "model_load.dont_load")
  kept = {name for mask in masks for name in mask if mask[name]}
  every = wanted.keys() | loaded.keys()
  differing = {n for n in every if _shape(wanted, n) != _shape(loaded, n)}
  if wrong := differing - kept:
    advice = advice or (
      "Fix the path or the model; or, to leave all of these as they are in the "
      f"model, set dont_load={_suggest(wrong, every)}."
    )
    if "pos_embedding" in wrong and not posemb_grid:
      advice = f"{advice} Images that are not square need posemb_grid, too."
    lines = [_table(wrong, wanted, loaded), *map(str, differences), advice]
    raise ValueError(
      f"{source.path!r} does not fit the model. Expected equal names and "
      "shapes, got\n" + "\n".join(lines)
    )
  metadata.check(source.path, file, differences, differing, _listed(dont_check))
  _warn_of_assumed(source.path, metadata.assumed(file, options))
  _check_finite(source.path, {k: loaded[k] for k in wanted.keys() - kept})
  for change in sorted(resizing.changes):
    tell(f"the position embeddings of {source.path} are resized, {change}.")
  result = {
    name: leaf if name in kept else loaded[name].astype(leaf.dtype)
    for name, leaf in wanted.items()
  }
  return {**variables, **files.unflatten(result)}


@dataclasses.dataclass
class _Resizing:
  """Resizes positions to a model's grid, and keeps what it did in words.

  Grids are (rows, cols) in patches, None if unknown; then they are squares.

  Attributes:
    given: the model's, as the user says.
    new: the model's, by the size of its images.
    old: the file's, by the size of its images.
    made_here: whether the file is of a run, whose images need not be square.
    align_corners: see `resize_posemb`.
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
    return resize_posemb(x, old, new, row, self.align_corners)


def _warn_of_assumed(path, assumed):
  if assumed:
    logging.warning(
      "%r does not say everything about its model. Assumed, as configured: %s "
      "(state it with config.model).",
      *(path, ", ".join(assumed)),
    )


def _check_finite(path, arrays):
  """Raises ValueError if an array holds a NaN or an infinity."""
  for name, x in sorted(arrays.items()):
    if not np.isfinite(np.asarray(x, np.float32)).all():
      raise ValueError(
        f"{path!r}: {name!r} holds NaN or infinity, so its run diverged, or "
        "the file is damaged. Give another file or an earlier checkpoint; or, "
        f"to do without this array, set dont_load=[{re.escape(name)!r}]."
      )


def _in_our_names(source, wanted):
  """Returns the arrays of a file by our names, for a model's heads."""
  file = source.metadata
  if file.layout == "ours":
    return legacy.upgrade(source.arrays)
  queries = (x for name, x in wanted.items() if name.endswith("/query/kernel"))
  heads = next((x.shape[-2] for x in queries), 1)
  told = file.options.get("num_heads", heads)
  if told != heads:
    raise ValueError(
      f"{source.path!r} has {told} attention heads, says {file.source}; the "
      f"model has {heads}. Set config.model.num_heads={told}."
    )
  return torch_names.to_ours(source.arrays, file.layout, heads)


def _listed(patterns):
  return [patterns] if isinstance(patterns, str) else list(patterns)


def has_cls_row(options: Mapping[str, Any]) -> bool | None:
  """Returns whether the class token has a position, None if that is unknown."""
  if not {"pool_type", "posemb_join"} <= options.keys():
    return None
  in_blocks = options["posemb_join"] != "add"
  own = in_blocks or options.get("posemb_join_kw", {}).get("cls", False)
  return options["pool_type"] == "tok" and own


def _match_posemb(
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
  for name in posemb_names(loaded):
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


def posemb_names(flat: Flat) -> list[str]:
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


def _in_patches(image_size, flat):
  """Returns (rows, cols) of an image's patches, None if that is unknown."""
  kernel = flat.get("embedding/kernel")
  if not image_size or kernel is None:
    return None
  return tuple(
    px // patch for px, patch in zip(image_size, kernel.shape[:2], strict=True)
  )


def resize_posemb(x, old, new, has_row: bool, align_corners: bool = True):
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


def _shape(flat, name):
  return str(tuple(flat[name].shape)) if name in flat else "-"


def _table(names, wanted, loaded) -> str:
  """Returns both sides' shapes and what is wrong with each name, aligned."""
  rows = [("parameter", "model", "file", "")]
  for name in sorted(names):
    problem = "reshaped" if name in wanted else "unexpected"
    if name not in loaded:
      problem = "missing"
    rows.append((name, _shape(wanted, name), _shape(loaded, name), problem))
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return "\n".join(
    "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows
  )


def _suggest(wrong: set[str], every: set[str]) -> list[str]:
  """Returns few, short patterns that match `wrong` and no other name."""
  right = every - wrong
  patterns = set()
  for name in wrong:
    parents = [name[: slash.end()] for slash in re.finditer("/", name)]
    whole = [p for p in parents if not any(n.startswith(p) for n in right)]
    patterns.add(re.escape(whole[0]) + ".*" if whole else re.escape(name))
  return sorted(patterns)
