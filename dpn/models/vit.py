"""Vision Transformer (arXiv 2010.11929) with normalization in its stem.

Parameter names, shapes and defaults are big_vision's; `stem_ln` adds `stem/ln0`
and `stem/ln1`. The forward pass is `ViT.__call__` here, `stem.patch`,
`encoder.EncoderBlock`, `attention.Attention`, `mlp.Mlp` and
`norms.stateless.LayerNorm`. Code that only one paper needs is in modules of its
own: `joins`, `late_cls`, `compact`.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from dpn import errors, registry, schema, stems
from dpn.models import (
  attention,
  compact,
  encoder,
  heads,
  joins,
  late_cls,
  norms,
  posemb,
  prefix,
  stem,
  vit5,
  weight_norm,
)
from dpn.models import options as options_lib
from dpn.models.broadcast import over_batch

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
PRESETS = compact.VARIANTS | vit5.VARIANTS  # with other options


@dataclasses.dataclass(frozen=True)
class Config(encoder.Config):
  """The options of a Vision Transformer: these and an encoder's.

  Names of several choices may also be import paths, "package.module:attribute".
  Their own options are the dictionary that follows, such as `norm_kw`.

  Attributes:
    patch_size: in pixels.
    stem_ln: which LayerNorms are in the stem, one of `stem.STEM_LN`; or a word
      for which `Model` also sets the `stem`, one of `stems.WORDS`.
    stem_eps: the epsilon of these norms.
    stem: turns an image into tokens, one of `stem.STEMS`.
    posemb: the kind of position embedding, one of `posemb.POSEMBS`.
    posemb_join: where positions are added, one of `joins.JOINS`.
    cls_blocks: how many of the last blocks see the class token, see
      `late_cls`; None for all.
    rep_size: width of a tanh layer before the head; True: the model's width.
    registers: learned tokens without positions that are dropped before pooling
      (arXiv 2309.16588), N(0, 0.02) at first: equal ones would stay equal.
    registers_last: put registers after the patches, as arXiv 2602.08071 does,
      instead of between the class token and the patches.
    prefix_norm: whether class token and registers have norms of their own
      (arXiv 2602.08626): `shared`, `own`, or `own_final` after the last block.
    pool_type: how tokens become a vector, one of `heads.POOL_TYPES`.
    pool_norm: whether a LayerNorm, `fc_norm`, follows the pooling; or `norm`,
      for the blocks' kind of norm.
    head_zeroinit: start the head's kernel at zero, unless there is a
      `weight_norm`, which cannot scale zeros.
    weight_norm: how kernels are normalized, one of `weight_norm.WEIGHT_NORMS`.
  """

  CHOICES: ClassVar = {
    "stem": stem.STEMS,
    "posemb": posemb.POSEMBS,
    "posemb_join": joins.JOINS,
    **encoder.Config.CHOICES,
  }
  VALUES: ClassVar = {
    "prefix_norm": prefix.NORMS,
    "pool_type": heads.POOL_TYPES,
    "pool_norm": encoder.LAST_NORMS,
    "weight_norm": weight_norm.WEIGHT_NORMS,
    **encoder.Config.VALUES,
  }
  TRAINING_ONLY: ClassVar[tuple[str, ...]] = (
    *encoder.Config.TRAINING_ONLY,
    "head_zeroinit",
  )

  patch_size: tuple[int, int] = (16, 16)
  stem_ln: str = "none"
  stem_eps: float = 1e-6
  stem: str = "patch"
  stem_kw: Mapping[str, Any] = options_lib.NONE
  posemb: str = "learn"
  posemb_kw: Mapping[str, Any] = options_lib.NONE
  posemb_join: str = "add"
  posemb_join_kw: Mapping[str, Any] = options_lib.NONE
  registers: int = 0
  registers_last: bool = False
  prefix_norm: str = "shared"
  cls_blocks: int | None = None
  rep_size: int | bool = False
  pool_type: str = "gap"
  pool_norm: bool | str = False
  head_zeroinit: bool = True
  weight_norm: str = "none"

  def describe(self) -> dict[str, Any]:
    """As in `Options`, but TrAct counts as `patch`: only training differs."""
    if self.stem == "tract":
      return super().describe() | {"stem": "patch", "stem_kw": {}}
    if self.stem == "patch_stats":  # its first files record no options
      usual = registry.defaults(stem.patch_stats)
      kw = {k: v for k, v in self.stem_kw.items() if v != usual[k]}
      kw.pop("init_gain", None)  # has no effect once trained
      return super().describe() | {"stem_kw": kw}
    return super().describe()

  def check(self):
    super().check()
    stem.check(self)
    self.join.check(self)
    prefix.check(self)
    if self.pool_norm == "norm" and not self.bind("norm").func.PER_TOKEN:
      raise ValueError(
        f"pool_norm='norm': norm={self.norm!r} looks at several tokens, and "
        "there is one left. Use pool_norm=True."
      )
    if self.cls_blocks is not None:
      late_cls.check(self)

  @property
  def join(self) -> joins.Add:
    relative = self.posemb == "rpe"
    return self.bind("posemb_join")(relative=relative, eps=self.eps)

  @property
  def joins_in_blocks(self) -> bool:
    return type(self.join) is not joins.Add

  @property
  def block_positions(self) -> joins.Add | None:
    """How blocks treat positions; None in a plain model."""
    join = self.join
    return join if self.joins_in_blocks or join.relative else None

  @property
  def has_cls(self) -> bool:
    return self.pool_type == "tok"


HINTS = Config.hints()


class ViT(nn.Module):
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
    if not jnp.issubdtype(image.dtype, jnp.floating):
      raise ValueError(
        f"Got an image of {image.dtype}, expected floats, usually in [-1, 1]: "
        "end the preprocessing with value_range(-1, 1) or vgg_value_range."
      )
    with self.config.lookup("weight_norm")(train):
      return self.forward(image, train, attention_maps)

  def forward(self, image, train, attention_maps):
    config, out = self.config, {}
    ln = stem.StemNorms(
      config.stem_ln, config.stem_eps, dtype=config.dtype, name="stem"
    )
    embed = stem.bind(config, train)  # stem.patch: x = LN(PE(LN(x)))
    x = embed(image, ln, ln.post_embed, config)
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
    x = config.lookup("pool_type")(x, config, out)
    if config.pool_norm:
      norm = config.last_norm(config.pool_norm)(name="fc_norm")
      x, x_2d = norm(x), norm(x_2d)
    out["head_input"] = x  # (batch, width)
    if config.rep_size:
      rep_size = config.width if config.rep_size is True else config.rep_size
      hidden = nn.Dense(rep_size, name="pre_logits")
      x, x_2d = nn.tanh(hidden(x)), nn.tanh(hidden(x_2d))
    out["pre_logits"], out["pre_logits_2d"] = x, x_2d

    if self.num_classes:
      kernel_init = config.inits.head
      if config.head_zeroinit and config.weight_norm == "none":
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
      out: the dict that the intermediates are added to.
      deterministic: no dropout.
    """
    config = self.config
    n, h, w, width = x.shape
    x = x.reshape(n, h * w, width)
    # big_vision's class token has no position, and `post_posemb` leaves it
    # alone: it is prepended after both, unless the join gives it a position.
    cls_has_position = config.has_cls and config.join.cls
    pe = self.positions((h, w), width, int(cls_has_position))
    if config.has_cls:
      cls = self.param("cls", config.inits.cls, (1, 1, width))
      cls = over_batch(cls.astype(x.dtype), n)

    if cls_has_position:
      x = jnp.concatenate([cls, x], axis=1)  # (batch, 1 + h * w, width)
    if pe is not None and not config.joins_in_blocks:
      x, pe = x + over_batch(pe.astype(x.dtype), n), None
    x = out["with_posemb"] = ln.post_posemb(x)
    late = config.cls_blocks is not None
    if config.has_cls and not cls_has_position and not late:
      x = jnp.concatenate([cls, x], axis=1)  # (batch, 1 + h * w, width)
    tokens = norms.TokenGrid(
      *(config.num_heads, (h, w), config.has_cls and not late),
      *(config.registers, config.registers_last, config.prefix_norm),
    )
    if config.registers:
      shape = (1, config.registers, width)
      registers = self.param("registers", config.inits.registers, shape)
      x = tokens.insert_registers(x, registers)
    x = nn.Dropout(config.dropout)(x, deterministic)

    args = {"config": config, "positions": config.block_positions}
    if late:
      run = late_cls.Encoder(**args, name="Transformer")
      run = functools.partial(run, cls=cls)
    else:
      run = encoder.Encoder(**args, name="Transformer")
      run = functools.partial(run, pe=pe)
    x, out["encoder"] = run(x, deterministic, tokens=tokens)
    if config.registers:
      tokens = dataclasses.replace(tokens, cls=config.has_cls)
      x, out["registers"] = tokens.take_registers(x)
    return x

  def positions(self, grid, width, cls):
    """Returns position embeddings (1, cls + tokens, width), or None."""
    config = self.config
    shape = (1, cls + grid[0] * grid[1], width)
    if config.posemb == "learn":
      if isinstance(config.join, joins.Unshared):
        return None  # each block has a table of its own
      return self.param("pos_embedding", config.inits.posemb(width), shape)
    pe = config.bind("posemb")(grid, width, cls)
    if pe is not None and pe.shape != shape:
      raise ValueError(
        f"posemb={config.posemb!r} returned positions of shape {pe.shape}, "
        f"expected (1, tokens, width) = {shape}."
      )
    return pe


