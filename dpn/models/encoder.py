"""The Transformer encoder, looped or scanned over its blocks."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn import errors
from dpn.models import attention, init, mlp, norms, posemb_join, relative
from dpn.models import placement as block_ln
from dpn.models.norms import base, dtn, power_norm


class StochasticDepth(nn.Module):
  """Drops the whole branch of an example (arXiv 1603.09382).

  Scales what it keeps by 1 / (1 - rate). The rate may be traced, so that
  scanned blocks can each have their own.
  """

  @nn.compact
  def __call__(self, x, rate):
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    keep = jax.random.bernoulli(self.make_rng("dropout"), 1.0 - rate, shape)
    return jnp.where(keep, x / (1.0 - rate), 0).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class Block:
  """What all blocks of an encoder have in common.

  Attributes:
    mlp_dim: width of the MLP's hidden layer.
    num_heads: of the attention.
    block_ln: where the block normalizes, see `block_ln.get`.
    norm: what it normalizes with, see `norms.make`.
    dropout: rate, in the MLP and of both branches.
    attn_dropout: rate, of the attention weights.
    gelu: one of `mlp.GELUS`.
    qkv_bias: whether query, key and value have biases.
    weight_init: one of `init.INITS`.
    relative: add a `relative.RelativeBias` to the attention's logits.
    lape: deliver positions to the attention; None if the tokens have theirs.
    dtype: of matrix products and the residual stream.
    attn_impl: one of `attn_impl.IMPLS`.
  """

  mlp_dim: int
  num_heads: int
  block_ln: str = "sa=pre,mlp=pre"
  norm: str = "layernorm"
  dropout: float = 0.0
  attn_dropout: float = 0.0
  gelu: str = "tanh"
  qkv_bias: bool = True
  weight_init: str = "big_vision"
  relative: bool = False
  lape: posemb_join.Lape | None = None
  dtype: Any = jnp.float32
  attn_impl: str = "auto"


class EncoderBlock(nn.Module):
  """x = x + SA(LN(x)); x = x + MLP(LN(x)), or what `block.block_ln` says.

  Attributes:
    block: the options.
    layout: of the tokens.
    init_gain: factor on the initial value, out and MLP kernels.
    stochastic: use stochastic depth in training.
  """

  block: Block
  layout: base.Layout = base.Layout()
  init_gain: float = 1.0
  stochastic: bool = False

  @nn.compact
  def __call__(self, carry, drop_rate, deterministic=True):
    """Returns the next carry and the block's intermediates.

    Args:
      carry: x (batch, tokens, width) and LaPE's position (1, tokens, width),
        None without LaPE.
      drop_rate: scalar, the stochastic depth rate of this block.
      deterministic: no dropout, no stochastic depth; running statistics are
        read, not written.
    """
    x, omega = carry
    spec = block_ln.get(self.block.block_ln)
    out = {}
    position = bias = None
    if omega is not None:
      position, omega = self.block.lape.deliver(omega, self.block.norm)
      out["position"] = position
    if self.block.relative:
      bias = relative.RelativeBias(
        self.layout,
        normalize=self.block.lape is not None,
        dtype=x.dtype,
        name="rel_posemb",
      )()

    def norm(name):
      return lambda x: self.norm(name)(x, not deterministic)

    def drop(y):
      y = nn.Dropout(self.block.dropout)(y, deterministic)
      if self.stochastic and not deterministic:
        y = StochasticDepth()(y, drop_rate)
      return y

    before, on_branch, on_stream = around(spec, spec.sa, norm, "LayerNorm_0")
    y = before(x)
    if position is not None:
      y = y + position.astype(y.dtype)
    y = out["sa"] = self.attention(spec)(y, y, bias, deterministic)
    x = out["+sa"] = on_stream(x + drop(on_branch(y)))

    before, on_branch, on_stream = around(spec, spec.mlp, norm, "LayerNorm_1")
    y = out["mlp"] = self.mlp(spec)(before(x), deterministic)
    if spec.resid_scale:
      x = self.scale_residual(x)
    x = out["+mlp"] = on_stream(x + drop(on_branch(y)))
    return (x, omega), out

  def norm(self, name):
    block = self.block
    return norms.make(
      block.norm, name=name, dtype=block.dtype, layout=self.layout
    )

  def attention(self, spec):
    block = self.block
    return attention.Attention(
      block.num_heads,
      qkv_bias=block.qkv_bias,
      dropout=block.attn_dropout,
      inner_norm=block.norm if spec.sa_inner else None,
      head_scale=spec.head_scale,
      layout=self.layout,
      kernel_init=init.get(block.weight_init).dense,
      init_gain=self.init_gain,
      dtype=block.dtype,
      impl=block.attn_impl,
      name="MultiHeadDotProductAttention_0",
    )

  def mlp(self, spec):
    block = self.block
    return mlp.Mlp(
      block.mlp_dim,
      block.dropout,
      gelu=block.gelu,
      inner_norm=block.norm,
      inner=spec.mlp_inner,
      layout=self.layout,
      kernel_init=init.get(block.weight_init).dense,
      bias_init=init.get(block.weight_init).mlp_bias,
      init_gain=self.init_gain,
      dtype=block.dtype,
      name="MlpBlock_0",
    )

  def scale_residual(self, x):
    width = x.shape[-1]
    scale = self.param("resid_scale", nn.initializers.ones, (width,))
    return x * base.along_width(scale, x).astype(x.dtype)


def around(spec, placement, norm, name):
  """Returns what happens to x, f's result and their sum around a sublayer f.

  x = on_stream(x + on_branch(f(before(x)))), of which two are the identity
  for each single norm of Section 4.1 of arXiv 2302.01327.

  Args:
    spec: the `block_ln.BlockLN`.
    placement: `pre`, `post`, `pre+post` or `none`.
    norm: from a name to a function that normalizes.
    name: of the norm before; the one after is called `<name>_post`.
  """
  where = placement.split("+")
  pre = norm(name) if "pre" in where else _identity
  post = norm(f"{name}_post") if "post" in where else _identity
  if spec.post == "branch":
    return pre, post, _identity
  return pre, _identity, post


def _identity(x):
  return x


REMAT_POLICIES = (
  "none",
  "nothing_saveable",
  "dots_saveable",
  "dots_with_no_batch_dims_saveable",
  "everything_saveable",
)


def check_remat_policy(policy: str):
  """Raises ValueError naming the nearest if `policy` is unknown."""
  if policy not in REMAT_POLICIES:
    raise ValueError(errors.unknown("remat_policy", policy, REMAT_POLICIES))


def remat(block, policy: str):
  """Returns `block`, recomputed in the backward pass as `policy` says."""
  check_remat_policy(policy)
  if policy == "none":
    return block
  return nn.remat(
    block,
    prevent_cse=False,
    static_argnums=(3,),  # 0 is self, 3 deterministic
    policy=getattr(jax.checkpoint_policies, policy),
  )


class Encoder(nn.Module):
  """A stack of blocks and the final LayerNorm `encoder_norm`.

  With `scan` the parameters and running statistics of all blocks are stacked
  on a leading axis under `encoderblock`, and the block is compiled once.
  Without it, block i is `encoderblock_i`.
  """

  depth: int
  block: Block
  stoch_depth: float = 0.0
  scan: bool = False
  remat_policy: str = "none"

  @nn.compact
  def __call__(
    self, x, deterministic=True, *, layout=None, omega=None, late_cls=None
  ):
    """Returns the encoded tokens in float32 and a dict of intermediates.

    Args:
      x: (batch, tokens, width).
      deterministic: no dropout, no stochastic depth; running statistics are
        read, not written.
      layout: of the tokens, for the norms that look beyond one of them.
      omega: (1, tokens, width), the positions if LaPE delivers them.
      late_cls: (batch, 1, width), a class token that joins the patches for the
        last `dtn.LATE_BLOCKS` blocks only; these have LayerNorm.
    """
    layout = layout or base.Layout(self.block.num_heads)
    block_cls = remat(EncoderBlock, self.remat_policy)
    drop_rates = jnp.linspace(0, self.stoch_depth, self.depth)
    plain = norms.plain(self.block.norm)
    kw = {
      "block": self.block,
      "layout": layout,
      "init_gain": block_ln.get(self.block.block_ln).init_gain(self.depth),
      "stochastic": self.stoch_depth > 0,
    }
    out = {}
    if self.scan:
      (x, _), stacked = scan(block_cls, self.depth)(name="encoderblock", **kw)(
        (x, omega), drop_rates, deterministic
      )
      for i in range(self.depth):
        out[f"block{i:02d}"] = jax.tree.map(lambda o, i=i: o[i], stacked)
    else:
      for i in range(self.depth):
        if late_cls is not None and i == self.depth - dtn.LATE_BLOCKS:
          x = jnp.concatenate([late_cls, x], axis=1)
          kw["layout"] = dataclasses.replace(layout, cls=True)
          kw["block"] = dataclasses.replace(self.block, norm=plain)
        block = block_cls(name=f"encoderblock_{i}", **kw)
        (x, omega), out[f"block{i:02d}"] = block(
          (x, omega), drop_rates[i], deterministic
        )
    out["pre_ln"] = x
    # The result stays in float32 for the head and the loss.
    return norms.make(plain, name="encoder_norm")(x), out


def scan(block_cls, depth: int):
  """Returns `block_cls` repeated, every variable with a leading axis."""
  collections = ("params", "batch_stats", power_norm.OVERWRITE_WITH_GRADIENT)
  return nn.scan(
    block_cls,
    variable_axes=dict.fromkeys(collections, 0),
    split_rngs={"params": True, "dropout": True},
    in_axes=(0, nn.broadcast),
    length=depth,
  )
