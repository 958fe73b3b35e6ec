"""Starts a Vision Transformer from a parameter file.

Files of big_vision and its predecessors load unchanged, those of timm and
Hugging Face under our names. Everything that a file and the model do not share
is an error unless allowed.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from dpn import trees
from dpn.models import posemb_join
from dpn.weights import legacy, metadata, resize, torch_names
from dpn.weights.files import STATISTICS, locate, read

Flat = dict[str, Any]


def load(path: str, params: Mapping[str, Any], **kw: Any) -> dict[str, Any]:
  """Returns `params` with the values of a parameter file.

  For models without running statistics; see `load_variables`.
  """
  return load_variables(path, {"params": params}, **kw)["params"]


def load_variables(
  path: str,
  variables: Mapping[str, Any],
  *,
  model: Any = None,
  pixels: metadata.Pixels | None = None,
  dont_load: Sequence[str] = (),
  dont_check: Sequence[str] = (),
  advice: str | None = None,
) -> dict[str, Any]:
  """Returns `variables` with the values of a parameter file.

  Other layouts, and scanned blocks against looped ones, are converted. A
  `pos_embedding` of another length is resized if both grids are square.

  Args:
    path: see `parameter_files.read`.
    variables: a model's `params` and, if it has any, `batch_stats`, which files
      hold as "batch_stats/<name>". `jax.ShapeDtypeStruct`s will do for all that
      is loaded. Other collections are returned as they are.
    model: as `vit.Model` makes it; its options must be those that the file says
      it was made for, see `metadata.check`. None: nothing is compared.
    pixels: of the images that the model will see, compared likewise.
    dont_load: regular expressions on whole names such as "head/kernel". What
      they match keeps its value in `variables`, and is ignored in the file.
    dont_check: options not to be compared, such as "gelu", or "pixels".
    advice: what to do if names or shapes differ; None: about `dont_load`.

  Returns:
    NumPy arrays with the structure, shapes and dtypes of `variables`; a leaf of
    `dont_load` as it was given.

  Raises:
    FileNotFoundError, ValueError: see `parameter_files.read`.
    ValueError: names or shapes differ and `dont_load` does not match them; or
      the options do, and `dont_check` does not name them.
  """
  flat, source = _in_our_names(path, variables)
  if model is not None:
    metadata.check(
      path, source, model, pixels=pixels, dont_check=_listed(dont_check)
    )
  return match(
    path,
    flat,
    variables,
    model=model,
    has_row=source.cls_row,
    dont_load=_listed(dont_load),
    advice=advice,
  )


def _in_our_names(path, variables):
  """Returns the arrays of a file and what is known about it."""
  flat = read(path)
  layout = layout_of(path, flat)
  source = metadata.read(locate(path)[0], layout)
  if layout in torch_names.LAYOUTS:
    heads = _num_heads(variables["params"])
    told = source.options.get("num_heads")
    if told not in (None, heads):
      raise ValueError(
        f"{path!r} has {told} attention heads, according to {source.source}; "
        f"the model has {heads}. Set config.model.num_heads={told}."
      )
    return torch_names.to_ours(flat, layout, heads), source
  return legacy.modernize(flat), source


def match(
  path: str,
  flat: Flat,
  variables: Mapping[str, Any],
  *,
  model: Any = None,
  has_row: bool | None = None,
  dont_load: Sequence[str] = (),
  advice: str | None = None,
) -> dict[str, Any]:
  """Returns `variables` with the values of `flat`, see `load_variables`.

  Args:
    path: for messages.
    flat: arrays by our names.
    variables: see `load_variables`.
    model: likewise.
    has_row: whether the class token has a row in the position embeddings of
      `flat`; None if unknown.
    dont_load: see `load_variables`.
    advice: likewise.
  """
  wanted = flatten(variables)
  loaded = legacy.match_scan(flat, wanted)
  wants_row = None
  if model is not None:
    join = posemb_join.get(model.posemb_join)
    wants_row = model.pool_type == "tok" and join.cls_row
  loaded = _match_posemb(loaded, wanted, has_row, wants_row)
  masks = trees.masks({**loaded, **wanted}, dont_load, "model_load.dont_load")
  kept = {name for mask in masks for name in mask if mask[name]}
  _check(path, wanted, loaded, kept, advice)
  return _unflatten(
    variables,
    {
      name: leaf if name in kept else loaded[name].astype(leaf.dtype)
      for name, leaf in wanted.items()
    },
  )


def _listed(patterns):
  return [patterns] if isinstance(patterns, str) else list(patterns)


def flatten(variables: Mapping[str, Any]) -> Flat:
  """Returns parameters by name, running statistics by "batch_stats/<name>"."""
  stats = {STATISTICS: variables.get(STATISTICS, {})}
  return trees.flatten(variables["params"]) | trees.flatten(stats)


def _unflatten(variables, flat):
  """The inverse of `flatten`; collections not in `flat` stay."""
  result = {**variables}
  start = f"{STATISTICS}/"
  stats = {
    k.removeprefix(start): x for k, x in flat.items() if k.startswith(start)
  }
  if stats:
    result[STATISTICS] = trees.unflatten(stats)
  result["params"] = trees.unflatten(
    {k: x for k, x in flat.items() if not k.startswith(start)}
  )
  return result


def layout_of(path: str, flat: Flat) -> str:
  """Returns `ours`, which is big_vision's too, or a key of foreign.LAYOUTS."""
  if layout := torch_names.recognize(flat):
    return layout
  if flat and all("/" not in name and "." in name for name in flat):
    few = ", ".join(sorted(flat)[:4])
    raise ValueError(
      f"{path!r} has an unknown layout: {few}, … Expected a Vision Transformer "
      "of this code base, of big_vision, of timm (with "
      f"{torch_names.TIMM.sign}) or of Hugging Face (with "
      f"{torch_names.HF.sign})."
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


def _check(path, wanted, loaded, kept, advice):
  """Raises ValueError with both sides of all differences, but for `kept`."""
  here = {name: str(tuple(x.shape)) for name, x in wanted.items()}
  there = {name: str(tuple(x.shape)) for name, x in loaded.items()}
  every = here.keys() | there.keys()
  wrong = {n for n in every - kept if here.get(n) != there.get(n)}
  if not wrong:
    return

  def row(name):
    sides = here.get(name, "-"), there.get(name, "-")
    if name not in there:
      return name, *sides, "missing"
    return name, *sides, "reshaped" if name in here else "unexpected"

  rows = [("parameter", "model", "file", ""), *map(row, sorted(wrong))]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  table = "\n".join(
    "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows
  )
  advice = advice or (
    "Fix the path or the model; or, to leave all of these as they are in the "
    f"model, set dont_load={_suggest(wrong, every)}."
  )
  raise ValueError(
    f"{path!r} does not fit the model. Expected equal names and shapes, got\n"
    f"{table}\n{advice}"
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
