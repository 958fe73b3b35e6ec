"""The Transformer encoder, looped or scanned over its blocks.

arXiv 1706.03762, with norms where arXiv 2010.11929, Equations 2 and 3, has them
or wherever else a `placement` puts them.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn.models import (
  attention,
  dropout,
  flash,
  init,
  mlp,
  norms,
  options,
  rotary,
)
from dpn.models import placement as placements
from dpn.models.norms import base

REMAT_POLICIES = (
  *("none", "nothing_saveable", "dots_saveable", "everything_saveable"),
  "dots_with_no_batch_dims_saveable",
)
DTYPES = ("float32", "bfloat16", "float16", "float64")
LAST_NORMS = (True, False, "norm")
_MINIMA = {"width": 1, "depth": 0, "mlp_dim": 1, "num_heads": 1, "head_dim": 1}
_MOST = 2**16  # a file that says more is damaged, or hostile


@dataclasses.dataclass(frozen=True)
class Config(options.Options):
  """The options of a Transformer encoder.

  Attributes:
    width: size of a token.
    depth: number of blocks.
    mlp_dim: width of the MLP's hidden layer; `vit.Model` defaults to the
      variant's, or 4 × width.
    num_heads: attention heads per block.
    head_dim: channels of a head; None: width / num_heads.
    block_ln: where the blocks normalize, one of `placement.PLACEMENTS`.
    norm: what they normalize with, one of `norms.NORMS`.
    qk_norm: what normalizes queries and keys, one of `norms.QK_NORMS`; all
      heads share its scale and bias, except with `l2`.
    v_norm: what normalizes values, likewise.
    logit_scale: factor on queries times keys: `sqrt`, 1 / sqrt(d); `one`; or
      `learned`, one for each head that starts at 1 / sqrt(d).
    rope: rotary positions of queries and keys, one of `rotary.ROPES`, in
      addition to `posemb`.
    gelu: `tanh` approximation or `exact`; one of `mlp.GELUS`.
    mlp: `mlp`; or gated, `geglu` or `swiglu`; one of `mlp.MLPS`.
    qkv_bias: whether query, key and value have biases.
    layer_scale: initial value of the learned factors on both branches, one for
      each channel (arXiv 2103.17239, Section 2); None for no factors.
    final_norm: whether a LayerNorm, `encoder_norm`, follows the last block; or
      `norm`, for the blocks' kind of norm.
    dropout: rate, on embedded tokens, in the MLP and on both residual branches.
    attn_dropout: rate, on the attention weights.
    stoch_depth: rate of stochastic depth in the last block.
    stoch_depth_grows: whether the rate grows linearly from 0 in the first
      block; else it is the same in all, as in DeiT III (arXiv 2204.07118).
    weight_init: one of `init.INITS`.
    scan: stack all blocks' parameters and compile the block once.
    remat_policy: what is stored for the backward pass instead of recomputed, by
      the names of jax.checkpoint_policies; or `none`.
    dtype_mm: dtype of matrix products and, for images, of the residual stream.
    attn_impl: `auto`, cuDNN's flash attention where it works; `xla`; `cudnn`.
  """

  CHOICES: ClassVar = {
    "block_ln": placements.PLACEMENTS,
    "norm": norms.NORMS,
    "qk_norm": norms.QK_NORMS,
    "v_norm": norms.QK_NORMS,
    "rope": rotary.ROPES,
  }
  VALUES: ClassVar = {
    "gelu": mlp.GELUS,
    "mlp": mlp.MLPS,
    "logit_scale": attention.LOGIT_SCALES,
    "weight_init": init.INITS,
    "remat_policy": REMAT_POLICIES,
    "attn_impl": flash.IMPLS,
    "dtype_mm": DTYPES,
    "final_norm": LAST_NORMS,
  }
  TRAINING_ONLY: ClassVar[tuple[str, ...]] = (
    *("dropout", "attn_dropout", "stoch_depth", "stoch_depth_grows"),
    *("weight_init", "scan", "remat_policy", "dtype_mm", "attn_impl"),
  )

  width: int = 768
  depth: int = 12
  mlp_dim: int = 3072
  num_heads: int = 12
  head_dim: int | None = None
  block_ln: str = "placement"
  block_ln_kw: Mapping[str, Any] = options.NONE
  norm: str = "layernorm"
  norm_kw: Mapping[str, Any] = options.NONE
  qk_norm: str = "none"
  qk_norm_kw: Mapping[str, Any] = options.NONE
  v_norm: str = "none"
  v_norm_kw: Mapping[str, Any] = options.NONE
  logit_scale: str = "sqrt"
  rope: str = "none"
  rope_kw: Mapping[str, Any] = options.NONE
  gelu: str = "tanh"
  mlp: str = "mlp"
  qkv_bias: bool = True
  layer_scale: float | None = None
  final_norm: bool | str = True
  dropout: float = 0.0
  attn_dropout: float = 0.0
  stoch_depth: float = 0.0
  stoch_depth_grows: bool = True
  weight_init: str = "big_vision"
  scan: bool = False
  remat_policy: str = "none"
  dtype_mm: str = "float32"
  attn_impl: str = "auto"

  @property
  def dtype(self) -> jnp.dtype:
    return jnp.dtype(self.dtype_mm)

  @property
  def inits(self) -> init.Inits:
    return self.lookup("weight_init")

  @property
  def eps(self) -> float:
    """The norms', and that of the LayerNorms which are not `norm`."""
    bound: Any = self.bind("norm")
    return {"eps": bound.func.eps, **bound.keywords}["eps"]

  def last_norm(self, choice: bool | str) -> Callable[..., norms.Normalizer]:
    """Returns the constructor of the norm after the blocks or the pooling.

    It makes a LayerNorm whatever the blocks use, as in most of the literature,
    unless the `choice` is "norm".
    """
    if choice == "norm":
      return functools.partial(norms.make, self.norm, **self.norm_kw)
    return functools.partial(norms.make, "layernorm", eps=self.eps)

  @property
  def block_placements(self) -> list[placements.Placement]:
    """Where each block normalizes, as far as `block_ln` says."""
    plain = placements.Placement()
    return [fields.get("placement", plain) for _, fields in bind_blocks(self)]

  def check(self):
    super().check()
    for key, least in _MINIMA.items():
      got = getattr(self, key)
      if got is not None and not least <= got <= _MOST:
        raise ValueError(f"{key} must be {least} to {_MOST:,}, got {got}.")
    for key in ("dropout", "attn_dropout", "stoch_depth"):
      if not 0 <= (rate := getattr(self, key)) < 1:
        raise ValueError(f"{key} must be from 0 to below 1, got {rate}.")
    for choice in ("norm", "qk_norm", "v_norm"):
      norms.find(choice, getattr(self, choice), self.CHOICES[choice])
    attention.check(self)
    bind_blocks(self)


