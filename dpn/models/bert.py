"""BERT (arXiv 1810.04805) as a text tower; it returns its first token, [CLS].

Parameter names and shapes match flaxformer's encoder as big_vision uses it
(`proj.flaxformer.bert`), so big_vision's LiT checkpoints load unchanged. Blocks
normalize after each residual sum; padding, id 0, is not attended to; all tokens
belong to the first segment.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from dpn import errors
from dpn.models import norms, options, vit
from dpn.models.norms import base

SIZES = {"base": "B", "large": "L"}  # of `vit.VARIANTS`
_PAD = 0
_SEGMENTS = 2
_dense = functools.partial(
  nn.Dense, kernel_init=nn.initializers.truncated_normal(0.02)
)
_norm = functools.partial(norms.make, "layernorm", eps=1e-12)


@dataclasses.dataclass(frozen=True)
class Config(options.Options):
  """The options of BERT.

  Attributes:
    width: size of a token.
    depth: number of blocks.
    mlp_dim: width of the MLP's hidden layer.
    num_heads: attention heads per block.
    vocab_size: how many token ids there are, from 0.
    max_length: how many positions have an embedding.
    dropout: rate, on embedded tokens, attention weights and both branches.
    head_zeroinit: start the head's kernel at zero, as big_vision does unless
      told otherwise; no contrastive loss can learn from there.
  """

  TRAINING_ONLY: ClassVar = ("dropout", "head_zeroinit")
  SIZE_OPTION: ClassVar = "config"

  width: int
  depth: int
  mlp_dim: int
  num_heads: int
  vocab_size: int = 30_522
  max_length: int = 512
  dropout: float = 0.1
  head_zeroinit: bool = False

  def check(self):
    super().check()
    if self.num_heads < 1 or self.width % self.num_heads:
      raise ValueError(
        f"width={self.width} must be a multiple of num_heads={self.num_heads}, "
        "which must be 1 or more."
      )


class _Model(nn.Module):
  """See `Model`."""

  num_classes: int | None
  config: Config

  @nn.compact
  def __call__(self, text, *, train=False):
    """Returns `(logits, out)`, as a model of `text` does.

    Args:
      text: (batch, tokens) int32, [CLS] first, padded with 0. Ids beyond the
        vocabulary give NaN.
      train: use dropout, which needs the rng `dropout`.
    """
    config, length = self.config, text.shape[1]
    if length > config.max_length:
      raise ValueError(
        f"The text has {length} tokens, but BERT has positions for "
        f"{config.max_length}: tokenize to fewer, or set "
        f"config.model.text.max_length={length}."
      )
    encode = Under(encoder, name="BertEncoder_0")
    x = encode(config, text, not train)
    out = {"transformed": x}  # (batch, tokens, width)
    x = out["pre_logits"] = x[:, 0]
    if self.num_classes:
      init = nn.initializers
      init = init.zeros if config.head_zeroinit else init.lecun_normal()
      head = nn.Dense(self.num_classes, kernel_init=init, name="head")
      x = out["logits"] = head(x)
    return x, out


class Under(nn.Module):
  """Calls a function whose modules get names under this module's.

  flaxformer nests its modules deeper than the computation needs.
  """

  function: Callable

  @nn.compact
  def __call__(self, *args):
    return self.function(*args)


def encoder(config, text, deterministic):  # (batch, tokens)
  """Embeds tokens and runs the blocks."""
  x = Under(embed, name="embedder")(config, text)  # (batch, tokens, width)
  x = _norm(name="layer_norm")(x)
  x = nn.Dropout(config.dropout)(x, deterministic)
  mask = (text != _PAD)[:, None, None]  # (batch, heads, queries, keys)

  def blocks(x):
    for i in range(config.depth):
      block = Under(encoder_block, name=f"layers_{i}")
      x = block(config, x, mask, deterministic)
    return x

  stack = lambda x: Under(blocks, name="layer_sequence")(x)
  return Under(stack, name="encoder_block")(x)


def embed(config, text):
  """Sums the embeddings of tokens, positions and the first segment."""

  def table(kind, size, ids):
    init = _dense.keywords["kernel_init"]
    name = f"embedders_{kind}_ids"
    return nn.Embed(size, config.width, embedding_init=init, name=name)(ids)

  positions = jnp.arange(text.shape[1])[None]
  x = table("token", config.vocab_size, text)
  x = x + table("position", config.max_length, positions)
  return x + table("segment", _SEGMENTS, jnp.zeros_like(positions))


def encoder_block(config, x, mask, deterministic):
  """Returns LN(y + MLP(y)) of y = LN(x + SA(x))."""

  def project_and_add(x, y):
    y = _dense(config.width, name="dense_layer")(y)
    y = nn.Dropout(config.dropout)(y, deterministic)
    return _norm(name="layer_norm")(x + y)

  def sa(x):
    attend = Under(attention, name="attention_layer")
    return project_and_add(x, attend(config, x, mask, deterministic))

  def mlp(x):
    hidden = lambda x: nn.gelu(_dense(config.mlp_dim, name="dense_layer")(x))
    return project_and_add(x, Under(hidden, name="mlp")(x))

  x = Under(sa, name="attention_block")(x)
  return Under(mlp, name="mlp_block")(x)


def attention(config, x, mask, deterministic):
  """Self-attention without its output projection."""
  project = lambda name: base.split_heads(
    _dense(config.width, name=name)(x), config.num_heads
  )
  q, k, v = map(project, ("query", "key", "value"))
  weights = nn.dot_product_attention_weights(q, k, mask=mask)
  weights = nn.Dropout(config.dropout)(weights, deterministic)
  return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape)


def Model(num_classes=None, *, config="base", **kw) -> nn.Module:
  """Returns BERT as a Linen module, as `text.Model` does a Transformer.

  Args:
    num_classes: size of the head; None leaves the head out.
    config: size, `base` or `large`.
    **kw: fields of `Config`; they win over `config`.

  Raises:
    ValueError: on an unknown size, option or value, naming the nearest.
  """
  errors.check_known("config of BERT:", config, SIZES)
  base = vit.decode_variant(SIZES[config])
  return _Model(num_classes, Config.make(base, kw))


def by_block(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a tower's parameters grouped under the names of `text.Model`."""
  tree = params["BertEncoder_0"]
  layers = tree["encoder_block"]["layer_sequence"]
  rename = lambda name: name.replace("layers_", "encoderblock_")
  blocks = {rename(name): block for name, block in layers.items()}
  return {"Embed_0": tree["embedder"], "Encoder_0": blocks}