def Model(num_classes=None, *, variant=None, **kw) -> nn.Module:
  """Returns a Vision Transformer as a Linen module.

  `model.init(rng, image)["params"]` and `model.apply({"params": params}, image,
  train=False)` → `(logits, out)`.

  Args:
    num_classes: size of the head; None leaves the head out.
    variant: size and patch, such as `"B/16"`, see `VARIANTS`; or one of
      `PRESETS`, such as `"lite-7/4"` or `"vit5-S/16"`.
    **kw: fields of `Config`; they win over `variant`.

  Raises:
    ValueError: on an unknown variant, option or value, naming the nearest,
      and on values that exclude each other.
  """
  schema.check("model", "num_classes", num_classes, int | None)
  schema.check("model", "variant", variant, str | None)
  base = {"mlp_dim": None, **decode_variant(variant)}
  kw = stems.spelled(kw)
  theirs, wanted = base.get("stem"), kw.get("stem")
  if theirs and wanted not in (None, theirs) and "patch_size" not in kw:
    raise ValueError(
      f"variant={variant!r} has a stem of convolutions and no patch_size, as "
      f"stem={wanted!r} needs. Give one, or take one with patches: 'cvt-7/4'."
    )
  return ViT(num_classes, Config.make(base, kw))


def from_pretrained(
  path: str | os.PathLike,
  *,
  arch: str | None = None,
  revision: str | None = None,
  **options: Any,
):
  """Returns a model, its variables and the preprocessing that fits.

  `model, variables, preprocess = from_pretrained("runs/digits")`; see
  `weights.pretrained.load` for the errors.

  Args:
    path: the folder of a run, one of its checkpoints, or a parameter file or
      folder of big_vision, timm, Hugging Face or vit-pytorch; see
      `weights.files.locate`. Or a name on the Hugging Face hub, such as
      "timm/vit_base_patch16_224.augreg_in21k".
    arch: timm's name of the model, for files that do not say what they are.
    revision: a branch, tag or commit on the hub.
    **options: fields of `Config`. `num_classes`, `rep_size` and `stem_ln` may
      differ from the file's (but no stem norm becomes another one): what the
      file lacks is freshly initialized, what the model lacks is left out. Those
      only for training are free. Others supply what the file does not record.
      They win over what it says, with a warning.
  """
  from dpn.weights import pretrained  # which imports this module

  path = os.fspath(path) + (f"@{revision}" if revision else "")
  return pretrained.load(path, arch, options)


