"""A Vision Transformer read from any checkpoint, with all its options."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from absl import logging

from dpn import errors, registry, schema
from dpn.models import stem, vit
from dpn.weights import (
  big_vision,
  files,
  load,
  metadata,
  names,
  positions,
  preprocessing,
  source,
  vit_pytorch,
)
from dpn.weights.pixels import Pixels


@dataclasses.dataclass(frozen=True)
class VitParams:
  """A model in our layout, blocks looped.

  Attributes:
    arrays: float32 by our names; running statistics "batch_stats/<name>".
    options: of `vit.Model`, with `num_classes`; complete.
    pixels: of its images, None if unknown.
    pp: how images are prepared, see `preprocessing`; None if unknown.
    assumed: options that nothing states, as "name=value".
    notes: what to tell the user.
    patch: (rows, cols, channels) of the pixels for one token.
    grid: (rows, cols) of an image's patches, None if unknown.
    image_shape: (1, rows, cols, channels) of an image with which a model has
      these arrays; its grid may be another with as many patches.
    resizing: how its positions are resized, see `positions.resize_grid`.
    loader: what made the images, see `metadata.ModelMetadata`.
  """

  arrays: Mapping[str, np.ndarray]
  options: Mapping[str, Any]
  pixels: Pixels | None
  pp: str | None
  assumed: tuple[str, ...]
  notes: tuple[str, ...]
  patch: tuple[int, int, int]
  grid: tuple[int, int] | None
  image_shape: tuple[int, int, int, int]
  resizing: str = "corners"
  loader: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def cls_row(self) -> bool:
    """Whether the class token has a row in the position embeddings."""
    return bool(positions.has_cls_row(self.options))


def read(
  path: str,
  overrides: Mapping[str, Any],
  arch: str | None = None,
  options_of_run: source.OptionsOfRun = source.vit_options,
) -> VitParams:
  """Returns the Vision Transformer that a path stands for.

  Args:
    path: see `files.locate`.
    overrides: options that win over what is found.
    arch: see `source.read`.
    options_of_run: see `source.read`.

  Raises:
    ValueError, OSError: it is no checkpoint, damaged, of no known layout, or
      not of a Vision Transformer.
  """
  found = source.read(path, arch, options_of_run)
  file = _with_options(path, found.metadata, overrides)
  flat, options = _inferred(found.arrays, file, found.metadata.options)
  options |= file.options
  tables = positions.names(flat)
  rows = flat[tables[0]].shape[-2] if tables else 0
  if rows and "posemb" not in overrides:
    # Other libraries' files have fixed positions written out.
    options |= {"posemb": "learn", "posemb_kw": {}}
  cls_row, by_number = _has_cls_row(file, flat, options, rows)
  tokens = rows - cls_row if rows else None
  model = vit.Model(**options)
  options = vit.options(model)
  _warn_of_contradictions(path, found.metadata, options, overrides)
  patch, grid, image_shape = _shapes(file, flat, options, tokens)
  image = jax.ShapeDtypeStruct(image_shape, np.float32)
  said = dataclasses.replace(file, options=options, guessed=())
  if "cls" in flat:  # else it may have become a register
    said = dataclasses.replace(said, cls_row=cls_row)
  variables = load.load_variables(
    dataclasses.replace(found, metadata=said),
    jax.eval_shape(model.init, jax.random.key(0), image),
    options=options,
    advice="The file is not all of such a model, or holds more than it: ours "
    "has no decoder, for example. Give another "
    "file, or the model's options with --set.",
  )
  arrays = files.flatten(variables)
  assumed = tuple(metadata.assumed(file, options))
  notes = _notes(found, file, options, arrays, assumed)
  if by_number:
    notes.append(
      f"The first of {rows} rows of positions is taken for the class token's. "
      "If it is a patch's: --set posemb_join=add."
    )
  return VitParams(
    *(arrays, options, file.pixels, file.pp, assumed, tuple(notes)),
    *(patch, grid, image_shape, positions.of_library(file, options)),
    loader=file.loader,
  )


def _shapes(file, flat, options, tokens):
  """Returns the patch, the grid of positions if there is one, and an image."""
  channels = next((x.shape[2] for x in _embeddings(flat)), 3)
  p, q = positions.token_pixels(options)
  known = positions.known_grid(file, flat)
  size = np.multiply(_grid(flat, tokens, known), (p, q)).tolist()
  grid = positions.grid_of(tokens, known) if tokens else None
  # A stem of one's own may have another stride: its image is the file's then.
  own = options["stem"] not in stem.STEMS
  if own and known and tokens and math.prod(known) != tokens:
    size = file.image_size or preprocessing.describe(file.pp)["size"]
    grid = None
  return (p, q, channels), grid, (1, *size, channels)


def _warn_of_contradictions(path, file, options, overrides):
  """Warns of the overrides that differ from what the file says."""
  known = overrides.keys() - {*file.guessed}
  told = {k: v for k, v in file.options.items() if k in known}
  completed = vit.options(vit.Model(**{**options, **told}))
  for name in told:
    if (got := options.get(name)) != (said := completed.get(name)):
      logging.warning("%s=%r, not %r as %r says.", name, got, said, path)


def _with_options(path, file, overrides):
  """Returns a file's metadata with further options, all of them checked."""
  registry.trust_names(overrides)
  registry.check_names(f"{path}, in {file.source}", file.options)
  told = {**file.options, **overrides}
  for name in told.keys() & vit.HINTS.keys():
    schema.check(path, name, told[name], vit.HINTS[name])
  guessed = tuple(x for x in file.guessed if x not in overrides)
  return dataclasses.replace(file, options=told, guessed=guessed)


