"""Vision Transformer (arXiv 2010.11929) with normalization in its stem.

Parameter names, shapes and defaults are big_vision's; see `Stem` for what
`stem_ln` adds.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from dpn import names
from dpn.models import encoder, heads, posemb, stem

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
  posemb: str = "learn"
  rep_size: int | bool = False
  dropout: float = 0.0
  stoch_depth: float = 0.0
  pool_type: str = "gap"
  head_zeroinit: bool = True
  scan: bool = False
  remat_policy: str = "none"
  dtype_mm: str = "float32"

  @nn.compact
  def __call__(self, image, *, train=False):
    """Returns `(logits, out)`.

    Args:
      image: (batch, rows, cols, channels), usually in [-1, 1].
      train: use dropout and stochastic depth; needs the rng `dropout`.

    Returns:
      logits (batch, num_classes), the representation (batch, width) if
      `num_classes` is None, and a dict of every intermediate.
    """
    out = {}
    deterministic = not train
    mlp_dim = self.mlp_dim or 4 * self.width
    dtype = jnp.dtype(self.dtype_mm)

    # x = LN(PE(LN(x)))
    stem_norms = stem.Stem(self.stem_ln, dtype=dtype, name="stem")
    x = stem.patchify(image, self.patch_size)  # (batch, h, w, P * P * 3)
    x = stem_norms.before(x)
    x = stem.PatchEmbedding(
      self.width, self.patch_size, dtype=dtype, name="embedding"
    )(x)
    x = out["stem"] = stem_norms.after(x)  # (batch, h, w, width)

    n, h, w, width = x.shape
    x = x.reshape(n, h * w, width)
    pe = posemb.get(self, self.posemb, (h, w), width)
    x = out["with_posemb"] = stem_norms.after_posemb(x + pe.astype(x.dtype))

    if self.pool_type == "tok":
      cls = self.param("cls", nn.initializers.zeros, (1, 1, width))
      cls = jnp.tile(cls.astype(x.dtype), (n, 1, 1))
      x = jnp.concatenate([cls, x], axis=1)  # (batch, 1 + h * w, width)
    x = nn.Dropout(self.dropout)(x, deterministic)

    x, out["encoder"] = encoder.Encoder(
      depth=self.depth,
      mlp_dim=mlp_dim,
      num_heads=self.num_heads,
      dropout=self.dropout,
      stoch_depth=self.stoch_depth,
      scan=self.scan,
      remat_policy=self.remat_policy,
      dtype=dtype,
      name="Transformer",
    )(x, deterministic)
    out["encoded"] = x

    patches = x[:, 1:] if self.pool_type == "tok" else x
    x_2d = patches.reshape(n, h, w, width)
    x = out["head_input"] = heads.pool(
      x,
      self.pool_type,
      mlp_dim=mlp_dim,
      num_heads=self.num_heads,
      dtype=dtype,
    )
    if self.rep_size:
      rep_size = width if self.rep_size is True else self.rep_size
      hidden = nn.Dense(rep_size, name="pre_logits")
      x, x_2d = nn.tanh(hidden(x)), nn.tanh(hidden(x_2d))
    out["pre_logits"], out["pre_logits_2d"] = x, x_2d

    if self.num_classes:
      kw = {"kernel_init": nn.initializers.zeros} if self.head_zeroinit else {}
      head = nn.Dense(self.num_classes, name="head", **kw)
      x = out["logits"] = head(x)
      out["logits_2d"] = head(x_2d)
    return x, out


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
    variant: size and patch, such as `"B/16"`; see `VARIANTS`.
    **kw: any of `OPTIONS`; they win over `variant`.
      stem_ln: one of `stem.STEM_LN`.
      posemb: `learn` or `sincos2d`.
      rep_size: width of a tanh layer before the head; True: the model's width.
      dropout, stoch_depth: rates; stochastic depth grows linearly from 0 in
        the first block to `stoch_depth` in the last.
      pool_type: one of `heads.POOL_TYPES`.
      head_zeroinit: start the head's kernel at zero.
      scan: stack all blocks' parameters and compile the block once.
      remat_policy: one of `encoder.REMAT_POLICIES`, jax.checkpoint_policies'
        names: what the backward pass keeps instead of recomputing it.
      dtype_mm: of matrix products and the residual stream.

  Raises:
    ValueError: on an unknown variant, option or value, naming the nearest.
  """
  for key in kw:
    if key not in OPTIONS:
      raise ValueError(
        names.unknown("model option", key, ["variant", *OPTIONS])
      )
  options = {**decode_variant(variant), **kw}
  if "patch_size" in options:
    options["patch_size"] = tuple(options["patch_size"])
  model = _Model(num_classes, **options)
  stem.get_norms(model.stem_ln)
  heads.check_pool_type(model.pool_type)
  posemb.check_kind(model.posemb)
  encoder.check_remat_policy(model.remat_policy)
  return model


def decode_variant(variant: str | None) -> dict:
  """Returns the options that a variant such as "B/16" stands for."""
  if variant is None:
    return {}
  size, _, patch = variant.partition("/")
  if size not in VARIANTS:
    raise ValueError(names.unknown("variant", size, VARIANTS))
  options = dict(
    zip(("width", "depth", "mlp_dim", "num_heads"), VARIANTS[size], strict=True)
  )
  if patch:
    if not patch.isdigit() or not int(patch):
      raise ValueError(
        f"The patch size in variant {variant!r} must be a positive whole "
        "number of pixels, as in 'B/16'."
      )
    options["patch_size"] = (int(patch), int(patch))
  return options
