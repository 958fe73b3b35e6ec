"""Reads any checkpoint into our layout, with what its model is."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dpn import optim
from dpn.models import posemb, posemb_join, vit
from dpn.weights import (
  checkpoint,
  files,
  infer,
  legacy,
  load,
  metadata,
  torch_names,
)
from trainers import build, update

TITLES = {
  "ours": "this code base or big_vision",
  **{key: layout.title for key, layout in torch_names.LAYOUTS.items()},
}
MINUS_ONE_TO_ONE = metadata.Pixels((0.5,), (0.5,))


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """A model in our layout, blocks looped.

  Attributes:
    arrays: float32 by our names; running statistics "batch_stats/<name>".
    options: of `vit.Model`, with `num_classes`.
    pixels: of its images, None if unknown.
    notes: for the person who asked for it.
    grid: rows and columns of patches, where it was asked for.
  """

  arrays: Mapping[str, np.ndarray]
  options: Mapping[str, Any]
  pixels: metadata.Pixels | None
  notes: tuple[str, ...]
  grid: tuple[int, int] | None = None

  @property
  def model(self):
    return vit.Model(**self.options)

  @property
  def has_row(self) -> bool:
    """Whether the class token has a row in the position embeddings."""
    return _has_row(self.options)

  @property
  def tokens(self) -> int | None:
    """The number of patches, None if positions are not learned."""
    return infer.tokens(self.arrays, self.has_row)


def read(source: str, overrides: Mapping[str, Any]) -> Checkpoint:
  """Returns what a file or folder holds.

  Args:
    source: see `scripts.convert`.
    overrides: options that win over what is found.

  Raises:
    ValueError, OSError: it is no checkpoint, damaged, of no known layout, or
      not of a Vision Transformer.
  """
  if saved := _checkpoints(source):
    flat, said = _from_checkpoints(*saved)
  else:
    flat = files.read(source)
    file, _ = files.locate(source)
    said = metadata.read(file, load.layout_of(source, flat))
  notes = ()
  if said.layout in torch_names.LAYOUTS:
    told = {**said.options, **overrides}
    flat, notes = _from_foreign(source, flat, said.layout, told)
  else:
    flat = legacy.modernize(flat)
  told = {k: v for k, v in said.options.items() if v is not None}
  with _about(source):
    options = {**infer.options(flat), **told, **overrides}
  has_row = said.cls_row
  if has_row is None and "posemb_join" in {**told, **overrides}:
    has_row = _has_row(options)
  if "pos_embedding" in flat and "posemb" not in overrides:
    options["posemb"] = "learn"  # or written out, see `_without_table`
  arrays = _matched(source, flat, options, has_row)
  if "posemb" in told:
    arrays, options = _without_table(arrays, options, told["posemb"])
  notes = (*_notes(source, said, told, options, arrays), *notes)
  rows = flat.get("pos_embedding", np.zeros((1, 0))).shape[1]
  if rows and has_row is None and infer.tokens(flat, None) != rows:
    notes += (
      f"The first of {rows} rows of positions is taken for the class token's, "
      "the others being a square. For an oblong grid: --set posemb_join=add.",
    )
  return Checkpoint(arrays, options, said.pixels, notes)


def _from_foreign(source, flat, layout, told):
  """Returns the arrays of another library under our names, and notes.

  Raises:
    ValueError: they have parts that our model lacks, or no positions; or the
      number of heads is unknown.
  """
  heads = told.get("num_heads")
  with _about(source):
    ours = torch_names.to_ours(flat, layout, 1)
  torch_names.check_parts(source, ours, layout)
  if told.get("pool_type") == "gap" and "cls" in ours:
    raise ValueError(
      f"{source!r} has a class token but averages the patches beside it; ours "
      "has one or the other."
    )
  with _about(source):
    heads = heads or infer.num_heads(ours)
  if not heads:
    raise ValueError(
      f"{source!r} does not say how many attention heads there are, and no "
      "known variant has its size. Add --set num_heads=…, which must be "
      "right: with another number it is another function."
    )
  notes = ()
  if torch_names.has_layer_scale(flat, layout):
    notes = ("Layer scale is multiplied into the layers before it, exactly.",)
  with _about(source):
    return torch_names.to_ours(flat, layout, heads), notes


@contextlib.contextmanager
def _about(source):
  """Puts the name of the file before messages that lack it."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f"{source!r}: {error}") from error


