"""timm's Vision Transformers: names of arrays, models by name, config.json.

Models are as in timm 1.0.31; export_live_test.py compares all of its names.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

from dpn.models import vit5
from dpn.weights import metadata, preprocessing
from dpn.weights.names import (
  ATTENTION,
  BLOCK,
  BLOCKS,
  MAP_ATTENTION,
  PLAIN,
  QKV,
  Names,
)

NAMES = Names(
  title="timm",
  sign="patch_embed.proj.weight",
  modules={
    "patch_embed.proj": "embedding",
    "patch_embed.ln0": "stem/ln0",
    "norm_pre": "stem/ln1",  # behind the positions, see `_shown`
    "patch_embed.norm": "stem/ln1",
    "blocks.{i}.norm1": BLOCK + "LayerNorm_0",
    "blocks.{i}.attn.qkv": QKV,
    "blocks.{i}.attn.q_norm": ATTENTION + "query_ln",
    "blocks.{i}.attn.k_norm": ATTENTION + "key_ln",
    "blocks.{i}.attn.proj": ATTENTION + "out",
    "blocks.{i}.norm2": BLOCK + "LayerNorm_1",
    "blocks.{i}.mlp.fc1_g": BLOCK + "MlpBlock_0/gate",
    "blocks.{i}.mlp.fc1_x": BLOCK + "MlpBlock_0/Dense_0",
    "blocks.{i}.mlp.fc1": BLOCK + "MlpBlock_0/Dense_0",
    "blocks.{i}.mlp.fc2": BLOCK + "MlpBlock_0/Dense_1",
    "norm": "Transformer/encoder_norm",
    "fc_norm": "fc_norm",
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
  renamed=(
    # In the code of DeiT III and of ViT-5.
    (r"(blocks\.\d+)\.gamma_([12])", r"\1.ls\2.gamma"),
    ("register_tokens", "reg_token"),  # in the code of DINOv2
  ),
  scales={
    "blocks.{i}.ls1.gamma": "blocks.{i}.attn.proj",
    "blocks.{i}.ls2.gamma": "blocks.{i}.mlp.fc2",
  },
  extra=("stem/ln0",),
  biases=(  # absent in CLIP, from its convolution, and in AIMv2
    "embedding/bias",
    ATTENTION + "out/bias",
    *(BLOCK + f"MlpBlock_0/{x}/bias" for x in ("gate", "Dense_0", "Dense_1")),
  ),
)
GELUS = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}
# Options of timm's own models. No tanh layer (`rep_size`) is applied.
SUPPORTED = {
  **{k: PLAIN[k] for k in PLAIN if k not in ("registers", "layer_scale")},
  "registers_last": [False],
  "qk_norm": ["none", "layernorm"],
  "gelu": [*GELUS.values()],
  "pool_type": ["tok", "gap", "map"],
  "rep_size": [False],
  "stem_ln": ["none", "post"],
}


class Kind(NamedTuple):
  """timm's models with other norms, by `stem_ln`.

  Attributes:
    architecture: timm's, whose defaults have these norms, with epsilon 1e-5.
    supported: options, beside those of `SUPPORTED`.
    no_biases: the biases of `NAMES.biases` that the models lack.
    renamed: parts of names that differ.
  """

  architecture: str
  supported: dict[str, list]
  no_biases: tuple[str, ...]
  renamed: tuple[str, str]


_KIND: dict[str, list] = {
  "stem_eps": [1e-5],
  "norm_kw": [{"eps": 1e-5}],
  "registers": [0],
}
KINDS = {
  "post_posemb": Kind(
    "vit_base_patch16_clip_224",
    {**_KIND, "stem_ln": ["post_posemb"]},
    NAMES.biases[:1],
    ("patch_embed.norm.", "norm_pre."),
  ),
  "post_rmsnorm": Kind(
    "aimv2_large_patch14_224",
    {
      **{**_KIND, "stem_ln": ["post_rmsnorm"], "norm": ["rmsnorm"]},
      **{"mlp": ["swiglu"], "final_norm": ["norm"], "qk_norm": ["none"]},
      "pool_type": ["tok", "gap"],
    },
    NAMES.biases[1:],
    (".mlp.fc1.", ".mlp.fc1_x."),
  ),
}
POOLS = {"token": "tok", "avg": "gap", "map": "map", "": "none"}
EPS = 1e-6  # timm's config.json cannot state another
_EPS_OTHERS = 1e-5  # of CLIP and AIMv2

#            width, depth, heads
_SIZES = {
  "wee": (256, 14, 4),
  "xsmall": (256, 10, 4),
  "little": (320, 14, 5),
  "tiny": (192, 12, 3),
  "small": (384, 12, 6),
  "medium": (512, 12, 8),
  "mediumd": (512, 20, 8),
  "betwixt": (640, 12, 10),
  "base": (768, 12, 12),
  "large": (1024, 24, 16),
  "so150m2": (832, 21, 13),
  "so150m": (896, 18, 14),
  "so400m": (1152, 27, 16),
  "huge": (1280, 32, 16),
  "giant": (1408, 40, 16),
  "giantopt": (1536, 40, 16),
  "gigantic": (1664, 48, 16),
}
_EXCEPTIONS = {
  "vit_base_patch16_gap_224": (768, 12, 16),
  "vit_base_patch16_plus_240": (896, 12, 14),
  "vit_base_patch16_plus_clip_240": (896, 12, 14),
  "vit_base_patch32_plus_256": (896, 12, 14),
  "vit_small_patch16_36x1_224": (384, 36, 6),
}
_AIMV2 = {
  "large": (1024, 24, 8),
  "huge": (1536, 24, 12),
  "1b": (2048, 24, 16),
  "3b": (3072, 24, 24),
}
_NAME = re.compile(
  # Not with packed gated MLPs.
  r"(?!.*giant_patch14_(dinov2|reg))"
  r"(?:(?P<own>deit3|flexivit)|vit|deit|(?P<aimv2>aimv2))"
  r"_(?P<size>[a-z0-9]+)(?:_patch\d+)?(?P<reg>_reg\d)?(?:_plus)?"
  r"(?P<clip>_clip(?P<quick>_quickgelu)?)?(?P<map>_siglip|_map)?(?P<gap>_gap)?"
  r"(?:_dinov2|_36x1|_tipsv2)?(?:_\d{3})?(?:_miil)?"
)
# Models whose GELU is approximated by tanh.
_TANH = (
  r"vit_((base_patch32|so400m_patch16|giantopt_patch16)_siglip"
  r"|large_patch16_siglip_(gap_)?512)"
)
# Arguments of timm's class that change the function but no array's name.
_OTHER_BLOCKS = (
  *("norm_layer", "block_fn", "mlp_layer", "attn_layer"),
  "pool_include_prefix",
)


class Model(NamedTuple):
  """A Vision Transformer of timm that ours can express.

  Attributes:
    options: of `vit.Model`, only those that names and shapes do not tell.
    cls_row: whether the class token has a position.
    width: of the tokens.
    depth: number of blocks.
  """

  options: dict[str, Any]
  cls_row: bool
  width: int
  depth: int


def find(name: str) -> Model | None:
  """Returns timm's model of that name, None if ours cannot express it.

  A tag such as ".augreg_in21k" is ignored: it names other weights of the same
  model, and perhaps another number of classes. ViT-5's models have the same
  arrays as timm's and are found, too, such as "vit5_small".
  """
  name = name.partition(".")[0]
  if match := re.fullmatch(r"vit5_(small|base|large|xlarge)(_.*)?", name):
    size = {"xlarge": "XL"}.get(match[1], match[1][0].upper())
    options = dict(vit5.VARIANTS[f"vit5-{size}"])
    width, depth, _ = map(options.pop, ("width", "depth", "mlp_dim"))
    return Model(options, cls_row=False, width=width, depth=depth)
  match = _NAME.fullmatch(name)
  sizes = _AIMV2 if match and match["aimv2"] else _SIZES
  if not match or match["size"] not in sizes:
    return None
  width, depth, heads = _EXCEPTIONS.get(name, sizes[match["size"]])
  pool = "gap" if match["gap"] else "map" if match["map"] else "tok"
  gelu = "quick" if match["quick"] else "exact"
  gelu = "tanh" if re.match(_TANH, name) else gelu
  options = {"gelu": gelu, "num_heads": heads, "pool_type": pool}
  if match["aimv2"]:
    options |= {"pool_type": "gap", "mlp": "swiglu"}
  own = match["own"] or (match["reg"] and match["size"] != "so150m")
  return Model(options, not own, width, depth)


def check(name: str, arrays: dict[str, Any]):
  """Raises ValueError unless ours can express the model and the arrays fit."""
  model = find(name)
  if model is None:
    raise ValueError(
      f"arch={name!r}: ours can be timm's models named vit, deit, deit3, "
      f"flexivit or aimv2, of the sizes {', '.join(_SIZES)}, such as "
      "'vit_base_patch16_siglip_224'; not those with other blocks or a "
      "convolutional stem. scripts.convert --list prints them."
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
  img_size: int | list[int] | None
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
  model_args: _Args | None
  pretrained_cfg: _Image


def _shown(arrays, eps):
  """Returns options that names show in models with other norms or stems.

  CLIP's norm in front of the blocks includes the class token; RMSNorm has no
  bias, and AIMv2 uses RMSNorm everywhere.
  """
  options: dict[str, Any] = {}
  q_norm = "blocks.0.attn.q_norm.weight" in arrays
  if "norm_pre.weight" in arrays:
    if "reg_token" in arrays:
      raise ValueError(
        "The file's model normalizes registers in front of the blocks "
        "(norm_pre); ours normalizes the class token and the patches there."
      )
    options |= {"stem_ln": "post_posemb", "posemb_join": "add"}
    options["posemb_join_kw"] = {"cls": "cls_token" in arrays}
  norm = "blocks.0.norm1."
  if f"{norm}weight" in arrays and f"{norm}bias" not in arrays:
    options |= {"norm": "rmsnorm", "final_norm": "norm"}
    options |= {"qk_norm": "rmsnorm"} if q_norm else {}
    if "patch_embed.norm.weight" in arrays:
      options["stem_ln"] = "post_rmsnorm"
  if options:
    options |= {"norm_kw": {"eps": eps}, "stem_eps": eps}
    options |= {"qk_norm_kw": {"eps": eps}} if q_norm else {}
  return options


def describe(
  config: Config, arch: str | None, arrays: Mapping[str, Any] | None = None
) -> metadata.ModelMetadata:
  """Returns what is known about a model.

  Args:
    config: its config.json, empty if there is none.
    arch: name of the model, if the user gives it.
    arrays: the file's, by timm's names.

  Raises:
    ValueError: ours cannot express the model, or `arch` contradicts `config`.
  """
  args = config.get("model_args") or {}
  name = _name(config, args, arch)
  model = find(name)
  # Other architectures with pre_norm=True keep the usual epsilon.
  others = not model or re.search("clip|aimv2", name)
  options = {
    **{"gelu": "exact", "norm": "layernorm", "norm_kw": {"eps": EPS}},
    **BLOCKS,
    **_shown(arrays or {}, _EPS_OTHERS if others else EPS),
    **(model.options if model else {}),
  }
  guessed: tuple[str, ...] = ()
  if not model:
    more = ("norm", "stem_eps") if "stem_eps" in options else ()
    guessed = ("gelu", "norm_kw", "block_ln_kw", *more, "rope")
  if args.get("act_layer"):
    guessed = guessed[1:]
  options |= _configured(config, args, arrays or {}, options)
  row = args.get("no_embed_class")
  row = not row if row is not None else model and model.cls_row
  source = "its config.json" if config else "timm's defaults"
  image = config.get("pretrained_cfg", config)
  pixels = metadata.pixels_of(image.get("mean"), image.get("std"))
  size = args.get("img_size") or (image.get("input_size") or [])[1:]
  return metadata.ModelMetadata(
    "timm",
    options,
    pixels,
    preprocessing.of_timm(image, pixels),
    cls_row=row,
    image_size=preprocessing.size_of(size),
    source=f"timm's {arch}" if arch else source,
    guessed=guessed,
  )


def _name(config, args, arch):
  """Returns the architecture's name; raises if ours cannot be the model."""
  told = str(config.get("architecture", "")).partition(".")[0]
  if arch and told not in ("", arch.partition(".")[0]):
    raise ValueError(
      f"arch={arch!r} contradicts the file's config.json, which has {told!r}."
    )
  name = arch or told
  same = (None, False, "layernorm")
  others = [x for x in _OTHER_BLOCKS if args.get(x) not in same]
  # Rotary positions have no arrays; test_vit3 pools registers, too.
  if re.search("_rpn_|_rope_|_pe_|eva02|eva_g|^test_vit3$", name) or others:
    raise ValueError(
      "The file's model has other blocks or norms than ours, although their "
      f"arrays have the same names: {', '.join(others) or name}."
    )
  return name


def _configured(config, args, arrays, options):
  """Returns what config.json says of the MLP, the heads and the pooling.

  `options` are those known before; `args` its model_args.
  """
  found = {}
  if act := args.get("act_layer"):
    if "blocks.0.mlp.fc1_g.weight" in arrays:
      found["mlp"] = "swiglu" if act == "silu" else "geglu"
    if found.get("mlp", options.get("mlp")) != "swiglu":
      found["gelu"] = metadata.translate("activation", act, GELUS)
  if heads := args.get("num_heads"):
    found["num_heads"] = heads
  pool = args.get("global_pool", config.get("global_pool"))
  if pool is not None:
    found["pool_type"] = metadata.translate("pooling", pool, POOLS)
  elif {"cls_token", "fc_norm.weight"} <= arrays.keys():
    found["pool_type"] = "gap"  # timm has this norm only after the mean
  return found
