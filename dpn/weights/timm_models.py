"""What timm's names of Vision Transformers say that their arrays do not.

As timm 1.0.31 makes the models; export_live_test.py compares all of its names.
"""

import re
from typing import Any, NamedTuple

#            width, depth, heads
_SIZES = {
  "tiny": (192, 12, 3),
  "small": (384, 12, 6),
  "medium": (512, 12, 8),
  "betwixt": (640, 12, 10),
  "base": (768, 12, 12),
  "large": (1024, 24, 16),
  "so400m": (1152, 27, 16),
  "huge": (1280, 32, 16),
  "giant": (1408, 40, 16),
  "giantopt": (1536, 40, 16),
  "gigantic": (1664, 48, 16),
}
_EXCEPTIONS = {
  "vit_base_patch16_gap_224": (768, 12, 16),
  "vit_base_patch16_plus_240": (896, 12, 14),
  "vit_base_patch32_plus_256": (896, 12, 14),
  "vit_small_patch16_36x1_224": (384, 36, 6),
}
_NAME = re.compile(
  r"(?!.*giant_patch14_dinov2)"  # its MLP is gated
  r"(?:(?P<own>deit3|flexivit)|vit|deit)_(?P<size>[a-z0-9]+)(?:_patch\d+)?"
  r"(?P<siglip>_siglip)?(?P<gap>_gap)?(?:_dinov2|_plus|_36x1)?(?:_\d{3})?"
  r"(?:_miil)?"
)
# Models whose GELU is approximated by tanh.
_TANH = (
  r"vit_((base_patch32|so400m_patch16|giantopt_patch16)_siglip"
  r"|large_patch16_siglip_(gap_)?512)"
)


class TimmModel(NamedTuple):
  """A Vision Transformer of timm that ours can be.

  Attributes:
    options: of `vit.Model`, those that names and shapes do not tell.
    cls_row: whether the class token has a position.
    width: of the tokens.
    depth: number of blocks.
  """

  options: dict[str, Any]
  cls_row: bool
  width: int
  depth: int


def find(name: str) -> TimmModel | None:
  """Returns timm's model of that name, None if ours cannot be it.

  A tag such as ".augreg_in21k" is ignored: it names other values of the same
  model, and perhaps another number of classes.
  """
  name = name.partition(".")[0]
  match = _NAME.fullmatch(name)
  if not match or match["size"] not in _SIZES:
    return None
  width, depth, heads = _EXCEPTIONS.get(name, _SIZES[match["size"]])
  pool = "gap" if match["gap"] else "map" if match["siglip"] else "tok"
  options = {
    "gelu": "tanh" if re.match(_TANH, name) else "exact",
    "num_heads": heads,
    "pool_type": pool,
  }
  return TimmModel(options, match["own"] is None, width, depth)


def check(name: str, arrays: dict[str, Any]):
  """Raises ValueError unless ours can be the model, and it has these arrays."""
  model = find(name)
  if model is None:
    raise ValueError(
      f"arch={name!r}: ours can be timm's models named vit, deit, deit3 or "
      f"flexivit, of the sizes {', '.join(_SIZES)}, such as "
      "'vit_base_patch16_siglip_224'; not those with registers, other norms or "
      "blocks, or a convolutional stem."
    )
  kernel = arrays["patch_embed.proj.weight"]
  found = (
    kernel.shape[0],
    len({k.split(".")[1] for k in arrays if k.startswith("blocks.")}),
  )
  if found != (model.width, model.depth):
    raise ValueError(
      f"arch={name!r} has width {model.width} and {model.depth} blocks, the "
      f"file {found[0]} and {found[1]}: it is of another architecture."
    )
