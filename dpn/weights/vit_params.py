"""A Vision Transformer read from any checkpoint, with all its options."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dpn.models import vit
from dpn.weights import (
  files,
  legacy,
  load,
  metadata,
  options_from_params,
  torch_names,
)
from dpn.weights.pixels import Pixels

MINUS_ONE_TO_ONE = Pixels((0.5,), (0.5,))


@dataclasses.dataclass(frozen=True)
class VitParams:
  """A model in our layout, blocks looped.

  Attributes:
    arrays: float32 by our names; running statistics "batch_stats/<name>".
    options: of `vit.Model`, with `num_classes`; complete.
    pixels: of its images, None if unknown.
    notes: for the person who asked for it.
    grid: rows and columns of patches, where it was asked for.
  """

  arrays: Mapping[str, np.ndarray]
  options: Mapping[str, Any]
  pixels: Pixels | None
  notes: tuple[str, ...]
  grid: tuple[int, int] | None = None

  @property
  def cls_row(self) -> bool:
    """Whether the class token has a row in the position embeddings."""
    return options_from_params.has_row(self.options)

  @property
  def tokens(self) -> int | None:
    """The number of patches, None if positions are not learned."""
    return options_from_params.tokens(self.arrays, self.cls_row)

  @property
  def channels(self) -> int:
    """Of the images."""
    return options_from_params.channels(self.arrays)

  @property
  def patch_px(self) -> tuple[int, int]:
    """Rows and columns of pixels for one token."""
    return _patch_px(self.options)


def read(path: str, overrides: Mapping[str, Any]) -> VitParams:
  """Returns the Vision Transformer that a path stands for.

  Args:
    path: see `files.locate`.
    overrides: options that win over what is found.

  Raises:
    ValueError, OSError: it is no checkpoint, damaged, of no known layout, or
      not of a Vision Transformer.
  """
  source = load.read(path)
  file = source.metadata
  file = dataclasses.replace(file, options={**file.options, **overrides})
  told = file.options
  with _naming(path):
    flat = _in_our_names(source, told)
    options = {**options_from_params.options(flat), **told}
  cls_row = file.cls_row and "cls" in flat
  if cls_row is None and "posemb_join" in told:
    cls_row = options_from_params.has_row(options)
  if "pos_embedding" in flat and "posemb" not in overrides:
    # Other libraries' files have fixed ones written out.
    options |= {"posemb": "learn", "posemb_kw": {}}
  arrays, options = _matched(path, flat, options, cls_row)
  notes = _notes(source, file, options, arrays)
  if torch_names.has_layer_scale(source.arrays, file.layout):
    notes += ("Layer scale is multiplied into the layers before it, exactly.",)
  rows = flat.get("pos_embedding", np.zeros((1, 0))).shape[1]
  if (
    rows and cls_row is None and options_from_params.tokens(flat, None) != rows
  ):
    notes += (
      f"The first of {rows} rows of positions is taken for the class token's, "
      "the others being a square. For an oblong grid: --set posemb_join=add.",
    )
  return VitParams(arrays, options, file.pixels, notes)


def _in_our_names(source, told):
  """Returns the arrays of a file by our names.

  Raises:
    ValueError: they have parts that our model lacks, or no positions; or the
      number of heads is unknown.
  """
  layout = source.metadata.layout
  if layout == "ours":
    return legacy.upgrade(source.arrays)
  flat = torch_names.to_ours(source.arrays, layout, 1)
  torch_names.check_parts(flat, layout)
  if told.get("pool_type") in ("gap", "none") and "cls" in flat:
    raise ValueError(
      f"it has a class token, but pool_type={told['pool_type']!r} does not use "
      "it; ours has one or the other."
    )
  heads = told.get("num_heads") or options_from_params.num_heads(flat)
  if not heads:
    raise ValueError(
      "it does not say how many attention heads there are, and no known "
      "variant has its size. Add --set num_heads=…, which must be right: with "
      "another number it is another function."
    )
  return torch_names.to_ours(source.arrays, layout, heads)


@contextlib.contextmanager
def _naming(path):
  """Puts the name of the file before messages."""
  try:
    yield
  except ValueError as error:
    raise ValueError(f"{path!r}: {error}") from error


def _matched(path, flat, options, cls_row):
  """Returns arrays as a model of these options has them, and all options."""
  try:
    model = vit.Model(**options)
    rows, cols = _patch_px(options)
    grid = options_from_params.grid(flat, cls_row)
    channels = options_from_params.channels(flat)
    shape = (1, rows * grid[0], cols * grid[1], channels)
    image = jax.ShapeDtypeStruct(shape, np.float32)
    shapes = dict(jax.eval_shape(model.init, jax.random.key(0), image))
  except (TypeError, AttributeError) as error:
    raise ValueError(
      f"An option of the model has a value of another type ({error}). Check "
      "--set, for example patch_size=[16,16]."
    ) from error
  options = vit.options(model)
  loaded, _ = load.match(
    path,
    flat,
    {k: v for k, v in shapes.items() if k in ("params", files.STATISTICS)},
    options=options,
    cls_row=cls_row,
    advice="The file is not all of such a model, or holds more than it. Give "
    "another file, or the model's options with --set.",
  )
  return files.flatten(loaded), options


def _patch_px(options):
  if options.get("stem", "patch") == "conv":
    return (2 ** options["stem_kw"]["num_layers"],) * 2
  return tuple(options["patch_size"])


def _notes(source, file, options, arrays):
  title = "this code base or big_vision"
  if file.layout in torch_names.LIBRARIES:
    title = torch_names.LIBRARIES[file.layout].title
  count = sum(x.size for x in arrays.values())
  notes = [
    f"{source.path}: layout of {title}, {count:,} numbers in {len(arrays)} "
    "arrays.",
    "Model: " + ", ".join(f"{k}={v!r}" for k, v in options.items()),
  ]
  if file.options:
    notes.append(f"{', '.join(sorted(file.options))}: see {file.source}.")
  if assumed := metadata.assumed(file, options):
    names = " ".join(f"--set {x.partition('=')[0]}=…" for x in assumed)
    notes.append(f"Assumed: {', '.join(assumed)} (state it with {names}).")
  pixels = "the source does not say; big_vision's are value_range(-1, 1)"
  if file.pixels:
    pixels = f"{file.pixels}, according to {file.source}"
  return (*notes, f"Pixels: {pixels}.")
