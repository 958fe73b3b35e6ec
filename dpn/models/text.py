"""A Transformer encoder of text; parameter names and defaults big_vision's.

The blocks are those of the Vision Transformer, with all their options, such as
`block_ln="normformer"`. There is no causal mask.
"""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from dpn.models import encoder, heads, norms, vit
from dpn.models.broadcast import over_batch

# Functions as in `heads.POOL_TYPES`.
POOLS = {
  "last": lambda x, *_: x[:, -1],  # the end of sentence, if that is sticky
  "first": lambda x, *_: x[:, 0],
  "gap": lambda x, *_: jnp.mean(x, axis=1),
  "max": lambda x, *_: jnp.max(x, axis=1),
  "map": heads.POOL_TYPES["map"],
}
POOLS |= {"mean": POOLS["gap"], "gmp": POOLS["max"]}


@dataclasses.dataclass(frozen=True)
class Config(encoder.Config):
  """The options of a text Transformer: these and an encoder's.

  Attributes:
    vocab_size: how many token ids there are, from 0.
    pool_type: how tokens become a vector, one of `POOLS`.
  """

  VALUES: ClassVar = {"pool_type": POOLS, **encoder.Config.VALUES}

  width: int = 512
  mlp_dim: int = 2048
  num_heads: int = 8
  vocab_size: int = 32_000
  pool_type: str = "last"

  def check(self):
    super().check()
    if self.vocab_size < 1:
      raise ValueError(f"vocab_size must be 1 or more, got {self.vocab_size}.")
    if self.inits.whitens:
      raise ValueError("weight_init='whiten' is of patches; text has none.")


class _Model(nn.Module):
  """See `Model`."""

  num_classes: int | None
  config: Config

  @nn.compact
  def __call__(self, text, *, train=False):
    """Returns `(logits, out)`.

    Args:
      text: (batch, tokens) int32, padded. Ids beyond the vocabulary give NaN.
      train: use dropout and stochastic depth, which need the rng `dropout`.

    Returns:
      logits (batch, num_classes), the representation (batch, width) if
      `num_classes` is None, and a dict of every intermediate.
    """
    config, out, length = self.config, {}, text.shape[1]
    embed = nn.Embed(config.vocab_size, config.width, name="Embed_0")
    x = out["embedded"] = embed(text)  # (batch, tokens, width)
    shape = (1, length, config.width)
    posemb = config.inits.posemb(config.width)
    positions = self.param("pos_embedding", posemb, shape)
    x = x + over_batch(positions, x.shape[0])
    x = nn.Dropout(config.dropout)(x, not train)
    tokens = norms.TokenGrid(config.num_heads, (1, length))
    blocks = encoder.Encoder(config, name="Encoder_0")
    x, inner = blocks(x, deterministic=not train, tokens=tokens)
    out |= {"transformed": x, **inner}
    out["vocab_logits"] = embed.attend(x)
    x = config.lookup("pool_type")(x, config, out)
    out["pre_logits"] = x  # (batch, width)
    if self.num_classes:
      init = config.inits.head
      head = nn.Dense(self.num_classes, kernel_init=init, name="head")
      x = out["logits"] = head(x)
    return x, out


def Model(num_classes=None, *, variant=None, **kw) -> nn.Module:
  """Returns a text Transformer as a Linen module.

  `model.init(rng, text)["params"]` and `model.apply({"params": params}, text,
  train=False)` → `(logits, out)`.

  Args:
    num_classes: size of the head; None leaves the head out.
    variant: size, such as `"B"`; see `vit.VARIANTS`.
    **kw: fields of `Config`; they win over `variant`.

  Raises:
    ValueError: on an unknown variant, option or value, naming the nearest.
  """
  base = vit.decode_variant(variant)
  if "/" in (variant or "") or "weight_init" in base:
    raise ValueError(
      f"Variant {variant!r} is for images; for text give the size alone, as "
      "in 'B'."
    )
  return _Model(num_classes, Config.make(base, kw))
