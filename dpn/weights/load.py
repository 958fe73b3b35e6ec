"""Starts a model from a parameter file, strictly.

Files of big_vision and its predecessors load unchanged, those of timm and
Hugging Face under our names. Everything that a file and the model do not share
is an error unless allowed.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from dpn import trees
from dpn.weights import (
  files,
  legacy,
  metadata,
  options_from_params,
  resize,
  torch_names,
)
from dpn.weights.pixels import Pixels

Flat = files.Flat


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


def read(path: str) -> Checkpoint:
  """Returns the parameters that a path stands for, and what they are for.

  Args:
    path: see `files.locate`.

  Raises:
    FileNotFoundError, ValueError, OSError: see `files.read`.
    ValueError: names of an unknown library; or a model that ours cannot be.
  """
  where = files.locate(path)
  arrays, step = files.read_located(where)
  said = metadata.read(where, _layout_of(path, arrays))
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
  dont_load: Sequence[str] = (),
  dont_check: Sequence[str] = (),
) -> dict[str, Any]:
  """Returns `variables` with the values of a parameter file.

  Other layouts, and scanned blocks against looped ones, are converted. A
  `pos_embedding` of another length is resized if both grids are square.

  Args:
    path: see `files.locate`; or what `read` returned for it.
    variables: a model's `params` and, if it has any, `batch_stats`, which files
      hold as "batch_stats/<name>". `jax.ShapeDtypeStruct`s will do for all that
      is loaded. Other collections are returned as they are.
    options: of the model, as `Task.model_options` gives them, which must be
      those that the file says it was made for. None: nothing is compared.
    pixels: of the images that the model will see, compared likewise.
    advice: what to do if names or shapes differ; None: about `dont_load`.
    dont_load: regular expressions on whole names such as "head/kernel". What
      they match keeps its value in `variables`, and is ignored in the file.
    dont_check: options not to be compared, such as "gelu", or "pixels".

  Returns:
    NumPy arrays with the structure, shapes and dtypes of `variables`; a leaf of
    `dont_load` as it was given.

  Raises:
    FileNotFoundError, ValueError, OSError: see `read`.
    ValueError: names or shapes differ and `dont_load` does not match them; or
      the options do, and `dont_check` does not name them.
  """
  source = read(path) if isinstance(path, str) else path
  file = source.metadata
  flat = _in_our_names(source, variables)
  if "pos_embedding" in flat and "posemb" in file.options:
    # Other libraries' files have fixed positions written out.
    learned = {**file.options, "posemb": "learn", "posemb_kw": {}}
    file = dataclasses.replace(file, options=learned)
  differences = []
  if options is not None:
    differences = metadata.differences(file, options, pixels)
  loaded, differing = match(
    source.path,
    flat,
    variables,
    options=options,
    cls_row=file.cls_row,
    dont_load=_listed(dont_load),
    advice=advice,
    differences=differences,
  )
  metadata.check(source.path, file, differences, differing, _listed(dont_check))
  if assumed := metadata.assumed(file, options or {}):
    logging.warning(
      "%r does not say everything about its model. Assumed, as configured: %s "
      "(state it with config.model).",
      source.path,
      ", ".join(assumed),
    )
  return loaded


def _in_our_names(source, variables):
  """Returns the arrays of a file by our names, for a model's heads."""
  if source.metadata.layout == "ours":
    return legacy.upgrade(source.arrays)
  heads = _num_heads(variables["params"])
  told = source.metadata.options.get("num_heads")
  if told not in (None, heads):
    raise ValueError(
      f"{source.path!r} has {told} attention heads, according to "
      f"{source.metadata.source}; the model has {heads}. Set "
      f"config.model.num_heads={told}."
    )
  return torch_names.to_ours(source.arrays, source.metadata.layout, heads)


