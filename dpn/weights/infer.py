"""What a parameter file says about its model by names and shapes alone."""

import math
import re
from collections.abc import Mapping
from typing import Any

from dpn.models import vit


def options(flat: Mapping[str, Any]) -> dict[str, Any]:
  """Returns options of `vit.Model`, with `num_classes`, that fit parameters.

  What leaves no trace is the default: GELU, epsilons, and `gap` for a model
  that has neither class token nor a pooling module.

  Args:
    flat: arrays by our names, of blocks looped or scanned.

  Raises:
    ValueError: these are not the parameters of a Vision Transformer.
  """
  block = r"Transformer/encoderblock(_\d+)?/"
  first = {match[0]: name for name in flat if (match := re.match(block, name))}
  embeddings = _embeddings(flat)
  if not embeddings or not first:
    tops = sorted({name.partition("/")[0] for name in flat})
    raise ValueError(
      "These are not the parameters of a Vision Transformer: expected "
      f"'embedding/kernel' and 'Transformer/encoderblock…', got {tops}. Of a "
      "larger model name a part: 'file.npz:img'."
    )
  *patch_size, _, width = embeddings[-1].shape

  def inside(suffix):  # of any block
    return next(
      (x for k, x in flat.items() if re.match(f"{block}{suffix}$", k)), None
    )

  query = inside("MultiHeadDotProductAttention_0/query/kernel")
  hidden = inside("MlpBlock_0/Dense_0/kernel")
  if query is None or hidden is None:
    raise ValueError("The blocks have no attention, or no MLP, by our names.")
  scanned = "Transformer/encoderblock/" in first
  rep = flat.get("pre_logits/kernel")
  head = flat.get("head/kernel")
  pe_norm = inside("(rel_posemb/)?pe_norm/scale")
  stem = {"patch_size": list(patch_size)}
  if "embedding/kernel" not in flat:
    stem = {"conv_stem": [patch_size[0], len(embeddings)]}
  return {
    "num_classes": None if head is None else head.shape[-1],
    **stem,
    "width": width,
    "depth": query.shape[0] if scanned else len(first),
    "mlp_dim": hidden.shape[-1],
    "num_heads": query.shape[-2],
    "stem_ln": _stem_ln(flat),
    "qkv_bias": inside("MultiHeadDotProductAttention_0/query/bias") is not None,
    "rep_size": False if rep is None else rep.shape[-1],
    "pool_type": _pool_type(flat),
    "posemb": _posemb(flat),
    "posemb_join": "add" if pe_norm is None else "lape",
  }


def channels(flat: Mapping[str, Any]) -> int:
  """Returns the channels of the images, of arrays by our names."""
  return _embeddings(flat)[0].shape[2]


def _embeddings(flat):
  """Returns the kernels from pixels to tokens, of a `conv_stem` many."""
  if "embedding/kernel" in flat:
    return [flat["embedding/kernel"]]
  names = [k for k in flat if re.fullmatch(r"embedding/Conv_\d+/kernel", k)]
  return [flat[f"embedding/Conv_{i}/kernel"] for i in range(len(names))]


def num_heads(flat: Mapping[str, Any]) -> int | None:
  """Returns the heads of the variant with this width, depth and MLP.

  None if none in `vit.VARIANTS` has them: PyTorch's arrays do not tell.

  Args:
    flat: arrays by our names, as if of one head.
  """
  found = options(flat)
  for width, depth, mlp_dim, heads in vit.VARIANTS.values():
    if (width, depth, mlp_dim) == tuple(
      found[k] for k in ("width", "depth", "mlp_dim")
    ):
      return heads
  return None


def tokens(flat: Mapping[str, Any], has_row: bool | None) -> int | None:
  """Returns how many patches have a position embedding, None if none has.

  Args:
    flat: arrays by our names.
    has_row: whether the class token has one too; None: it has, if one row
      less is a square.
  """
  if "pos_embedding" not in flat:
    return None
  rows = flat["pos_embedding"].shape[1]
  if has_row is None:
    has_row = math.isqrt(rows) ** 2 + 1 == rows
  return rows - has_row


def grid(flat: Mapping[str, Any], has_row: bool | None) -> tuple[int, int]:
  """Returns (rows, cols) of patches with which a model has these shapes.

  The images' own grid may be another one with as many patches.

  Args:
    flat: arrays by our names.
    has_row: see `tokens`.
  """
  for name, x in flat.items():
    if name.endswith("/rel_posemb/table"):  # (2 rows - 1) (2 cols - 1) offsets
      offsets = x.shape[-2]
      side = (math.isqrt(offsets) + 1) // 2
      square = (2 * side - 1) ** 2 == offsets
      return (side, side) if square else (1, (offsets + 1) // 2)
  return 1, tokens(flat, has_row) or 4


def _stem_ln(flat):
  ln0, ln1 = (f"stem/{norm}/scale" in flat for norm in ("ln0", "ln1"))
  if ln0 and "stem/ln0/bias" not in flat:
    return "rmsnorm"
  return {
    (False, False): "none",
    (True, True): "dpn",
    (True, False): "pre",
    (False, True): "post",
  }[ln0, ln1]


def _pool_type(flat):
  for module, pool_type in (("MAPHead_0", "map"), ("SequencePool_0", "seq")):
    if any(name.startswith(f"{module}/") for name in flat):
      return pool_type
  return "tok" if "cls" in flat else "gap"


def _posemb(flat):
  if "pos_embedding" in flat:
    return "learn"
  relative = any("/rel_posemb/" in name for name in flat)
  return "rpe" if relative else "sincos2d"