class EncoderBlock(nn.Module):
  """x = x + SA(LN(x)); x = x + MLP(LN(x)), or as `placement` says.

  For a block of your own, subclass this and name it by import path,
  `block_ln="mypkg.blocks:PeriLN"`; further fields are its options.

  Attributes:
    config: the options.
    tokens: how the tokens are arranged.
    placement: where to normalize.
    positions: a `joins.BlockPositions` if positions join in the blocks.
  """

  RESERVED = ("tokens", "placement", "positions")  # not options

  config: Config
  tokens: norms.TokenGrid = norms.TokenGrid()
  placement: placements.Placement = placements.Placement()
  positions: Any = None

  @nn.compact
  def __call__(self, carry, drop_rate, deterministic=True, pre_gain=None):
    """Returns the next carry and the block's intermediates.

    Args:
      carry: x (batch, tokens, width), the residual stream; and positions (1,
        tokens, width) for `self.positions`, None in a plain model.
      drop_rate: scalar, the stochastic depth rate of this block.
      deterministic: no dropout, no stochastic depth; running statistics are
        read, not written.
      pre_gain: scalar, replaces the placement's own in scanned blocks whose
        gains differ.
    """
    x, pe = carry
    where, out, bias = self.placement, {}, None
    kw = {"deterministic": deterministic}
    norm = functools.partial(self.normalize, **kw, gain=pre_gain)
    add = functools.partial(self.add, drop_rate=drop_rate, **kw)

    if self.positions:
      x = self.positions.to_stream(self, x, pe)
    y = norm("LayerNorm_0", x) if "pre" in where.sa else x
    if self.positions:
      y, bias, pe = self.positions.to_attention(y, pe, self.tokens, out)
    y = out["sa"] = self.attention()(y, y, bias, deterministic, out)
    x = out["+sa"] = add(x, y, where.sa, "LayerNorm_0_post")

    y = norm("LayerNorm_1", x) if "pre" in where.mlp else x
    y = out["mlp"] = self.mlp()(y, deterministic)
    if where.resid_scale:
      scale = self.param("resid_scale", nn.initializers.ones, x.shape[-1:])
      x = (x * base.along_width(scale, x)).astype(x.dtype)
    x = out["+mlp"] = add(x, y, where.mlp, "LayerNorm_1_post")
    return (x, pe), out

  def add(self, x, y, where, name, *, drop_rate, deterministic):
    """Returns the residual stream x plus y, the output of a sublayer.

    The post-norm of this `name` normalizes y or the sum, if `where` has "post".
    """
    post = self.placement.post if "post" in where else None
    kw = {"gain": 1.0, "scale_init": self.placement.post_scale_init}
    if post == "branch":
      y = self.normalize(name, y, deterministic, **kw)
    # Dropout acts on the branch, after its norm: the norm would undo a scale.
    y = nn.Dropout(self.config.dropout)(y, deterministic)
    if self.config.layer_scale is not None:
      factors = name.removesuffix("_post").replace("Norm", "Scale")
      start = nn.initializers.constant(self.config.layer_scale)
      factors = self.param(factors, start, y.shape[-1:])
      y = (y * base.along_width(factors, y)).astype(y.dtype)
    if self.config.stoch_depth and not deterministic:
      y = dropout.StochasticDepth()(y, drop_rate)
    if post != "stream":
      return x + y
    if (gain := self.placement.stream_gain) != 1:
      x = gain * x
    return self.normalize(name, x + y, deterministic, **kw)

  def normalize(self, name, x, deterministic, gain=1.0, scale_init=1.0):
    """Returns x (batch, tokens, width), normalized and multiplied by a gain.

    `gain` None stands for the placement's `pre_gain`.
    """
    make = lambda name: functools.partial(
      self.make_norm(name=name, scale_init=scale_init), train=not deterministic
    )
    own = self.tokens.prefix_norm == "own"
    y = self.tokens.apart(make, name, x) if own else make(name)(x)
    if scale_init != 1 and "scale" not in self.variables["params"].get(
      name, ""
    ):
      raise ValueError(
        f"norm={self.config.norm!r} has no scale to start at {scale_init}."
      )
    if y.shape != x.shape:
      raise ValueError(
        f"norm={self.config.norm!r} returned {y.shape} for {x.shape}, expected "
        "the same shape."
      )
    gain = self.placement.pre_gain if gain is None else gain
    if isinstance(gain, float) and gain == 1:
      return y
    return y * jnp.asarray(gain, y.dtype)

  @property
  def make_norm(self):
    config = self.config
    kw = {**config.norm_kw, "dtype": config.dtype, "tokens": self.tokens}
    return functools.partial(norms.make, config.norm, **kw)

  def attention(self):
    where, make_norm = self.placement, self.make_norm
    return attention.of_block(self.config, where, self.tokens, make_norm)

  def mlp(self):
    return mlp.of_block(self.config, self.placement, self.make_norm)