def _without_table(arrays, options, kind):
  """Returns a model whose positions are no parameters, if they are fixed ones.

  Other libraries' files have them written out.

  Args:
    arrays: by our names.
    options: of `vit.Model`.
    kind: value of its `posemb` that the file's metadata tells.
  """
  x = arrays.get("pos_embedding")
  row = int(_has_row(options))
  side = 0 if x is None else math.isqrt(x.shape[1] - row)
  if kind.startswith("learn") or not side:
    return arrays, {**options, "posemb": kind}
  table = posemb.get_kind(kind).table(None, (side, side), x.shape[2], row)
  if table is None or not np.array_equal(table, x):
    return arrays, options
  arrays = {k: v for k, v in arrays.items() if k != "pos_embedding"}
  return arrays, {**options, "posemb": kind}


def _has_row(options):
  return (
    options["pool_type"] == "tok"
    and posemb_join.get(options["posemb_join"]).cls_row
  )


def _shapes(flat, options, has_row):
  """Returns a model and the shapes of its variables, by collection."""
  model = vit.Model(**options)
  rows, cols = patch_px(model)
  grid = infer.grid(flat, has_row)
  image = jax.ShapeDtypeStruct(
    (1, rows * grid[0], cols * grid[1], infer.channels(flat)), np.float32
  )
  return model, dict(jax.eval_shape(model.init, jax.random.key(0), image))


def _matched(source, flat, options, has_row):
  """Returns the arrays as a model of these options has them; strict."""
  try:
    model, shapes = _shapes(flat, options, has_row)
  except (TypeError, AttributeError) as error:
    raise ValueError(
      f"An option of the model has a value of another type ({error}). Check "
      "--set, for example patch_size=[16,16]."
    ) from error
  variables = {
    k: v for k, v in shapes.items() if k in ("params", files.STATISTICS)
  }
  matched = load.match(
    source,
    flat,
    variables,
    model=model,
    has_row=has_row,
    advice="The file is not all of such a model, or holds more than it. Give "
    "another file, or the model's options with --set.",
  )
  return load.flatten(matched)


def _notes(source, said, told, options, arrays):
  count = sum(x.size for k, x in arrays.items())
  listed = ", ".join(f"{k}={options[k]!r}" for k in options)
  notes = [
    f"{source}: layout of {TITLES[said.layout]}, {count:,} numbers in "
    f"{len(arrays)} arrays.",
    f"Model: {listed}",
  ]
  if told:
    notes.append(f"{', '.join(sorted(told))}: according to {said.source}.")
  else:
    notes.append(
      "The file has no description: GELU (tanh), epsilon 1e-6 and pool_type "
      f"{options['pool_type']!r} are big_vision's; --set changes them."
    )
  if said.pixels:
    notes.append(f"Pixels: {said.pixels}, according to {said.source}.")
  else:
    notes.append(
      "Pixels: the source does not say; big_vision's are value_range(-1, 1)."
    )
  return tuple(notes)


def _checkpoints(path: str) -> tuple[str, int | None] | None:
  """Returns the folder of checkpoints that a path means, and which of them."""
  parent, last = os.path.split(os.path.abspath(path))
  if last.isdigit() and os.path.isdir(parent):
    return parent, int(last)
  inside = os.path.join(path, build.CHECKPOINTS)
  finished = os.path.isfile(os.path.join(path, files.FILES_IN_FOLDERS[0]))
  if os.path.isdir(inside) and not finished:
    return inside, None
  if last == build.CHECKPOINTS and os.path.isdir(path):
    return path, None
  return None


def _from_checkpoints(folder, step):
  """Returns the arrays of a run's checkpoint and what its config says."""
  workdir = os.path.dirname(os.path.abspath(folder))
  said = metadata.read_run(workdir)
  with open(os.path.join(workdir, "config.json"), encoding="utf-8") as file:
    config = json.load(file)
  checkpoints = checkpoint.Checkpointer(folder, read_only=True)
  with contextlib.closing(checkpoints):
    shapes = _train_state(config, checkpoints.shapes(step))
    state, _ = checkpoints.restore(shapes, step=step)
  variables = jax.device_get(state.variables)
  return load.flatten(variables), said


def _train_state(config, saved):
  """Returns the shapes of the state that a run with this config saves."""
  batch_size = config["input"]["batch_size"]
  params = saved["params"]
  tx, _ = optim.make(
    config,
    params,
    total_steps=10**9,  # schedules do not change the shapes
    batch_size=batch_size,
    data_size=10**6,
  )
  here = jax.tree.leaves(params)[0].sharding
  opt_state = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here),
    jax.eval_shape(tx.init, params),
  )
  return update.TrainState(
    step=saved["step"],
    params=params,
    model_state=saved.get("model_state") or {},
    opt_state=opt_state,
    ema=saved.get("ema"),
  )


def patch_px(model):
  """Returns (rows, cols) of pixels for one token."""
  if model.conv_stem:
    return (2 ** model.conv_stem[1],) * 2
  return model.patch_size
