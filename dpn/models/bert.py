"""BERT (arXiv 1810.04805) as a text tower, from its first token, [CLS].

Parameter names and shapes are those of flaxformer's encoder as big_vision uses
it (`proj.flaxformer.bert`), so its LiT checkpoints load unchanged. Blocks
normalize after each residual sum; padding, id 0, is not attended to; all tokens
are of the first segment.
"""

import dataclasses
import functools
from collections.abc import Mapping
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
_norm = functools.partial(norms.make, "layernorm", {"eps": 1e-12})


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
    dropout: rate; of embedded tokens, attention weights and both branches.
    head_zeroinit: start the head's kernel at zero, as big_vision does unless
      told otherwise; no contrastive loss can learn from there.
  """

  TRAINING_ONLY: ClassVar = ("dropout", "head_zeroinit")

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
    if self.width % self.num_heads:
      raise ValueError(
        f"width={self.width} must be a multiple of num_heads={self.num_heads}."
      )


class _Model(nn.Module):
  """See `Model`."""

  num_classes: int | None
  config: Config

  @nn.compact
  def __call__(self, text, *, train=False):
    """Returns `(logits, out)`.

    Args:
      text: (batch, tokens) int32, [CLS] first, padded with 0. Ids beyond the
        vocabulary give NaN.
      train: use dropout, which needs the rng `dropout`.

    Returns:
      logits (batch, num_classes), the representation (batch, width) if
      `num_classes` is None, and a dict of intermediates.
    """
    config, length = self.config, text.shape[1]
    if length > config.max_length:
      raise ValueError(
        f"The text has {length} tokens, but BERT has positions for "
        f"{config.max_length}: tokenize to fewer, or set "
        f"config.model.text.max_length={length}."
      )
    x = Encoder(config, name="BertEncoder_0")(text, not train)
    out = {"transformed": x}  # (batch, tokens, width)
    x = out["pre_logits"] = x[:, 0]
    if self.num_classes:
      init = nn.initializers
      init = init.zeros if config.head_zeroinit else init.lecun_normal()
      head = nn.Dense(self.num_classes, kernel_init=init, name="head")
      x = out["logits"] = head(x)
    return x, out


class Encoder(nn.Module):
  """Embeds tokens and runs the blocks."""

  config: Config

  @nn.compact
  def __call__(self, text, deterministic):  # (batch, tokens)
    config = self.config
    x = Embedder(config, name="embedder")(text)  # (batch, tokens, width)
    x = _norm(name="layer_norm")(x)
    x = nn.Dropout(config.dropout)(x, deterministic)
    mask = (text != _PAD)[:, None, None]  # (batch, heads, queries, keys)
    return Stack(config, name="encoder_block")(x, mask, deterministic)


class Embedder(nn.Module):
  """Sums the embeddings of tokens, positions and the first segment."""

  config: Config

  @nn.compact
  def __call__(self, text):  # (batch, tokens)
    config = self.config

    def embed(kind, size, ids):
      init = _dense.keywords["kernel_init"]
      name = f"embedders_{kind}_ids"
      table = nn.Embed(size, config.width, embedding_init=init, name=name)
      return table(ids)

    positions = jnp.arange(text.shape[1])[None]
    x = embed("token", config.vocab_size, text)
    x = x + embed("position", config.max_length, positions)
    return x + embed("segment", _SEGMENTS, jnp.zeros_like(positions))


class Stack(nn.Module):
  """The blocks; twice, because their names have two levels."""

  config: Config
  inner: bool = False

  @nn.compact
  def __call__(self, x, mask, deterministic):  # (batch, tokens, width)
    if not self.inner:
      inner = Stack(self.config, inner=True, name="layer_sequence")
      return inner(x, mask, deterministic)
    for i in range(self.config.depth):
      x = Block(self.config, name=f"layers_{i}")(x, mask, deterministic)
    return x


class Block(nn.Module):
  """x = LN(x + SA(x)); x = LN(x + MLP(x))."""

  config: Config

  @nn.compact
  def __call__(self, x, mask, deterministic):
    config = self.config
    x = AttentionBlock(config, name="attention_block")(x, mask, deterministic)
    return MlpBlock(config, name="mlp_block")(x, deterministic)


class AttentionBlock(nn.Module):
  """LN(x + SA(x)); `mask` says which keys are attended to."""

  config: Config

  @nn.compact
  def __call__(self, x, mask, deterministic):
    y = Attention(self.config, name="attention_layer")(x, mask, deterministic)
    return _project_and_add(self.config, x, y, deterministic)


class MlpBlock(nn.Module):
  """LN(x + MLP(x))."""

  config: Config

  @nn.compact
  def __call__(self, x, deterministic):
    y = Hidden(self.config, name="mlp")(x)
    return _project_and_add(self.config, x, y, deterministic)


def _project_and_add(config, x, y, deterministic):
  """Returns LN(x + Dense(y)), as part of the module that calls it."""
  y = _dense(config.width, name="dense_layer")(y)
  y = nn.Dropout(config.dropout)(y, deterministic)
  return _norm(name="layer_norm")(x + y)


class Attention(nn.Module):
  """Self-attention without the projection of its result."""

  config: Config

  @nn.compact
  def __call__(self, x, mask, deterministic):
    config = self.config

    def project(name):
      y = _dense(config.width, name=name)(x)
      return base.split_heads(y, config.num_heads)

    random = config.dropout and not deterministic
    y = nn.dot_product_attention(
      *map(project, ("query", "key", "value")),
      mask=mask,
      broadcast_dropout=False,
      dropout_rng=self.make_rng("dropout") if random else None,
      dropout_rate=config.dropout,
      deterministic=deterministic,
    )
    return y.reshape(x.shape)


class Hidden(nn.Module):
  """The hidden layer of the MLP."""

  config: Config

  @nn.compact
  def __call__(self, x):
    return nn.gelu(_dense(self.config.mlp_dim, name="dense_layer")(x))


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
  made = Config(**Config.merge(vit.decode_variant(SIZES[config]), kw))
  made.check()
  return _Model(num_classes, made)


def by_block(params: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a tower's parameters grouped under the names of `text.Model`."""
  encoder = params["BertEncoder_0"]
  layers = encoder["encoder_block"]["layer_sequence"]
  rename = lambda name: name.replace("layers_", "encoderblock_")
  blocks = {rename(name): block for name, block in layers.items()}
  return {"Embed_0": encoder["embedder"], "Encoder_0": blocks}