def _has_cls_row(file, flat, options, rows) -> tuple[bool, bool]:
  """Returns whether one of the rows of positions is the class token's.

  And whether only the number of rows, a square plus one, says so.
  """
  if "cls" not in flat:
    return False, False
  if file.cls_row is not None:
    return file.cls_row, False
  if positions.has_cls_row(options) or "posemb_join" in file.options:
    return bool(positions.has_cls_row(options)), False
  grid = positions.known_grid(file, flat)
  if grid and rows - math.prod(grid) in (0, 1):
    return rows > math.prod(grid), False
  found = positions.square_plus_one(rows)
  if file.layout in source.LIBRARIES and math.isqrt(rows) ** 2 != rows:
    found = True  # their default
  return found, found


def infer_options(flat: Mapping[str, Any]) -> dict[str, Any]:
  """Returns options of `vit.Model`, with `num_classes`, that fit parameters.

  These are options that files of other libraries show in names and shapes; our
  own files say everything in their metadata. Blocks may be looped or scanned.

  Raises:
    ValueError: these are not the parameters of a Vision Transformer.
  """
  block = r"Transformer/encoderblock(_\d+)?/"
  depth = len({match[0] for name in flat if (match := re.match(block, name))})
  in_blocks = {re.sub(block, "", name): x for name, x in flat.items()}
  attention = "MultiHeadDotProductAttention_0/query"
  query = in_blocks.get(f"{attention}/kernel")
  hidden = in_blocks.get("MlpBlock_0/Dense_0/kernel")
  embeddings = _embeddings(flat)
  if not embeddings or query is None or hidden is None:
    tops = sorted({name.partition("/")[0] for name in flat})
    raise ValueError(
      "These are not the parameters of a Vision Transformer: expected "
      "'embedding/kernel' and 'Transformer/encoderblock…' with attention and "
      f"MLP, got {errors.some_of(tops, 8)}. Of a larger model name a part: "
      "'file.npz:img'."
    )
  *patch_size, _, width = embeddings[-1].shape
  heads, head_dim = query.shape[-2:]
  patches = {"patch_size": list(patch_size)}
  sizes = {name: x.shape[-1] for name, x in flat.items() if x.ndim}
  pool_type = "tok" if "cls" in flat else "gap"
  return {
    "num_classes": sizes.get("head/kernel"),
    **(patches if "embedding/kernel" in flat else {}),
    "width": width,
    "depth": len(query) if query.ndim == 4 else depth,
    "mlp_dim": hidden.shape[-1],
    "mlp": "swiglu" if "MlpBlock_0/gate/kernel" in in_blocks else "mlp",
    "num_heads": heads,
    "head_dim": head_dim if heads * head_dim != width else None,
    "stem_ln": names.STEMS[
      2 * ("stem/ln0/scale" in flat) + ("stem/ln1/scale" in flat)
    ],
    "qkv_bias": f"{attention}/bias" in in_blocks,
    "qk_norm": _qk_norm(in_blocks, f"{attention}_ln"),
    "v_norm": _qk_norm(in_blocks, attention.replace("query", "value_ln")),
    "layer_scale": 1e-4 if "LayerScale_0" in in_blocks else None,
    "registers": flat["registers"].shape[1] if "registers" in flat else 0,
    "final_norm": "Transformer/encoder_norm/scale" in flat,
    "pool_norm": "fc_norm/scale" in flat,
    "rep_size": sizes.get("pre_logits/kernel", False),
    "pool_type": "map" if "MAPHead_0/probe" in flat else pool_type,
    "posemb": "learn" if "pos_embedding" in flat else "sincos2d",
    "posemb_join": "add",
  }


