"""The stem: patches, their embedding, and the LayerNorms around it.

Dual PatchNorm (arXiv 2302.01327, Section 4.2) is x = LN(PE(LN(x))): `patch`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import einops
import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn import registry
from dpn.models import compact, conv_stems, norms, tract_gradient, whitening
from dpn.models import patch_stats as stats
from dpn.models.dense import plus_bias
from dpn.models.norms import base


@dataclasses.dataclass(frozen=True)
class StemLN:
  """Which normalizers are in the stem, each one of `norms.NORMS` or None.

  Attributes:
    whiten: decorrelate the flattened patches first, see `whitening`.
    ln0: normalizes the flattened patches, before the embedding. `ln0` and `ln1`
      must be per-token norms, such as LayerNorm, RMSNorm or ScaleNorm.
    ln1: normalizes the tokens, after the embedding.
    ln1_after_posemb: apply `ln1` after positions are added instead.
  """

  whiten: bool = False
  ln0: str | None = None
  ln1: str | None = None
  ln1_after_posemb: bool = False


# Section 4.2 (dpn), the ablations of Table 6, and Appendix A.
STEM_LN = {
  "none": StemLN(),
  "dpn": StemLN(ln0="layernorm", ln1="layernorm"),
  "pre": StemLN(ln0="layernorm"),
  # The patch norm that TrAct is compared with, arXiv 2410.23970.
  "pre_no_learnable": StemLN(ln0="standardize"),
  "post": StemLN(ln1="layernorm"),
  "post_rmsnorm": StemLN(ln1="rmsnorm"),  # AIMv2, arXiv 2411.14402
  "post_posemb": StemLN(ln1="layernorm", ln1_after_posemb=True),
  "only_learnable": StemLN(ln0="affine", ln1="affine"),
  "rmsnorm": StemLN(ln0="rmsnorm", ln1="rmsnorm"),
  "no_learnable": StemLN(ln0="standardize", ln1="standardize"),
  "whiten": StemLN(whiten=True),
  "whiten_ln": StemLN(whiten=True, ln0="layernorm"),
}


def get_ln(stem_ln: str) -> StemLN:
  """Returns an entry of `STEM_LN`, or the `StemLN` at an import path."""
  spec = registry.lookup("stem_ln", stem_ln, STEM_LN)
  if not isinstance(spec, StemLN):
    raise ValueError(f"stem_ln={stem_ln!r} is {spec!r}, expected a StemLN.")
  for norm in filter(None, (spec.ln0, spec.ln1)):
    if not norms.find(f"stem_ln={stem_ln!r}: norm", norm).PER_TOKEN:
      raise ValueError(
        f"stem_ln={stem_ln!r} has {norm!r}, whose statistics are not per token."
        " The stem takes layernorm, rmsnorm, scalenorm and the like."
      )
  return spec


def check(config):
  """Raises ValueError if other options of a `vit.Config` rule out its stem."""
  ln = get_ln(config.stem_ln)
  if min(config.patch_size) < 1:
    raise ValueError(f"patch_size must be 1 or more, got {config.patch_size}.")
  if ln.ln1_after_posemb and config.block_positions:
    option = f"posemb_join={config.posemb_join!r}"
    option = option if config.joins_in_blocks else "posemb='rpe'"
    raise ValueError(
      f"stem_ln={config.stem_ln!r} normalizes the sum of tokens and positions, "
      f"which {option} never forms. Use stem_ln='post'."
    )
  p, q = config.patch_size
  shrinks = {"hmlp": p % 4 == 0, "vit_c": p > 1 and p & (p - 1) == 0}
  if config.stem in shrinks and (p != q or not shrinks[config.stem]):
    raise ValueError(
      f"stem={config.stem!r} shrinks images until a side of P pixels is one "
      "token: P must be a multiple of 4 for 'hmlp' and a power of 2 for "
      f"'vit_c', in rows and columns; got patch_size={config.patch_size}."
    )
  if config.inits.whitens and config.stem not in EMBEDS_PATCHES:
    raise ValueError(
      f"weight_init={config.weight_init!r} whitens the embedding of flattened "
      f"patches, which stem={config.stem!r} does not have. Choose one of "
      f"{', '.join(EMBEDS_PATCHES)}, or another weight_init."
    )
  if config.inits.whitens and config.weight_norm != "none":
    raise ValueError(
      f"weight_init={config.weight_init!r} fits the embedding to images, and "
      f"weight_norm={config.weight_norm!r} would scale it again. Leave one out."
    )
  if config.stem == "conv" and (ln.ln0 or ln.whiten):
    raise ValueError(
      f"stem_ln={config.stem_ln!r} works on flattened patches, but a "
      "convolutional stem (variant 'cct-…') has none. Use stem_ln='post', or "
      "a variant with patches such as 'cvt-7/4'."
    )
  if config.stem == "conv" and config.patch_size != type(config).patch_size:
    raise ValueError(
      f"stem='conv' has no patches, got patch_size={config.patch_size}. Leave "
      "it out; stem_kw says how large tokens are."
    )


def patch(image, ln0, ln1, config):
  """Returns embedded patches: x = LN(PE(LN(x))).

  Args:
    image: (batch, rows, cols, channels).
    ln0: the model's `StemNorms`, which normalizes patches (…, P * Q *
      channels); the identity if `stem_ln` has no norm there.
    ln1: normalizes tokens (…, width); the identity likewise.
    config: the `vit.Config`.

  Returns:
    (batch, rows / P, cols / Q, width).
  """
  embed = PatchEmbedding(config, name="embedding")
  if config.weight_norm != "none":  # scales the embedding's whole input
    return ln1(embed(ln0(patchify(image, config.patch_size))))
  # LN(x) K = (scale * y + shift) K = y (scale * K) + shift K. In the last form
  # the gradient of scale needs no product of K with each token's gradient.
  y, *affine = ln0.apart(image, config.patch_size)
  return ln1(embed(y, *affine))


def tract(image, ln0, ln1, config, *, regularization: float = 0.1):
  """Returns `patch`'s tokens, with TrAct's kernel gradient (arXiv 2410.23970).

  See `tract_gradient`. TrAct's authors recommend inputs of about unit variance,
  and a `regularization` λ of 0.1, or 0.2 for long runs.
  """
  if not regularization > 0:
    raise ValueError(f"regularization must be positive, got {regularization}.")
  x = ln0(patchify(image, config.patch_size))
  dot = lambda x, kernel: tract_gradient.matmul(x, kernel, regularization)
  return ln1(PatchEmbedding(config, dot, name="embedding")(x))


def patch_stats(
  image,
  ln0,
  ln1,
  config,
  *,
  statistics: stats.Statistics = "mean+std",
  per_channel: bool = False,
  init_gain: float = stats.INIT_GAIN,
):
  """Returns `patch`'s tokens plus an embedding of each patch's mean and std.

  A LayerNorm as `ln0` removes both statistics. Adding them back separates what
  the norm does to gradients from what it hides. Options are as in
  `stats.embed`, over all pixels or `per_channel`; the rest is as in `patch`.
  """
  groups = image.shape[-1] if per_channel else 1
  patches = patchify(image, config.patch_size)
  added = stats.embed(patches, groups, config, statistics, init_gain)
  return patch(image, ln0, lambda x: ln1(x + added), config)


def hmlp(image, ln0, ln1, config, *, train: bool = False):
  """Returns tokens of a hierarchical MLP (arXiv 2203.09795), `conv_stems.HMlp`.

  `ln0` normalizes each P x Q patch of pixels before the first convolution,
  `ln1` the tokens after the last BatchNorm. P must be a multiple of 4.
  """
  sizes = (config.width, config.patch_size[0], config.dtype)
  kw = {"kernel_init": config.inits.embedding, "name": "embedding"}
  embed = conv_stems.HMlp(*sizes, **kw)
  return ln1(embed(_patchwise(ln0, image, config), train))


Kernels = Literal["released", "he"]


def vit_c(
  image, ln0, ln1, config, *, train=False, kernels: Kernels = "released"
):
  """Returns tokens of ViT_C (arXiv 2106.14881), see `conv_stems.Conv3x3`.

  `ln0` and `ln1` as in `hmlp`; P must be a power of 2. `kernels` says how the
  3 x 3 kernels start: `he` or, as in the authors' code, by number of outputs.
  """
  sizes = (config.width, config.patch_size[0], config.dtype)
  embed = conv_stems.Conv3x3(*sizes, kernels=kernels, name="embedding")
  return ln1(embed(_patchwise(ln0, image, config), train))


def _patchwise(norm, image, config):
  """Returns the image with each patch of P * Q * channels normalized."""
  x = norm(patchify(image, config.patch_size))
  p, q = config.patch_size
  return einops.rearrange(x, "b h w (p q c) -> b (h p) (w q) c", p=p, q=q)


hmlp.RESERVED = vit_c.RESERVED = ("train",)  # type: ignore[attr-defined]
# Functions (image, ln0, ln1, config) → (batch, rows, cols, width), which create
# their modules inside the model that calls them. Other arguments are options,
# except `train`, which the model passes to the stems that reserve it.
STEMS = {
  "patch": patch,
  "patch_stats": patch_stats,
  "tract": tract,
  "hmlp": hmlp,
  "vit_c": vit_c,
  "conv": compact.conv,
}

EMBEDS_PATCHES = ("patch", "patch_stats", "tract")  # by one kernel


def bind(config, train: bool) -> Callable:
  """Returns the stem of a `vit.Config`: (image, ln0, ln1, config) → tokens."""
  stem = config.bind("stem")
  if "train" in getattr(stem.func, "RESERVED", ()):
    return functools.partial(stem, train=train)
  return stem


def patchify(image, patch_size):
  """Cuts images into flattened patches.

  Args:
    image: (batch, rows * P, cols * Q, channels).
    patch_size: (P, Q) in pixels.

  Returns:
    (batch, rows, cols, P * Q * channels), each patch in the order row, column,
    channel.
  """
  return _flatten(_cut(image, patch_size))


def _cut(image, patch_size):
  """Returns (batch, rows, P, cols, Q * channels), with pixels left in place.

  Columns and channels share the last dimension: TPUs pad it to 128 numbers, 43
  times as many as three channels on their own.
  """
  p, q = patch_size
  if image.ndim != 4 or image.shape[1] % p or image.shape[2] % q:
    raise ValueError(
      f"Images of shape {image.shape} (batch, rows, cols, channels) cannot be "
      f"cut into {p}x{q} patches: both sides must be multiples of the patch "
      "size. Resize or crop them in config.input.pp, or change model.variant."
    )
  return einops.rearrange(image, "b (h p) (w q) c -> b h p w (q c)", p=p, q=q)


def _flatten(pixels):  # as in Section 4.2: b (h p) (w q) c -> b (h w) (p q c)
  return einops.rearrange(pixels, "b h p w qc -> b h w (p qc)")


@jax.custom_jvp
def _with_stored_gradient(x):
  return x


# Without the barrier XLA sums over tokens the float32 gradient of the LayerNorm
# that follows, before it is rounded, and stores both gradients.
_with_stored_gradient.defjvp(
  lambda x, dx: (*x, jax.lax.optimization_barrier(*dx))
)


class PatchEmbedding(nn.Module):
  """Dense projection of flattened patches, stored as a convolution kernel.

  The kernel keeps the shape (P, Q, channels, width), so that a checkpoint whose
  patch embedding is a convolution fits any `stem_ln` unchanged.
  """

  config: Any  # a `vit.Config`
  matmul: Callable = jnp.matmul

  @nn.compact
  def __call__(self, patches, scale=None, shift=None):
    """Returns tokens (…, width) of patches (…, P * Q * channels).

    With `scale` and `shift`, (P * Q * channels,): of scale * patches + shift.
    """
    config, pixels = self.config, patches.shape[-1]
    channels = pixels // math.prod(config.patch_size)
    shape = (*config.patch_size, channels, config.width)
    kernel = self.param("kernel", config.inits.embedding, shape)
    bias_init = config.inits.embedding_bias(pixels)
    bias = self.param("bias", bias_init, (config.width,))
    kernel = kernel.reshape(pixels, config.width)
    if scale is not None:
      bias = bias + (shift[:, None] * kernel).sum(axis=0)
      kernel = scale[:, None] * kernel
    patches, kernel = nn.dtypes.promote_dtype(
      patches, kernel, dtype=config.dtype
    )
    # The bias' gradient is a sum over tokens. After a LayerNorm that sum is
    # also part of the gradients of the kernel and of LayerNorm's bias.
    x = plus_bias(self.matmul(patches, kernel), bias)
    return x if x.dtype == bias.dtype else _with_stored_gradient(x)


class StemNorms(nn.Module):
  """The normalizers of `stem_ln`: `stem/whiten`, `stem/ln0` and `stem/ln1`.

  Calling it on patches applies the normalizers before the embedding. Each
  method is the identity where `stem_ln` has no normalizer.
  """

  stem_ln: str
  eps: float = 1e-6
  dtype: Any = jnp.float32

  def setup(self):
    spec = get_ln(self.stem_ln)
    kw = {"eps": self.eps} if self.eps != type(self).eps else {}
    self.whiten = whitening.Whitening() if spec.whiten else None
    # ln0 sees pixels, whose small differences bfloat16 loses: keep float32.
    self.ln0 = norms.make(spec.ln0, **kw) if spec.ln0 else None
    ln1 = {"dtype": self.dtype, **kw}
    self.ln1 = norms.make(spec.ln1, **ln1) if spec.ln1 else None
    self.ln1_after_posemb = spec.ln1_after_posemb

  def __call__(self, patches):  # (…, P * Q * channels)
    patches = self.whiten(patches) if self.whiten else patches
    return self.ln0(patches) if self.ln0 else patches

  def apart(self, image, patch_size):
    """Returns patches, scale and shift: scale * patches + shift is normalized.

    Unless ln0 is a LayerNorm and nothing whitens, the norms are already applied
    and scale and shift None. To save memory traffic, a LayerNorm's statistics
    are taken before patches are laid out, and these are laid out in `dtype`.
    """
    if self.whiten or type(self.ln0) is not norms.NORMS["layernorm"]:
      return self(patchify(image, patch_size)), None, None
    pixels = self.ln0.upcast(_cut(image, patch_size))
    y, multiplier = base.center(pixels, self.ln0.eps, axis=(2, 4))
    patches = _flatten((y * multiplier).astype(self.dtype or y.dtype))
    return patches, *self.ln0.affine(patches.shape[-1])

  def post_embed(self, x):
    return self.ln1(x) if self.ln1 and not self.ln1_after_posemb else x

  def post_posemb(self, x):
    return self.ln1(x) if self.ln1 and self.ln1_after_posemb else x


def fit(
  config, variables: Mapping[str, Any], images: Iterable[jax.Array]
) -> Mapping[str, Any]:
  """Returns fresh variables, with any whitening of patches fitted to images.

  `variables` are all collections of the model; `images`, batches of training
  images, are read only if the model whitens patches.
  """
  patches = (patchify(x, config.patch_size) for x in images)
  if get_ln(config.stem_ln).whiten:
    fitted = whitening.fit(patches, whitening.IMAGES)
    stats = variables["batch_stats"]
    stats = {**stats, "stem": {**stats["stem"], "whiten": fitted}}
    return {**variables, "batch_stats": stats}
  if not config.inits.whitens:
    return variables
  params = variables["params"]
  norms = StemNorms(config.stem_ln, config.stem_eps)
  own = {"params": params.get("stem", {})}
  see = jax.jit(lambda own, x: norms.apply(own, x))
  patches = (see(own, x) for x in patches)
  kernel, bias = whitening.embedding(patches, whitening.IMAGES, config.width)
  kernel = kernel.reshape(params["embedding"]["kernel"].shape)
  fitted = {"kernel": kernel, "bias": bias}
  return {**variables, "params": {**params, "embedding": fitted}}
