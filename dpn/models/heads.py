"""Pooling: from encoded tokens to one vector per image."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from dpn.models import attention, compact, mlp, norms


class MAPHead(nn.Module):
  """Multi-head attention pooling (arXiv 2106.04560, Section 3.2).

  The encoder's options set its heads, `mlp_dim`, `gelu`, `weight_init`, dtype
  and epsilon; the rest is as in big_vision, with biases and an MLP.
  """

  config: Any  # an `encoder.Config`

  @nn.compact
  def __call__(self, x, out):
    """Returns (batch, width) from (batch, tokens, width).

    Heads have width / num_heads channels here, whatever `head_dim` is.

    Adds the intermediates of `attention.Attention` to the dict `out`.
    """
    config, (batch, _, width) = self.config, x.shape
    inits, name = config.inits, "MultiHeadDotProductAttention_0"
    kw = {"kernel_init": inits.dense, "dtype": config.dtype}
    probe = self.param("probe", nn.initializers.xavier_uniform(), (1, 1, width))
    attend = attention.Attention(config.num_heads, name=name, **kw)
    probe = jnp.tile(probe, (batch, 1, 1))
    x = attend(probe, x, out=out)  # (batch, 1, width)
    y = norms.make("layernorm", eps=config.eps, name="LayerNorm_0")(x)
    gelu = config.lookup("gelu")
    kw |= {"bias_init": inits.mlp_bias}
    x = x + mlp.Mlp(config.mlp_dim, gelu=gelu, name="MlpBlock_0", **kw)(y)
    return x[:, 0].astype(jnp.promote_types(x.dtype, jnp.float32))


def _map(x, config, out):
  out["pool"] = {}
  return MAPHead(config, name="MAPHead_0")(x, out["pool"])


# Functions (x, config, out) → (batch, width) of tokens (batch, tokens, width),
# which create their modules inside the model that calls them and add their
# intermediates to `out`. Only "tok" has a class token, which comes first.
POOL_TYPES = {
  "tok": lambda x, config, out: x[:, 0],
  "0": lambda x, config, out: x[:, 0],
  "gap": lambda x, config, out: x.mean(axis=1),
  "map": _map,
  "seq": lambda x, *_: compact.SequencePool(name="SequencePool_0")(x),
  "none": lambda x, config, out: x,  # (batch, tokens, width)
}