class Encoder(nn.Module):
  """A stack of blocks and, with `final_norm`, the LayerNorm `encoder_norm`.

  Block i is `encoderblock_i`; with `config.scan`, `encoderblock` holds all
  blocks' variables, stacked on a leading axis, and is compiled once.
  """

  config: Config
  positions: Any = None  # a joins.BlockPositions

  @nn.compact
  def __call__(self, x, deterministic=True, *, tokens, pe=None):
    """Returns the encoded tokens in float32 and a dict of intermediates.

    Args:
      x: (batch, tokens, width).
      deterministic: as in `EncoderBlock`.
      tokens: the `norms.TokenGrid` of x.
      pe: (1, tokens, width), for `positions`.
    """
    config = self.config
    if pe is not None:
      # In float32 or wider: LaPE passes it through one norm after another.
      pe = pe.astype(jnp.promote_types(pe.dtype, x.dtype))
    if config.scan and config.depth:
      carry, out = self.scan((x, pe), deterministic, tokens)
    else:
      blocks = range(config.depth)
      carry, out = self.loop((x, pe), deterministic, tokens, config, blocks)
    return self.finish(carry[0], out, tokens, deterministic)

  def loop(self, carry, deterministic, tokens, config, blocks):
    """Applies the blocks with the numbers `blocks`, one after another."""
    found, drop_rates = self.prepare(config, tokens, prevent_cse=True)
    out = {}
    for i in blocks:
      block_cls, fields = found[i]
      block = block_cls(**fields, name=f"encoderblock_{i}")
      carry, out[f"block{i:02d}"] = block(carry, drop_rates[i], deterministic)
    return carry, out

  def scan(self, carry, deterministic, tokens):
    """Applies all blocks as one scanned block, with stacked variables."""
    config = self.config
    found, drop_rates = self.prepare(config, tokens, prevent_cse=False)
    block_cls, fields = found[0]
    gains = [f["placement"].pre_gain for _, f in found if "placement" in f]
    more = [jnp.array(gains)] if len({*gains}) > 1 else []
    blocks = nn.scan(
      block_cls,
      variable_axes={True: 0},  # True: of all collections
      split_rngs={"params": True, "dropout": True},
      in_axes=(0, nn.broadcast, *(0 for _ in more)),
      length=config.depth,
    )(**fields, name="encoderblock")
    carry, stacked = blocks(carry, drop_rates, deterministic, *more)
    out = {
      f"block{i:02d}": jax.tree.map(lambda o, i=i: o[i], stacked)
      for i in range(config.depth)
    }
    return carry, out

  def prepare(self, config, tokens, prevent_cse):
    """Returns the class and fields of each block, and their drop rates.

    With remat, `prevent_cse` keeps the compiler from merging the recomputation
    with the original; in a scan's body it cannot see both.
    """
    more = {"config": config, "tokens": tokens, "positions": self.positions}
    wrap = lambda block_cls: block_cls
    if config.remat_policy != "none":
      wrap = functools.partial(
        nn.remat,
        prevent_cse=prevent_cse,
        static_argnums=(3,),  # 0 is self, 3 deterministic
        policy=getattr(jax.checkpoint_policies, config.remat_policy),
      )
    found = [(wrap(cls), fields | more) for cls, fields in bind_blocks(config)]
    last = config.stoch_depth
    first = 0.0 if config.stoch_depth_grows and config.depth > 1 else last
    return found, jnp.linspace(first, last, config.depth)

  def finish(self, x, out, tokens, deterministic=True):
    config, name = self.config, "encoder_norm"
    out["pre_ln"] = x
    if config.final_norm:
      last = config.last_norm(config.final_norm)
      make = lambda name: functools.partial(
        last(name=name, tokens=tokens), train=not deterministic
      )
      shared = tokens.prefix_norm == "shared"
      x = make(name)(x) if shared else tokens.apart(make, name, x)
    # In float32 for the head and the loss.
    return x.astype(jnp.promote_types(x.dtype, jnp.float32)), out


def bind_block(config: Config, i: int = 0) -> tuple[type, dict[str, Any]]:
  """Returns the class of a block and the fields that `block_ln` sets."""
  bound = config.bind("block_ln")
  if isinstance(bound.func, type) and issubclass(bound.func, EncoderBlock):
    return bound.func, bound.keywords
  placement = placements.of_block(config.block_ln, bound, i, config.depth)
  return EncoderBlock, {"placement": placement}


def bind_blocks(config: Config) -> list[tuple[type, dict[str, Any]]]:
  """Returns `bind_block` for all; ValueError if blocks cannot be scanned."""
  found = [bind_block(config, i) for i in range(max(config.depth, 1))]
  if config.scan and "placement" in found[0][1]:
    same = lambda p: dataclasses.replace(p, pre_gain=1.0)
    if len({same(fields["placement"]) for _, fields in found}) > 1:
      raise ValueError(
        f"block_ln={config.block_ln!r} has norms in other places in some "
        "blocks than in others, and scan=True needs equal ones. Set scan=False."
      )
  return found[: config.depth]
