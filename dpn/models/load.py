"""Starts a Vision Transformer from a parameter file.

Files of big_vision and its predecessors load unchanged. Everything that a
file and the model do not share is an error unless allowed.
"""

import collections
import math
import os
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
import scipy.ndimage
from absl import logging

from dpn import names, trees

Flat = dict[str, Any]


def load(
  path: str, params: Mapping[str, Any], *, dont_load: Sequence[str] = ()
) -> dict[str, Any]:
  """Returns `params` with the values of a parameter file.

  Older layouts, and scanned blocks against looped ones, are converted. A
  `pos_embedding` of another length is resized if both grids are square.

  Args:
    path: see `read`.
    params: a model's parameters. `jax.ShapeDtypeStruct`s will do for all that
      is loaded.
    dont_load: regular expressions on whole names such as "head/kernel". What
      they match keeps its value in `params`, and is ignored in the file.

  Returns:
    NumPy arrays with the structure, shapes and dtypes of `params`; a leaf of
    `dont_load` as it was given.

  Raises:
    FileNotFoundError, ValueError: see `read`.
    ValueError: names or shapes differ and `dont_load` does not match them.
  """
  wanted = trees.flatten(params)
  loaded = _match_scan(_modernize(read(path)), wanted)
  loaded = _match_posemb(loaded, wanted)
  if isinstance(dont_load, str):
    dont_load = [dont_load]
  masks = trees.masks({**loaded, **wanted}, dont_load, "model_load.dont_load")
  kept = {name for mask in masks for name in mask if mask[name]}
  _check(path, wanted, loaded, kept)
  return trees.unflatten(
    {
      name: leaf if name in kept else loaded[name].astype(leaf.dtype)
      for name, leaf in wanted.items()
    }
  )


def read(path: str) -> dict[str, np.ndarray]:
  """Returns the parameters in a file, by name.

  Of a whole training state, as big_vision saves it, only the parameters.

  Args:
    path: an .npz or .safetensors file, on this machine. A suffix picks a
      subtree and drops its name: "siglip.npz:img".

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the format or the subtree is unknown, or the file is damaged.
  """
  match = re.fullmatch(r"(.+(\.\w+))(?::([^:]+))?", path)
  file, suffix, subtree = match.groups() if match else (path, "", None)
  if suffix not in READERS:
    raise ValueError(
      f"Cannot load parameters from {path!r}. Expected a file of format "
      f"{' or '.join(READERS)}, with ':<subtree>' behind it if need be."
    )
  if not os.path.isfile(file):
    raise FileNotFoundError(
      f"There is no file {file!r}. Files elsewhere, such as in a bucket, have "
      "to be copied to this machine or mounted first."
    )
  try:
    flat = READERS[suffix](file)
  except DAMAGE as error:
    raise ValueError(
      f"{file!r} is not a readable {suffix} file of arrays ({error}). It may "
      "be truncated: copy it again."
    ) from error
  for wrapper in ("params", "opt/target"):
    if inner := _subtree(flat, wrapper):
      flat = inner
      break
  if not subtree:
    return flat
  if inner := _subtree(flat, subtree.strip("/")):
    return inner
  known = {name.partition("/")[0] for name in flat if "/" in name}
  raise ValueError(f"{file!r}: " + names.unknown("subtree", subtree, known))


def _read_npz(path):
  with (
    open(path, "rb") as f,
    np.lib.npyio.NpzFile(f, allow_pickle=False) as npz,
  ):
    return {name: _recover_bfloat16(npz[name]) for name in npz}


def _recover_bfloat16(x):
  """NumPy's format does not know bfloat16 and stores two bytes of void."""
  return x.view(jnp.bfloat16) if x.dtype == "V2" else x


READERS = {".npz": _read_npz, ".safetensors": safetensors.numpy.load_file}
DAMAGE = (
  EOFError,
  ValueError,
  zipfile.BadZipFile,
  zlib.error,
  safetensors.SafetensorError,
)


def _subtree(flat, prefix):
  start = len(prefix) + 1
  return {
    name[start:]: x for name, x in flat.items() if name.startswith(f"{prefix}/")
  }