def decode_variant(variant: str | None) -> dict[str, Any]:
  """Returns the options that a variant such as "B/16" stands for."""
  if variant is None:
    return {}
  size, _, patch = variant.partition("/")
  if size in PRESETS:
    options = dict(PRESETS[size])
  elif size in VARIANTS:
    keys = ("width", "depth", "mlp_dim", "num_heads")
    options = dict(zip(keys, VARIANTS[size], strict=True))
  else:
    known = [*VARIANTS, *PRESETS]
    raise ValueError(errors.unknown("variant", size, known))
  try:
    if size.startswith("cct"):
      options |= compact.decode_stem(patch)
    elif patch:
      options["patch_size"] = (int(patch), int(patch))
  except ValueError as e:
    raise ValueError(
      f"Variant {variant!r} must end in the patch size in pixels, as in 'B/16'"
      "; for cct in kernel size x number of convolutions, as in 'cct-7/3x1'."
    ) from e
  return options


def options(model: nn.Module) -> dict[str, Any]:
  """Returns the options that determine what a model's parameters compute.

  `Model(**options(model))` computes the same function. Two models whose options
  are equal compute the same function of the same parameters.

  Args:
    model: made by `Model`.

  Returns:
    JSON-able: num_classes and all fields of `Config` except `TRAINING_ONLY`;
    the `*_kw` include their defaults.
  """
  return {"num_classes": model.num_classes, **model.config.describe()}
