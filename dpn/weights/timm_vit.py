"""timm's Vision Transformers: names of arrays, models by name, config.json.

As timm 1.0.31 makes the models; export_live_test.py compares all of its names.
"""

import re
from typing import Any, NamedTuple, TypedDict

from dpn.weights import metadata, preprocessing
from dpn.weights.names import ATTENTION, BLOCK, MAP_ATTENTION, PLAIN, Names

NAMES = Names(
  title="timm",
  sign="patch_embed.proj.weight",
  modules={
    "patch_embed.proj": "embedding",
    "patch_embed.ln0": "stem/ln0",
    "patch_embed.norm": "stem/ln1",
    "blocks.{i}.norm1": BLOCK + "LayerNorm_0",
    "blocks.{i}.attn.qkv": (
      ATTENTION + "query",
      ATTENTION + "key",
      ATTENTION + "value",
    ),
    "blocks.{i}.attn.q_norm": ATTENTION + "query_ln",
    "blocks.{i}.attn.k_norm": ATTENTION + "key_ln",
    "blocks.{i}.attn.proj": ATTENTION + "out",
    "blocks.{i}.norm2": BLOCK + "LayerNorm_1",
    "blocks.{i}.mlp.fc1": BLOCK + "MlpBlock_0/Dense_0",
    "blocks.{i}.mlp.fc2": BLOCK + "MlpBlock_0/Dense_1",
    "norm": "Transformer/encoder_norm",
    "attn_pool.q": MAP_ATTENTION + "query",
    "attn_pool.kv": (MAP_ATTENTION + "key", MAP_ATTENTION + "value"),
    "attn_pool.proj": MAP_ATTENTION + "out",
    "attn_pool.norm": "MAPHead_0/LayerNorm_0",
    "attn_pool.mlp.fc1": "MAPHead_0/MlpBlock_0/Dense_0",
    "attn_pool.mlp.fc2": "MAPHead_0/MlpBlock_0/Dense_1",
    "pre_logits.fc": "pre_logits",
    "head": "head",
  },
  arrays={
    "cls_token": "cls",
    "reg_token": "registers",
    "pos_embed": "pos_embedding",
    "attn_pool.latent": "MAPHead_0/probe",
  },
  # In the code of DeiT III and of ViT-5.
  renamed=((r"(blocks\.\d+)\.gamma_([12])", r"\1.ls\2.gamma"),),
  scales={
    "blocks.{i}.ls1.gamma": "blocks.{i}.attn.proj",
    "blocks.{i}.ls2.gamma": "blocks.{i}.mlp.fc2",
  },
  extra=("stem/ln0",),
)
# Options that its own models have. No tanh layer (`rep_size`) is applied.
SUPPORTED = {
  **{k: x for k, x in PLAIN.items() if k != "registers"},
  "registers_last": [False],
  "qk_norm": ["none", "layernorm"],
  "pool_type": ["tok", "gap", "map"],
  "rep_size": [False],
  "stem_ln": ["none", "post"],
}
GELUS = {"gelu": "exact", "gelu_tanh": "tanh"}
POOLS = {"token": "tok", "avg": "gap", "map": "map", "": "none"}
EPS = 1e-6  # its config.json cannot say another

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
# Arguments of timm's class that change the function but no array's name.
_OTHER_BLOCKS = ("norm_layer", "block_fn", "mlp_layer", "attn_layer")


class Model(NamedTuple):
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


def find(name: str) -> Model | None:
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
  gelu = "tanh" if re.match(_TANH, name) else "exact"
  options = {"gelu": gelu, "num_heads": heads, "pool_type": pool}
  return Model(options, match["own"] is None, width, depth)


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
  width = arrays[NAMES.sign].shape[0]
  depth = len({k.split(".")[1] for k in arrays if k.startswith("blocks.")})
  if (width, depth) != (model.width, model.depth):
    raise ValueError(
      f"arch={name!r} has width {model.width} and {model.depth} blocks, the "
      f"file {width} and {depth}: it is of another architecture."
    )


class _Args(TypedDict, total=False):
  act_layer: str | None
  global_pool: str | None
  no_embed_class: bool | None
  num_heads: int


class _Image(metadata.PixelValues, total=False):
  crop_mode: str | None
  crop_pct: float | None
  input_size: list[int] | None
  interpolation: str | None


class Config(_Image, total=False):
  """config.json."""

  architecture: str
  global_pool: str | None
  model_args: _Args
  pretrained_cfg: _Image


def describe(config: Config, arch: str | None) -> metadata.ModelMetadata:
  """Returns what is known about a model.

  Args:
    config: its config.json, empty if there is none.
    arch: name of the model, if a person gives it.

  Raises:
    ValueError: ours cannot be the model, or both name different ones.
  """
  args = config.get("model_args", {})
  told = str(config.get("architecture", "")).partition(".")[0]
  if arch and told not in ("", arch.partition(".")[0]):
    raise ValueError(
      f"arch={arch!r} contradicts the file's config.json, which has {told!r}."
    )
  name = arch or told
  others = [x for x in _OTHER_BLOCKS if x in args]
  if "_rpn_" in name or others:
    raise ValueError(
      "The file's model has other blocks or norms than ours, although their "
      f"arrays have the same names: {', '.join(others) or name}."
    )
  model = find(name)
  options = {
    **{"gelu": "exact", "norm": "layernorm", "norm_kw": {"eps": EPS}},
    "block_ln": "placement",
    "block_ln_kw": {"sa": "pre", "mlp": "pre", "post": "branch"},
    **(model.options if model else {}),
  }
  guessed: tuple[str, ...] = ()
  if not model:
    guessed = ("gelu", "norm_kw", "block_ln_kw")
  if act := args.get("act_layer"):
    options["gelu"] = metadata.translate("activation", act, GELUS)
    guessed = guessed[1:]
  if heads := args.get("num_heads"):
    options["num_heads"] = heads
  pool = args.get("global_pool", config.get("global_pool"))
  if pool is not None:
    options["pool_type"] = metadata.translate("pooling", pool, POOLS)
  row = args.get("no_embed_class")
  if row is not None:
    row = not row
  elif model:
    row = model.cls_row
  source = "its config.json" if config else "timm's defaults"
  image = config.get("pretrained_cfg", config)
  pixels = metadata.pixels_of(image.get("mean"), image.get("std"))
  return metadata.ModelMetadata(
    "timm",
    options,
    pixels,
    preprocessing.of_timm(image, pixels),
    cls_row=row,
    source=f"timm's {arch}" if arch else source,
    guessed=guessed,
  )