def _qk_norm(names, norm):
  """Returns `qk_norm` by the names of its parameters.

  A scale alone may also be RMSNorm's or another's; Flax's is LayerNorm's.
  """
  if f"{norm}/scale" not in names:
    return "none"
  return "layernorm" if f"{norm}/bias" in names else "layernorm_no_bias"


def _inferred(arrays, file, told):
  """Returns the arrays of a file by our names, and options that fit them.

  `told` are the options that the file itself states.

  Raises:
    ValueError: there are no positions, a class token that is not used, or the
      number of heads is unknown.
  """
  if file.layout not in source.LIBRARIES:
    flat = big_vision.to_ours(arrays, file.options.get("patch_size"))
    try:
      return flat, infer_options(flat)
    except ValueError:
      if "patch_size" not in told:
        raise
      return flat, {}  # blocks or a stem of one's own; the file says all
  library, heads = source.LIBRARIES[file.layout], file.options.get("num_heads")
  patch = None
  if library.embedding:
    pixels = arrays[library.embedding].shape[-1]
    patch = names.patch_of(pixels, file.options.get("patch_size"))
  scaled = file.options.get("layer_scale") is not None
  flat = names.to_ours(arrays, library, heads or 1, patch, scaled)
  flat = positions.without_register_rows(flat, file)
  flat = positions.class_token_as_register(flat, file)
  if "pos_embedding" not in flat and "posemb" not in file.options:
    raise ValueError(
      "it has no position embeddings; our Vision Transformer always has some."
    )
  pool_type = file.options.get("pool_type")
  if pool_type not in ("tok", None) and "cls" in flat:
    raise ValueError(
      f"it has a class token, but pool_type={pool_type!r} does not use it; "
      "ours has one or the other."
    )
  options = infer_options(flat)
  size = tuple(options[name] for name in ("width", "depth", "mlp_dim"))
  known = {tuple(its): heads for *its, heads in vit.VARIANTS.values()}
  if library.embedding:
    channels = options["head_dim"] or options["width"]  # of all heads
    known = {size: vit_pytorch.heads(channels)}
  options["num_heads"] = heads or known.get(size)
  if not options["num_heads"]:
    raise ValueError(
      "it does not say how many attention heads there are, and no known "
      "variant has its size. Convert the file with --set num_heads=…, or give "
      "from_pretrained num_heads=…, which must be right: with another number "
      "it is another function; or arch, timm's name of the model."
    )
  if options["head_dim"] and not heads:
    options["head_dim"] //= options["num_heads"]
  return flat, options


def _grid(flat, tokens, known):
  """Returns (rows, cols) of patches with which a model has these shapes.

  That is `known` if it fits relative positions.
  """
  for name, x in flat.items():
    if name.endswith("/rel_posemb/table"):  # (2 rows - 1) (2 cols - 1) offsets
      offsets = x.shape[-2]
      if known and math.prod(2 * n - 1 for n in known) == offsets:
        return known
      side = (math.isqrt(offsets) + 1) // 2
      square = (2 * side - 1) ** 2 == offsets
      return (side, side) if square else (1, (offsets + 1) // 2)
  return 1, tokens or 4


def _embeddings(flat):
  """Returns the kernels from pixels to tokens, one for each convolution."""
  if (kernel := flat.get("embedding/kernel")) is not None:
    return [kernel] * (kernel.ndim == 4)
  names = [k for k in flat if re.fullmatch(r"embedding/Conv_\d+/kernel", k)]
  return [flat[f"embedding/Conv_{i}/kernel"] for i in range(len(names))]


def _notes(found, file, options, arrays, assumed):
  title = "this code base or big_vision"
  if file.layout in source.LIBRARIES:
    title = source.LIBRARIES[file.layout].title
  count = sum(x.size for x in arrays.values())
  notes = [
    f"{found.path}: layout of {title}, {count:,} numbers in {len(arrays)} "
    "arrays.",
    "Model: " + ", ".join(f"{k}={v!r}" for k, v in options.items()),
  ]
  known = found.metadata.options.keys()
  if said := sorted(known - {*found.metadata.guessed}):
    notes.append(f"{', '.join(said)}: see {file.source}.")
  if assumed:
    names = " ".join(f"--set {x.partition('=')[0]}=…" for x in assumed)
    if file.layout == "timm":
      names += " or, all of it, --arch NAME"
    notes.append(f"Assumed: {', '.join(assumed)} (state it with {names}).")
  pixels = "the source does not say; big_vision's are value_range(-1, 1)"
  if file.pixels:
    pixels = f"{file.pixels}, according to {file.source}"
  return [*notes, f"Pixels: {pixels}."]
