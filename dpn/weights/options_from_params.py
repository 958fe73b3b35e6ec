"""What names and shapes of parameters say about a Vision Transformer."""

import math
import re
from collections.abc import Mapping
from typing import Any

from dpn.models import vit

_BLOCK = r"Transformer/encoderblock(_\d+)?/"
_STEMS = {
  (False, False): "none",
  (True, True): "dpn",
  (True, False): "pre",
  (False, True): "post",
}


def options(flat: Mapping[str, Any]) -> dict[str, Any]:
  """Returns options of `vit.Model`, with `num_classes`, that fit parameters.

  What leaves no trace is left out, or the default: `gap` for a model that has
  neither class token nor a pooling module.

  Args:
    flat: arrays by our names, of blocks looped or scanned.

  Raises:
    ValueError: these are not the parameters of a Vision Transformer.
  """
  blocks = {match[0]: 0 for name in flat if (match := re.match(_BLOCK, name))}
  embeddings = _embeddings(flat)
  if not embeddings or not blocks:
    tops = sorted({name.partition("/")[0] for name in flat})
    raise ValueError(
      "These are not the parameters of a Vision Transformer: expected "
      f"'embedding/kernel' and 'Transformer/encoderblock…', got {tops}. Of a "
      "larger model name a part: 'file.npz:img'."
    )

  def in_block(suffix):
    pattern = re.compile(_BLOCK + suffix)
    return next((x for k, x in flat.items() if pattern.fullmatch(k)), None)

  query = in_block("MultiHeadDotProductAttention_0/query/kernel")
  hidden = in_block("MlpBlock_0/Dense_0/kernel")
  if query is None or hidden is None:
    raise ValueError("The blocks have no attention, or no MLP, by our names.")
  *patch_size, _, width = embeddings[-1].shape
  stem = {"patch_size": list(patch_size)}
  if "embedding/kernel" not in flat:
    kw = {"kernel_size": patch_size[0], "num_layers": len(embeddings)}
    stem = {"stem": "conv", "stem_kw": kw}
  lape = in_block("(rel_posemb/)?pe_norm/scale") is not None
  ln0, ln1 = (f"stem/{norm}/scale" in flat for norm in ("ln0", "ln1"))
  rms = ln0 and "stem/ln0/bias" not in flat
  return {
    "num_classes": _last(flat, "head/kernel", None),
    **stem,
    "width": width,
    "depth": len(query) if query.ndim == 4 else len(blocks),
    "mlp_dim": hidden.shape[-1],
    "num_heads": query.shape[-2],
    "stem_ln": "rmsnorm" if rms else _STEMS[ln0, ln1],
    "qkv_bias": in_block("MultiHeadDotProductAttention_0/query/bias")
    is not None,
    "rep_size": _last(flat, "pre_logits/kernel", False),
    "pool_type": _pool_type(flat),
    "posemb": _posemb(flat),
    "posemb_join": "lape" if lape else "add",
  }


def channels(flat: Mapping[str, Any]) -> int:
  """Returns the channels of the images, of arrays by our names."""
  return _embeddings(flat)[0].shape[2]


def num_heads(flat: Mapping[str, Any]) -> int | None:
  """Returns the heads of the variant with this width, depth and MLP.

  None if none in `vit.VARIANTS` has them: PyTorch's arrays do not tell.

  Args:
    flat: arrays by our names, as if of one head.
  """
  found = options(flat)
  size = tuple(found[k] for k in ("width", "depth", "mlp_dim"))
  sizes = {(w, d, m): heads for w, d, m, heads in vit.VARIANTS.values()}
  return sizes.get(size)


def has_row(options: Mapping[str, Any]) -> bool:
  """Returns whether the class token has a row in the position embeddings."""
  if options["pool_type"] != "tok":
    return False
  lape = options.get("posemb_join") == "lape"
  return lape or options.get("posemb_join_kw", {}).get("cls", False)


def tokens(flat: Mapping[str, Any], cls_row: bool | None) -> int | None:
  """Returns how many patches have a position embedding, None if none has.

  Args:
    flat: arrays by our names.
    cls_row: whether the class token has one too; None: it has, if there is
      such a token and one row less is a square.
  """
  if "pos_embedding" not in flat:
    return None
  rows = flat["pos_embedding"].shape[1]
  if cls_row is None:
    cls_row = "cls" in flat and math.isqrt(rows) ** 2 + 1 == rows
  return rows - cls_row


def grid(flat: Mapping[str, Any], cls_row: bool | None) -> tuple[int, int]:
  """Returns (rows, cols) of patches with which a model has these shapes.

  The images' own grid may be another one with as many patches.

  Args:
    flat: arrays by our names.
    cls_row: see `tokens`.
  """
  for name, x in flat.items():
    if name.endswith("/rel_posemb/table"):  # (2 rows - 1) (2 cols - 1) offsets
      offsets = x.shape[-2]
      side = (math.isqrt(offsets) + 1) // 2
      square = (2 * side - 1) ** 2 == offsets
      return (side, side) if square else (1, (offsets + 1) // 2)
  return 1, tokens(flat, cls_row) or 4


def _embeddings(flat):
  """Returns the kernels from pixels to tokens, one for each convolution."""
  if "embedding/kernel" in flat:
    return [flat["embedding/kernel"]]
  names = [k for k in flat if re.fullmatch(r"embedding/Conv_\d+/kernel", k)]
  return [flat[f"embedding/Conv_{i}/kernel"] for i in range(len(names))]


def _last(flat, name, otherwise):
  return flat[name].shape[-1] if name in flat else otherwise


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
