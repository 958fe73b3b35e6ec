"""Starts a model from a parameter file, strictly.

Files of big_vision and its predecessors load unchanged, those of timm and
Hugging Face under our names. Everything that a file and the model do not share
is an error unless allowed.
"""

import dataclasses
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
  positions,
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
    posemb_align_corners: see `positions.resize_grid`.
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
  resizing = positions.Resizing(
    posemb_grid,
    positions.in_patches(image_size, wanted),
    positions.in_patches(preprocessing.describe(file.pp)["size"], loaded),
    made_here=file.layout == "ours" and bool(file.options),
    align_corners=posemb_align_corners,
  )
  loaded = positions.match(
    loaded, wanted, file.cls_row, positions.has_cls_row(options), resizing
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