def match(
  path: str,
  flat: Flat,
  variables: Mapping[str, Any],
  *,
  options: Mapping[str, Any] | None = None,
  cls_row: bool | None = None,
  dont_load: Sequence[str] = (),
  advice: str | None = None,
  differences: Sequence[metadata.Difference] = (),
) -> tuple[dict[str, Any], set[str]]:
  """Returns `variables` with the values of `flat`, and names that differed.

  Args:
    path: for messages.
    flat: arrays by our names.
    variables: see `load_variables`.
    options: likewise.
    cls_row: whether the class token has a row in the position embeddings of
      `flat`; None if unknown.
    dont_load: see `load_variables`.
    advice: likewise.
    differences: between the options of both models, for messages.
  """
  wanted = files.flatten(variables)
  loaded = legacy.match_scan(flat, wanted)
  wants_row = None
  if options and {"pool_type", "posemb_join"} <= options.keys():
    wants_row = options_from_params.has_row(options)
  cls_row = cls_row and "cls" in flat  # None stays unknown
  loaded = _match_posemb(loaded, wanted, cls_row, wants_row)
  masks = trees.masks({**loaded, **wanted}, dont_load, "model_load.dont_load")
  kept = {name for mask in masks for name in mask if mask[name]}
  differing = _differing(wanted, loaded)
  if wrong := differing - kept:
    every = wanted.keys() | loaded.keys()
    advice = advice or (
      "Fix the path or the model; or, to leave all of these as they are in the "
      f"model, set dont_load={_suggest(wrong, every)}."
    )
    raise ValueError(
      f"{path!r} does not fit the model. Expected equal names and shapes, got\n"
      f"{_table(wrong, wanted, loaded)}\n"
      + "".join(f"{difference}\n" for difference in differences)
      + advice
    )
  result = files.unflatten(
    {
      name: leaf if name in kept else loaded[name].astype(leaf.dtype)
      for name, leaf in wanted.items()
    }
  )
  return {**variables, **result}, differing


def _listed(patterns):
  return [patterns] if isinstance(patterns, str) else list(patterns)


def _layout_of(path: str, flat: Flat) -> str:
  """Returns `ours`, which is big_vision's too, or a key of `LIBRARIES`."""
  if layout := torch_names.recognize(flat):
    return layout
  if flat and all("/" not in name and "." in name for name in flat):
    few = ", ".join(sorted(flat)[:4])
    signs = " or ".join(
      f"{names.title} (with {names.sign})"
      for names in torch_names.LIBRARIES.values()
    )
    raise ValueError(
      f"{path!r} has an unknown layout: {few}, … Expected a Vision Transformer "
      f"of this code base, of big_vision, of {signs}."
    )
  return "ours"


def _num_heads(params) -> int:
  """Returns the model's number of heads, which PyTorch's arrays do not tell."""
  flat = trees.flatten(params)
  kernels = [x for k, x in flat.items() if k.endswith("/query/kernel")]
  return kernels[0].shape[-2] if kernels else 1


def _match_posemb(
  loaded: Flat,
  wanted: Flat,
  has_row: bool | None = None,
  wants_row: bool | None = None,
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
  """
  x = loaded.get("pos_embedding")
  shape = getattr(wanted.get("pos_embedding"), "shape", None)
  if x is None or x.ndim != 3:
    return loaded
  if has_row is None:
    # An oblong grid, which only an equal one fits, may also be a square plus
    # one.
    if x.shape == shape:
      return loaded
    has_row = _square_plus_one(x.shape[1]) or (
      "cls" in loaded and shape is not None and x.shape[1] == shape[1] + 1
    )
  if wants_row is None:
    wants_row = shape is not None and "cls" in wanted
    wants_row = wants_row and _square_plus_one(shape[1])
  if has_row and not wants_row:
    logging.info("The class token takes over its position embedding.")
    if "cls" in loaded:
      # A sum in half precision would lose digits that the file has.
      dtype = np.promote_types(x.dtype, np.float32)
      loaded = {**loaded, "cls": loaded["cls"].astype(dtype) + x[:, :1]}
    x, has_row = x[:, 1:], False
  if shape:
    x = resize.posemb_with_row(x, shape[1] - has_row, has_row)
  return {**loaded, "pos_embedding": x}


def _square_plus_one(rows):
  return math.isqrt(rows) ** 2 + 1 == rows


def _shape(flat, name):
  return str(tuple(flat[name].shape)) if name in flat else "-"


def _differing(wanted, loaded) -> set[str]:
  """Returns the names that only one side has, or with another shape."""
  return {
    name
    for name in wanted.keys() | loaded.keys()
    if _shape(wanted, name) != _shape(loaded, name)
  }


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
