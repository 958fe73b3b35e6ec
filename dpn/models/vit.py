"""Vision Transformer (arXiv 2010.11929) with normalization in its stem.

Parameter names, shapes and defaults are big_vision's; `stem_ln` adds `stem/ln0`
and `stem/ln1`. The forward pass is `_Model.__call__` here, `stem.patch`,
`encoder.EncoderBlock`, `attention.Attention` and `norms.stateless.LayerNorm`.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from dpn import errors, schema
from dpn.models import attention, encoder, heads, norms, placement, posemb, stem
from dpn.models import options as options_lib

# Table 2 of arXiv 2106.04560; mu, M and So400m as in big_vision.
#            width, depth, mlp_dim, num_heads
VARIANTS = {
  "mu": (32, 1, 128, 2),
  "Ti": (192, 12, 768, 3),
  "S": (384, 12, 1536, 6),
  "M": (512, 12, 2048, 8),
  "B": (768, 12, 3072, 12),
  "L": (1024, 24, 4096, 16),
  "So400m": (1152, 27, 4304, 16),
  "H": (1280, 32, 5120, 16),
  "g": (1408, 40, 6144, 16),
  "G": (1664, 48, 8192, 16),
}
# Compact Transformers (arXiv 2104.05704), for small images: `lite-7/4` is a ViT
# with patches of 4 pixels and a class token, `cvt-7/4` pools the sequence
# instead, `cct-7/3x1` also has one convolution of size 3 for a stem. The number
# after the name is the depth. The block is that of the authors' code, not of
# their Equation 1.
COMPACT = {
  "width": 256,
  "mlp_dim": 512,
  "num_heads": 4,
  "block_ln": "cct",
  "norm_kw": {"eps": 1e-5},
  "gelu": "exact",
  "qkv_bias": False,
  "weight_init": "cct",
  "head_zeroinit": False,
}
COMPACT_VARIANTS = {
  f"{name}-{depth}": {**COMPACT, "depth": depth, **pooling}
  for name, pooling in {
    "lite": {"pool_type": "tok", "posemb_join_kw": {"cls": True}},
    "cvt": {"pool_type": "seq"},
    "cct": {"pool_type": "seq"},
  }.items()
  for depth in (6, 7)
}


@dataclasses.dataclass(frozen=True)
class Config(encoder.Config):
  """The options of a Vision Transformer: these and an encoder's.

  Names of several choices may also be import paths, "package.module:attribute".
  Their own options are the dictionary that follows, such as `norm_kw`.

  Attributes:
    patch_size: in pixels.
    stem_ln: which LayerNorms are in the stem, one of `stem.STEM_LN`.
    stem: what makes tokens of an image, one of `stem.STEMS`.
    posemb: the kind of position embedding, one of `posemb.POSEMBS`.
    posemb_join: where positions are added, one of `posemb.JOINS`.
    rep_size: width of a tanh layer before the head; True: the model's width.
    pool_type: how tokens become a vector, one of `heads.POOL_TYPES`.
    head_zeroinit: start the head's kernel at zero.
  """

  CHOICES: ClassVar = {
    "stem": stem.STEMS,
    "posemb": posemb.POSEMBS,
    "posemb_join": posemb.JOINS,
    **encoder.Config.CHOICES,
  }
  VALUES: ClassVar = {
    "pool_type": heads.POOL_TYPES,
    **encoder.Config.VALUES,
  }
  TRAINING_ONLY: ClassVar = (*encoder.Config.TRAINING_ONLY, "head_zeroinit")

  patch_size: tuple[int, int] = (16, 16)
  stem_ln: str = "none"
  stem: str = "patch"
  stem_kw: Mapping[str, Any] = options_lib.NONE
  posemb: str = "learn"
  posemb_kw: Mapping[str, Any] = options_lib.NONE
  posemb_join: str = "add"
  posemb_join_kw: Mapping[str, Any] = options_lib.NONE
  rep_size: int | bool = False
  pool_type: str = "gap"
  head_zeroinit: bool = True

  def describe(self) -> dict[str, Any]:
    """As other options; TrAct computes what `patch` does, trained otherwise."""
    same = {"stem": "patch", "stem_kw": {}} if self.stem == "tract" else {}
    return super().describe() | same

  @property
  def join(self):  # an instance of one of posemb.JOINS
    return self.bind("posemb_join")()

  @property
  def joins_in_blocks(self) -> bool:
    return not isinstance(self.join, posemb.Add)

  @property
  def block_positions(self):  # posemb.BlockPositions or None
    relative = self.posemb == "rpe"
    if not (self.joins_in_blocks or relative):
      return None
    return posemb.BlockPositions(self.join, relative, self.eps)

  @property
  def has_cls(self) -> bool:
    return self.pool_type == "tok"

  @property
  def cls_enters(self) -> str | None:
    """Where the class token is prepended, None if there is none.

    "before_positions" are added, "after_positions", or "in_encoder".
    """
    if not self.has_cls:
      return None
    if self.join.cls:
      return "before_positions"
    return "in_encoder" if self.cls_blocks else "after_positions"


HINTS = Config.hints()


class _Model(nn.Module):
  """See `Model`."""

  num_classes: int | None
  config: Config

  @nn.compact
  def __call__(self, image, *, train=False, attention_maps=False):
    """Returns `(logits, out)`.

    Args:
      image: (batch, rows, cols, channels), usually in [-1, 1].
      train: use dropout and stochastic depth, which need the rng `dropout`,
        and statistics of this batch in norms that keep running ones.
      attention_maps: add the weights of every attention to `out`, without
        dropout: "encoder/blockNN/attention_maps", and "pool/attention_maps" of
        pool_type="map", are (batch, heads, queries, keys).

    Returns:
      logits (batch, num_classes), the representation (batch, `rep_size` or
      width) if `num_classes` is None, and a dict of every intermediate.
    """
    config, out = self.config, {}
    ln = stem.StemNorms(config.stem_ln, dtype=config.dtype, name="stem")
    embed = config.bind("stem")  # stem.patch: x = LN(PE(LN(x)))
    x = embed(image, ln.pre_embed, ln.post_embed, config)
    if x.ndim != 4 or x.shape[-1] != config.width:
      raise ValueError(
        f"stem={config.stem!r} returned tokens of shape {x.shape}, expected "
        f"(batch, rows, cols, width) with width={config.width}."
      )
    out["stem"] = x  # (batch, rows / P, cols / P, width)
    grid = x.shape[1:3]
    x = out["encoded"] = self.encode(x, ln, out, deterministic=not train)

    patches = x[:, 1:] if config.has_cls else x
    x_2d = patches.reshape(x.shape[0], *grid, x.shape[-1])
    if config.pool_type in ("tok", "0"):
      x = x[:, 0]
    elif config.pool_type == "gap":
      x = x.mean(axis=1)
    else:
      x = heads.pool(x, config, out)
    out["head_input"] = x  # (batch, width)
    if config.rep_size:
      rep_size = config.width if config.rep_size is True else config.rep_size
      hidden = nn.Dense(rep_size, name="pre_logits")
      x, x_2d = nn.tanh(hidden(x)), nn.tanh(hidden(x_2d))
    out["pre_logits"], out["pre_logits_2d"] = x, x_2d

    if self.num_classes:
      kernel_init = config.inits.head
      if config.head_zeroinit:
        kernel_init = nn.initializers.zeros
      head = nn.Dense(self.num_classes, kernel_init=kernel_init, name="head")
      x = out["logits"] = head(x)
      out["logits_2d"] = head(x_2d)
    if attention_maps:
      attention.add_maps(out)
    return x, out

  def encode(self, x, ln, out, deterministic):
    """Returns encoded tokens (batch, tokens, width) from a grid of patches.

    Args:
      x: (batch, rows, cols, width).
      ln: the `stem.StemNorms`.
      out: gains the intermediates.
      deterministic: no dropout.
    """
    config = self.config
    n, h, w, width = x.shape
    x = x.reshape(n, h * w, width)
    # In big_vision the class token has no position, and `post_posemb` does not
    # normalize it. It has one with `posemb_join_kw.cls`.
    cls_enters = config.cls_enters
    first = int(cls_enters == "before_positions")
    if config.posemb != "learn":
      pe = config.bind("posemb")((h, w), width, first)
      if pe is not None and pe.shape != (1, first + h * w, width):
        raise ValueError(
          f"posemb={config.posemb!r} returned positions of shape {pe.shape}, "
          f"expected (1, tokens, width) = {(1, first + h * w, width)}."
        )
    elif isinstance(config.join, posemb.Unshared):
      pe = None  # each block has its own
    else:
      shape = (1, first + h * w, width)
      pe = self.param("pos_embedding", config.inits.posemb(width), shape)
    if cls_enters:
      cls = self.param("cls", config.inits.cls, (1, 1, width))
      cls = jnp.tile(cls.astype(x.dtype), (n, 1, 1))

    if cls_enters == "before_positions":
      x = jnp.concatenate([cls, x], axis=1)  # (batch, 1 + h * w, width)
    if pe is not None and not config.joins_in_blocks:
      x = x + pe.astype(x.dtype)
    x = out["with_posemb"] = ln.post_posemb(x)
    if cls_enters == "after_positions":
      x = jnp.concatenate([cls, x], axis=1)
    x = nn.Dropout(config.dropout)(x, deterministic)

    has_cls = cls_enters in ("before_positions", "after_positions")
    blocks = encoder.Encoder(config, config.block_positions, name="Transformer")
    x, out["encoder"] = blocks(
      x,
      deterministic,
      tokens=norms.TokenGrid(config.num_heads, (h, w), cls=has_cls),
      pe=pe if config.joins_in_blocks else None,
      late_cls=cls if cls_enters == "in_encoder" else None,
    )
    return x


def Model(num_classes=None, *, variant=None, **kw) -> nn.Module:
  """Returns a Vision Transformer as a Linen module.

  `model.init(rng, image)["params"]` and `model.apply({"params": params}, image,
  train=False)` → `(logits, out)`.

  Args:
    num_classes: size of the head; None leaves the head out.
    variant: size and patch, such as `"B/16"`; see `VARIANTS` and, for
      `"lite-7/4"` and the like, `COMPACT_VARIANTS`.
    **kw: fields of `Config`; they win over `variant`.

  Raises:
    ValueError: on an unknown variant, option or value, naming the nearest,
      and on values that exclude each other.
  """
  schema.check("model", "num_classes", num_classes, int | None)
  schema.check("model", "variant", variant, str | None)
  options = Config.merge(decode_variant(variant), kw)
  options["mlp_dim"] = options.get("mlp_dim") or 4 * options.get("width", 768)
  if "patch_size" in options:
    options["patch_size"] = tuple(options["patch_size"])
  config = Config(**options)
  _check(config)
  return _Model(num_classes, config)


def from_pretrained(
  path: str | os.PathLike, *, arch: str | None = None, **options: Any
):
  """Returns a model, its variables and the preprocessing that fits.

  `model, variables, preprocess = from_pretrained("runs/digits")`.

  Args:
    path: the folder of a run, one of its checkpoints, or a parameter file or
      folder of big_vision, timm or Hugging Face; see `weights.files.locate`.
    arch: timm's name of the model, for files that do not say what they are.
    **options: fields of `Config`. `num_classes`, `rep_size` and `stem_ln` may
      be others than in the file: what it does not have is freshly initialized,
      what the model does not have is left out. `scan`, `dropout` and others
      that only concern training are free. The rest is what the file does not
      tell, such as `num_heads` for PyTorch's arrays.

  Returns:
    A `weights.pretrained.Pretrained`, a named tuple.

  Raises:
    ValueError, OSError: there is no checkpoint, or not of a Vision Transformer,
      it is damaged, or an option is wrong.
  """
  from dpn.weights import pretrained  # which imports this module

  return pretrained.load(os.fspath(path), arch, options)


def decode_variant(variant: str | None) -> dict[str, Any]:
  """Returns the options that a variant such as "B/16" stands for."""
  if variant is None:
    return {}
  size, _, patch = variant.partition("/")
  if size in COMPACT_VARIANTS:
    options = dict(COMPACT_VARIANTS[size])
  elif size in VARIANTS:
    keys = ("width", "depth", "mlp_dim", "num_heads")
    options = dict(zip(keys, VARIANTS[size], strict=True))
  else:
    known = [*VARIANTS, *COMPACT_VARIANTS]
    raise ValueError(errors.unknown("variant", size, known))
  try:
    if size.startswith("cct"):
      kernel_size, num_layers = map(int, patch.split("x"))
      kw = {"kernel_size": kernel_size, "num_layers": num_layers}
      options |= {"stem": "conv", "stem_kw": kw}
    elif patch:
      options["patch_size"] = (int(patch), int(patch))
  except ValueError as e:
    raise ValueError(
      f"Variant {variant!r} must end in the patch size in pixels, as in 'B/16'"
      "; for cct in kernel size x number of convolutions, as in 'cct-7/3x1'."
    ) from e
  return options


def options(model: nn.Module) -> dict[str, Any]:
  """Returns which function a model's parameters compute.

  `Model(**options(model))` is that function again. Two models whose options are
  equal compute the same function of the same parameters.

  Args:
    model: made by `Model`.

  Returns:
    JSON-able: num_classes and all fields of `Config` but `TRAINING_ONLY`, the
    `*_kw` with their defaults.
  """
  return {"num_classes": model.num_classes, **model.config.describe()}


def _check(config):
  """Raises ValueError on unknown values, and on those that exclude others."""
  config.check()
  if min(config.patch_size) < 1:
    raise ValueError(f"patch_size must be 1 or more, got {config.patch_size}.")
  ln = stem.get_ln(config.stem_ln)
  posemb.check(config.posemb, config.posemb_join, config.join)
  if ln.ln1_after_posemb and config.block_positions:
    option = f"posemb_join={config.posemb_join!r}"
    option = option if config.joins_in_blocks else "posemb='rpe'"
    raise ValueError(
      f"stem_ln={config.stem_ln!r} normalizes the sum of tokens and positions, "
      f"which {option} never forms. Use stem_ln='post'."
    )
  if isinstance(config.join, posemb.Add) and config.join.cls:
    problem = None
    if not config.has_cls:
      problem = f"pool_type={config.pool_type!r} has no class token"
    elif config.posemb == "rpe":
      problem = "posemb='rpe' is between patches only"
    if problem:
      raise ValueError(
        "posemb_join_kw={'cls': True} gives the class token a position, but "
        f"{problem}."
      )
  if config.stem == "conv" and (ln.ln0 or ln.whiten):
    raise ValueError(
      f"stem_ln={config.stem_ln!r} works on flattened patches, but a "
      "convolutional stem (variant 'cct-…') has none. Use stem_ln='post', or "
      "a variant with patches such as 'cvt-7/4'."
    )
  if config.stem == "conv" and config.patch_size != Config.patch_size:
    raise ValueError(
      f"stem='conv' has no patches, got patch_size={config.patch_size}. Leave "
      "it out; stem_kw.num_layers halves the image as often."
    )
  _, fields = encoder.bind_block(config)
  where = fields.get("placement", placement.Placement())
  if isinstance(config.join, posemb.Lape) and "pre" not in where.sa:
    raise ValueError(
      "posemb_join='lape' adds positions to the normalized tokens that the "
      f"attention sees, but block_ln={config.block_ln!r} does not normalize "
      "there. Use sa='pre' or 'pre+post' in block_ln_kw."
    )
  if config.cls_blocks is not None and (
    not 0 < config.cls_blocks < config.depth
    or not config.has_cls
    or config.join.cls
    or config.scan
  ):
    raise ValueError(
      f"cls_blocks={config.cls_blocks} needs pool_type='tok', scan=False, "
      "posemb_join='add' without cls, and more blocks than that; got "
      f"pool_type={config.pool_type!r}, scan={config.scan}, "
      f"posemb_join={config.posemb_join!r}, depth={config.depth}."
    )
