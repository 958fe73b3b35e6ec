"""The pre-LayerNorm Transformer encoder, looped or scanned over its blocks."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn import names
from dpn.models import attention, norms


class Mlp(nn.Module):
  """Dense, GELU (tanh form), dropout, Dense."""

  mlp_dim: int
  dropout: float = 0.0
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, deterministic=True):
    kw = {
      "dtype": self.dtype,
      "kernel_init": nn.initializers.xavier_uniform(),
      "bias_init": nn.initializers.normal(stddev=1e-6),
    }
    width = x.shape[-1]
    x = nn.gelu(nn.Dense(self.mlp_dim, name="Dense_0", **kw)(x))
    x = nn.Dropout(self.dropout)(x, deterministic)
    return nn.Dense(width, name="Dense_1", **kw)(x)


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


class EncoderBlock(nn.Module):
  """x = x + SA(LN(x)); x = x + MLP(LN(x))."""

  mlp_dim: int
  num_heads: int
  dropout: float = 0.0
  stochastic: bool = False
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, drop_rate, deterministic=True):
    """Returns the block's output and its intermediates.

    Args:
      x: (batch, tokens, width).
      drop_rate: scalar, the stochastic depth rate of this block.
      deterministic: no dropout and no stochastic depth.
    """
    out = {}

    def branch(y):
      y = nn.Dropout(self.dropout)(y, deterministic)
      if self.stochastic and not deterministic:
        y = StochasticDepth()(y, drop_rate)
      return y

    y = norms.make("layernorm", name="LayerNorm_0", dtype=self.dtype)(x)
    y = out["sa"] = attention.Attention(
      self.num_heads, dtype=self.dtype, name="MultiHeadDotProductAttention_0"
    )(y, y)
    x = out["+sa"] = x + branch(y)

    y = norms.make("layernorm", name="LayerNorm_1", dtype=self.dtype)(x)
    y = out["mlp"] = Mlp(
      self.mlp_dim, self.dropout, dtype=self.dtype, name="MlpBlock_0"
    )(y, deterministic)
    x = out["+mlp"] = x + branch(y)
    return x, out


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
    raise ValueError(names.unknown("remat_policy", policy, REMAT_POLICIES))


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

  With `scan` the parameters of all blocks are stacked on a leading axis under
  `encoderblock`, and the block is compiled once. Without it, block i is
  `encoderblock_i`.
  """

  depth: int
  mlp_dim: int
  num_heads: int
  dropout: float = 0.0
  stoch_depth: float = 0.0
  scan: bool = False
  remat_policy: str = "none"
  dtype: Any = jnp.float32

  @nn.compact
  def __call__(self, x, deterministic=True):  # (batch, tokens, width)
    block = remat(EncoderBlock, self.remat_policy)
    kw = {
      "mlp_dim": self.mlp_dim,
      "num_heads": self.num_heads,
      "dropout": self.dropout,
      "stochastic": self.stoch_depth > 0,
      "dtype": self.dtype,
    }
    drop_rates = jnp.linspace(0, self.stoch_depth, self.depth)
    out = {}
    if self.scan:
      scanned = nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),
        length=self.depth,
      )
      x, stacked = scanned(name="encoderblock", **kw)(
        x, drop_rates, deterministic
      )
      for i in range(self.depth):
        out[f"block{i:02d}"] = jax.tree.map(lambda o, i=i: o[i], stacked)
    else:
      for i in range(self.depth):
        x, out[f"block{i:02d}"] = block(name=f"encoderblock_{i}", **kw)(
          x, drop_rates[i], deterministic
        )
    out["pre_ln"] = x
    # The result stays in float32 for the head and the loss.
    return norms.make("layernorm", name="encoder_norm")(x), out
