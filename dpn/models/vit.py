"""Vision Transformer (arXiv 2010.11929) with normalization in its stem.

Parameter names, shapes and defaults are big_vision's; see `Stem` for what
`stem_ln` adds.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from dpn import errors
from dpn.models import (
  attn_impl,
  combinations,
  compact,
  encoder,
  heads,
  mlp,
  norms,
  placement,
  posemb,
  posemb_join,
  stem,
)
from dpn.models import init as inits
from dpn.models.norms import base

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


class _Model(nn.Module):
  """See `Model`."""

  num_classes: int | None = None
  patch_size: tuple[int, int] = (16, 16)
  width: int = 768
  depth: int = 12
  mlp_dim: int | None = None
  num_heads: int = 12
  stem_ln: str = "none"
  conv_stem: tuple[int, int] | None = None
  posemb: str = "learn"
  posemb_join: str = "add"
  block_ln: str = "sa=pre,mlp=pre"
  norm: str = "layernorm"
  gelu: str = "tanh"
  qkv_bias: bool = True
  rep_size: int | bool = False
  dropout: float = 0.0
  attn_dropout: float = 0.0
  stoch_depth: float = 0.0
  pool_type: str = "gap"
  weight_init: str = "big_vision"
  head_zeroinit: bool = True
  scan: bool = False
  remat_policy: str = "none"
  dtype_mm: str = "float32"
  attn_impl: str = "auto"

  @nn.compact
  def __call__(self, image, *, train=False):
    """Returns `(logits, out)`.

    Args:
      image: (batch, rows, cols, channels), usually in [-1, 1].
      train: use dropout and stochastic depth, which need the rng `dropout`,
        and statistics of this batch in norms that keep running ones.

    Returns:
      logits (batch, num_classes), the representation (batch, width) if
      `num_classes` is None, and a dict of every intermediate.
    """
    out = {}
    stem_norms = stem.Stem(self.stem_ln, dtype=self.dtype, name="stem")
    x = out["stem"] = self.embed(image, stem_norms)  # (batch, h, w, width)
    grid = x.shape[1:3]
    x = self.encode(x, stem_norms, out, deterministic=not train)
    out["encoded"] = x

    patches = x[:, 1:] if self.pool_type == "tok" else x
    x_2d = patches.reshape(x.shape[0], *grid, x.shape[-1])
    x = out["head_input"] = heads.pool(
      x,
      self.pool_type,
      mlp_dim=self.mlp_dim or 4 * self.width,
      num_heads=self.num_heads,
      gelu=self.gelu,
      norm=norms.plain(self.norm),
      dtype=self.dtype,
    )
    if self.rep_size:
      rep_size = self.width if self.rep_size is True else self.rep_size
      hidden = nn.Dense(rep_size, name="pre_logits")
      x, x_2d = nn.tanh(hidden(x)), nn.tanh(hidden(x_2d))
    out["pre_logits"], out["pre_logits_2d"] = x, x_2d

    if self.num_classes:
      init = inits.get(self.weight_init).head
      if self.head_zeroinit:
        init = nn.initializers.zeros
      head = nn.Dense(self.num_classes, kernel_init=init, name="head")
      x = out["logits"] = head(x)
      out["logits_2d"] = head(x_2d)
    return x, out

  @property
  def dtype(self):
    return jnp.dtype(self.dtype_mm)

  def embed(self, image, stem_norms):
    """Returns tokens (batch, rows, cols, width): x = LN(PE(LN(x)))."""
    init = inits.get(self.weight_init).embedding
    if self.conv_stem:
      x = stem.ConvEmbedding(
        self.width, *self.conv_stem, init, self.dtype, name="embedding"
      )(image)
    else:
      x = stem.patchify(image, self.patch_size)  # (batch, h, w, P * P * 3)
      x = stem_norms.before(x)
      x = stem.PatchEmbedding(
        self.width, self.patch_size, init, self.dtype, name="embedding"
      )(x)
    return stem_norms.after(x)

  def encode(self, x, stem_norms, out, deterministic):
    """Returns encoded tokens (batch, tokens, width) from a grid of them."""
    n, h, w, width = x.shape
    x = x.reshape(n, h * w, width)
    join = posemb_join.get(self.posemb_join)
    lape = join if isinstance(join, posemb_join.Lape) else None
    has_cls, late = self.pool_type == "tok", norms.joins_late(self.norm)
    cls_row = has_cls and join.cls_row
    pe = posemb.get(self, self.posemb, (h, w), width, cls_row)
    cls = None
    if has_cls:
      init = inits.get(self.weight_init).cls
      cls = self.param("cls", init, (1, 1, width))
      cls = jnp.tile(cls.astype(x.dtype), (n, 1, 1))

    if cls_row:
      x = jnp.concatenate([cls, x], axis=1)
    if pe is not None and not lape:
      x = x + pe.astype(x.dtype)
    x = out["with_posemb"] = stem_norms.after_posemb(x)
    if has_cls and not cls_row and not late:
      x = jnp.concatenate([cls, x], axis=1)  # (batch, 1 + h * w, width)
    x = nn.Dropout(self.dropout)(x, deterministic)

    omega = None
    if pe is not None and lape:
      # In float32 or wider: it goes through one norm after another.
      omega = pe.astype(jnp.promote_types(pe.dtype, x.dtype))
    x, out["encoder"] = encoder.Encoder(
      depth=self.depth,
      block=self.block(lape),
      stoch_depth=self.stoch_depth,
      scan=self.scan,
      remat_policy=self.remat_policy,
      name="Transformer",
    )(
      x,
      deterministic,
      layout=base.Layout(self.num_heads, (h, w), has_cls and not late),
      omega=omega,
      late_cls=cls if late else None,
    )
    return x

  def block(self, lape):
    return encoder.Block(
      mlp_dim=self.mlp_dim or 4 * self.width,
      num_heads=self.num_heads,
      block_ln=self.block_ln,
      norm=self.norm,
      dropout=self.dropout,
      attn_dropout=self.attn_dropout,
      gelu=self.gelu,
      qkv_bias=self.qkv_bias,
      weight_init=self.weight_init,
      relative=posemb.is_relative(self.posemb),
      lape=lape,
      dtype=self.dtype,
      attn_impl=self.attn_impl,
    )


OPTIONS = tuple(
  f.name
  for f in dataclasses.fields(_Model)
  if f.name not in ("num_classes", "parent", "name")
)


def Model(num_classes=None, *, variant=None, **kw) -> nn.Module:
  """Returns a Vision Transformer as a Linen module.

  `model.init(rng, image)["params"]` and `model.apply({"params": params}, image,
  train=False)` → `(logits, out)`.

  Args:
    num_classes: size of the head; None leaves the head out.
    variant: size and patch, such as `"B/16"`; see `VARIANTS` and, for
      `"lite-7/4"` and the like, `compact`.
    **kw: any of `OPTIONS`; they win over `variant`. Where one of them has
      options of its own, they follow its name: `norm="dtn,cls=late"`.
      stem_ln: one of `stem.STEM_LN`.
      conv_stem: (kernel size, layers) of `stem.ConvEmbedding`, which replaces
        the patch embedding.
      posemb: one of `posemb.KINDS`.
      posemb_join: one of `posemb_join.JOINS`.
      block_ln: where the blocks normalize, see `placement.get`.
      norm: what they normalize with, one of `norms.NORMS`.
      gelu: one of `mlp.GELUS`.
      qkv_bias: whether query, key and value have biases.
      rep_size: width of a tanh layer before the head; True: the model's width.
      dropout, attn_dropout, stoch_depth: rates; stochastic depth grows
        linearly from 0 in the first block to `stoch_depth` in the last.
      pool_type: one of `heads.POOL_TYPES`.
      weight_init: one of `inits.INITS`.
      head_zeroinit: start the head's kernel at zero.
      scan: stack all blocks' parameters and compile the block once.
      remat_policy: one of `encoder.REMAT_POLICIES`, jax.checkpoint_policies'
        names: what the backward pass keeps instead of recomputing it.
      dtype_mm: of matrix products and the residual stream.
      attn_impl: one of `attn_impl.IMPLS`: cuDNN's fused attention wherever it
        works, XLA's, or cuDNN's or an error.

  Raises:
    ValueError: on an unknown variant, option or value, naming the nearest,
      and on values that exclude each other.
  """
  for key in kw:
    if key not in OPTIONS:
      raise ValueError(
        errors.unknown("model option", key, ["variant", *OPTIONS])
      )
  options = {**decode_variant(variant), **kw}
  for key in ("patch_size", "conv_stem"):
    if options.get(key):
      options[key] = tuple(options[key])
  model = _Model(num_classes, **options)
  stem.get_norms(model.stem_ln)
  heads.check_pool_type(model.pool_type)
  posemb.get_kind(model.posemb)
  posemb_join.get(model.posemb_join)
  placement.get(model.block_ln)
  norms.make(model.norm)
  mlp.check_gelu(model.gelu)
  inits.get(model.weight_init)
  encoder.check_remat_policy(model.remat_policy)
  attn_impl.check(model.attn_impl)
  combinations.check(model)
  return model


def decode_variant(variant: str | None) -> dict:
  """Returns the options that a variant such as "B/16" stands for."""
  if variant is None:
    return {}
  size, _, patch = variant.partition("/")
  if size in compact.VARIANTS:
    options = dict(compact.VARIANTS[size])
    if size.startswith("cct"):
      return {**options, "conv_stem": compact.conv_stem(variant, patch)}
  elif size in VARIANTS:
    keys = ("width", "depth", "mlp_dim", "num_heads")
    options = dict(zip(keys, VARIANTS[size], strict=True))
  else:
    known = [*VARIANTS, *compact.VARIANTS]
    raise ValueError(errors.unknown("variant", size, known))
  if patch:
    if not patch.isdigit() or not int(patch):
      raise ValueError(
        f"The patch size in variant {variant!r} must be a positive whole "
        "number of pixels, as in 'B/16'."
      )
    options["patch_size"] = (int(patch), int(patch))
  return options