def _modernize(flat: Flat) -> Flat:
  """Returns the parameters under the names that the model uses today."""
  flat = trees.flatten(_renumber(trees.unflatten(flat)))
  for old in (
    "Transformer/posembed_input/pos_embedding",  # the first ViTs, and AugReg
    "Transformer/pos_embedding",  # big_vision until 2022
  ):
    if old in flat:
      flat["pos_embedding"] = flat.pop(old)
  if "probe" in flat:  # ViT-G's attention pooling was not yet a module
    head = r"probe|(LayerNorm|MlpBlock|MultiHeadDotProductAttention)_0/.*"
    flat = {
      f"MAPHead_0/{name}" if re.fullmatch(head, name) else name: x
      for name, x in flat.items()
    }
  return flat


def _renumber(tree):
  """Numbers modules within their class, as Linen does.

  Flax before Linen counted all modules of a parent together: LayerNorm_0,
  MultiHeadDotProductAttention_1, LayerNorm_2, MlpBlock_3.
  """
  if not isinstance(tree, dict):
    return tree
  numbered, renumbered = [], {}
  for name, child in tree.items():
    if match := re.fullmatch(r"(.+)_(\d+)", name):
      numbered.append((int(match[2]), match[1], _renumber(child)))
    else:
      renumbered[name] = _renumber(child)
  counts = collections.Counter()
  for _, kind, child in sorted(numbered, key=lambda entry: entry[0]):
    renumbered[f"{kind}_{counts[kind]}"] = child
    counts[kind] += 1
  return renumbered


def _match_scan(loaded: Flat, wanted: Flat) -> Flat:
  """Stacks the blocks' parameters, or unstacks them, if the model did."""
  if any(re.fullmatch(r"(.*/)?encoderblock/.*", name) for name in wanted):
    return _stack_blocks(loaded)
  return _unstack_blocks(loaded)


def _stack_blocks(flat):
  stacked, blocks = {}, collections.defaultdict(dict)
  for name, x in flat.items():
    if match := re.fullmatch(r"(.*\bencoderblock)_(\d+)(/.*)", name):
      blocks[match[1] + match[3]][int(match[2])] = x
    else:
      stacked[name] = x
  for name, by_index in blocks.items():
    stacked[name] = np.stack([by_index[i] for i in sorted(by_index)])
  return stacked


def _unstack_blocks(flat):
  unstacked = {}
  for name, x in flat.items():
    if match := re.fullmatch(r"(.*\bencoderblock)(/.*)", name):
      for i, x_i in enumerate(x):
        unstacked[f"{match[1]}_{i}{match[2]}"] = x_i
    else:
      unstacked[name] = x
  return unstacked


def _match_posemb(loaded: Flat, wanted: Flat) -> Flat:
  """Fits the position embeddings, (1, tokens, width), to the model's grid.

  Files from before 2022 embed the position of the class token as well, in
  front: one row more than a square. The token itself takes it over.
  """
  posemb = loaded.get("pos_embedding")
  shape = getattr(wanted.get("pos_embedding"), "shape", None)
  # An oblong grid, which only an equal one fits, may also be a square plus one.
  if posemb is None or posemb.ndim != 3 or posemb.shape == shape:
    return loaded
  loaded = dict(loaded)
  if math.isqrt(posemb.shape[1]) ** 2 + 1 == posemb.shape[1]:
    logging.info("The class token takes over its position embedding.")
    posemb, of_cls = posemb[:, 1:], posemb[:, :1]
    if "cls" in loaded:
      loaded["cls"] = loaded["cls"] + of_cls
  if shape:
    posemb = _resize_posemb(posemb, shape[1])
  return {**loaded, "pos_embedding": posemb}


def _resize_posemb(posemb, tokens):
  """Returns a square grid resized bilinearly to another, corner on corner.

  Args:
    posemb: (1, old * old, width); returned unchanged if not square.
    tokens: new * new.
  """
  old, new = math.isqrt(posemb.shape[1]), math.isqrt(tokens)
  if old == new or old**2 != posemb.shape[1] or new**2 != tokens:
    return posemb
  logging.info("The %d² position embeddings are resized to %d².", old, new)
  # SciPy knows no half precision.
  dtype = np.promote_types(posemb.dtype, np.float32)
  grid = posemb.reshape(old, old, -1).astype(dtype)
  grid = scipy.ndimage.zoom(grid, (new / old, new / old, 1), order=1)
  return grid.reshape(1, tokens, -1)


def _check(path: str, wanted: Flat, loaded: Flat, kept: set[str]):
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
  raise ValueError(
    f"{path!r} does not fit the model. Expected equal names and shapes, got\n"
    f"{table}\nFix the path or the model; or, to leave all of these as they "
    f"are in the model, set dont_load={_suggest(wrong, every)}."
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
