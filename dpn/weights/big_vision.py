"""Layouts that big_vision and its predecessors have used over the years."""

import collections
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpn import trees
from dpn.weights import names
from dpn.weights.files import Flat
from dpn.weights.names import PLAIN, STEMS

# Options of big_vision's own models.
SUPPORTED = {
  **PLAIN,
  "stem_ln": ["none"],
  "posemb": ["learn", "sincos2d"],
  "posemb_join_kw": [{"cls": False}],
  "norm_kw": [{"eps": 1e-6}],
  "gelu": ["tanh"],
  "qkv_bias": [True],
  "pool_type": ["tok", "gap", "map", "0", "none"],
}


# naflex_vit.py differs in the names of two modules, and in shapes.
_NAFLEX = {"patchln_pre": "stem/ln0", "patchln_post": "stem/ln1"}
SUPPORTED_NAFLEX = {
  **SUPPORTED,
  "stem_ln": STEMS,
  "pool_type": ["gap", "map", "none"],
}


def to_ours(flat: Flat, patch_size: Sequence[int] | None = None) -> Flat:
  """Returns the parameters under the names that the model uses today.

  `patch_size` is (rows, cols) if known; arrays of naflex_vit.py do not tell it.
  """
  if any(re.search(r"\bMlpBlock_[1-9]", name) for name in flat):
    flat = trees.flatten(_renumber(trees.unflatten(flat)))
  flat = dict(flat)
  for old in (
    "Transformer/posembed_input/pos_embedding",  # the first ViTs, and AugReg
    "Transformer/pos_embedding",  # big_vision until 2022
  ):
    if old in flat:
      flat["pos_embedding"] = flat.pop(old)
  # Added twice by mistake in early text towers of big_vision.
  if "Encoder_0/pos_embedding" in flat and "pos_embedding" in flat:
    extra = flat.pop("Encoder_0/pos_embedding")
    flat["pos_embedding"] = flat["pos_embedding"] + extra
  if is_naflex(flat):
    flat = _of_naflex(flat, patch_size)
  if "probe" in flat:  # ViT-G's attention pooling was not yet a module
    head = r"(probe|(LayerNorm|MlpBlock|MultiHeadDotProductAttention)_0/.*)"
    flat = {re.sub(f"^{head}$", r"MAPHead_0/\1", k): x for k, x in flat.items()}
  return flat


def is_naflex(flat: Flat) -> bool:
  """Returns whether patches are embedded by a Dense, as in naflex_vit.py."""
  x = flat.get("embedding/kernel")
  return x is not None and x.ndim == 2 and "pos_embedding" in flat


def _of_naflex(flat, patch_size):
  """Converts arrays of naflex_vit.py, whose positions are (n, n, width)."""
  flat = _renamed(flat, _NAFLEX)
  kernel, table = flat["embedding/kernel"], flat["pos_embedding"]
  pixels, width = kernel.shape
  patch = names.patch_of(pixels, patch_size or None)
  flat["embedding/kernel"] = kernel.reshape(*patch, width)
  flat["pos_embedding"] = table.reshape(1, -1, width)
  return flat


def to_naflex(flat: Flat, grid: tuple[int, int]) -> Flat:
  """Returns our arrays as in naflex_vit.py, for a grid (rows, cols)."""
  flat = _renamed(flat, {ours: theirs for theirs, ours in _NAFLEX.items()})
  kernel, table = flat["embedding/kernel"], flat["pos_embedding"]
  flat["embedding/kernel"] = kernel.reshape(-1, kernel.shape[-1])
  flat["pos_embedding"] = table.reshape(*grid, -1)
  return flat


def _renamed(flat, modules):
  name = lambda parent, slash, leaf: modules.get(parent, parent) + slash + leaf
  return {name(*k.rpartition("/")): x for k, x in flat.items()}


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


def match_scan(loaded: Flat, wanted: Flat) -> Flat:
  """Stacks the blocks' parameters, or unstacks them, to match the model."""
  stack = any(re.search(r"\bencoderblock/", name) for name in wanted)
  result: dict[str, Any] = {}
  blocks: dict[str, dict] = collections.defaultdict(dict)
  for name, x in loaded.items():
    match = re.fullmatch(r"(.*\bencoderblock)(?:_(\d+))?(/.*)", name)
    if not match or stack == (match[2] is None):
      result[name] = x
    elif stack:
      blocks[match[1] + match[3]][int(match[2])] = x
    else:
      result |= {f"{match[1]}_{i}{match[3]}": x_i for i, x_i in enumerate(x)}
  for name, by_index in blocks.items():
    indices = sorted(by_index)
    if indices != [*range(len(indices))]:
      raise ValueError(f"{name!r} has only blocks {indices}: some are missing.")
    result[name] = np.stack([by_index[i] for i in indices])
  return result
