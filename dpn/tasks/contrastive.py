"""Contrastive learning of images and texts, as in CLIP, LiT and SigLIP."""

import dataclasses
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp

from dpn import errors, losses, registry
from dpn.models import bert, stem, two_towers, vit
from dpn.tasks import base

MODELS = {
  "two_towers": two_towers.Model,
  "proj.image_text.two_towers": two_towers.Model,  # big_vision's name
}
LOSSES = {
  "softmax": losses.softmax_contrastive,
  "sigmoid": losses.sigmoid_contrastive,
}


@dataclasses.dataclass(frozen=True)
class Contrastive(base.Task):
  """Learns which `text` of the batch belongs to which `image`.

  `text` are token ids (batch, tokens). Every pair of the batch, over all
  devices, is compared with every other, also under `config.grad_accum`, which
  caches gradients of embeddings. To lock a tower (LiT), freeze its parameters:
  `config.schedule = [("img/.*", None), (".*", {…})]`; its gradient is then not
  computed.
  """

  config_keys = ("model_name", "model", "loss", "loss_chunks")
  towers: ClassVar = ("img", "txt")

  model: nn.Module  # (images, texts) → (zimg, ztxt, out)
  loss: str = "softmax"
  loss_chunks: int = 1  # see `losses.softmax_contrastive`

  @classmethod
  def from_config(cls, config):
    name = config.get("model_name", "two_towers")
    make_model = registry.lookup("model_name", name, MODELS)
    loss = config.get("loss", "softmax")
    errors.check_known("loss", loss, LOSSES)
    model = make_model(**dict(config.get("model") or {}))
    ours = make_model is two_towers.Model
    if ours and (loss == "sigmoid") != (model.bias_init is not None):
      raise ValueError(
        f"config.loss={loss!r} with config.model.bias_init={model.bias_init}: "
        "the sigmoid loss needs a bias, for example -10, and the softmax does "
        "not change with one: set it to None."
      )
    size = config["input"].get("batch_size", 0) if "input" in config else 0
    chunks = config.get("loss_chunks") or 1
    if not isinstance(chunks, int) or chunks < 1 or size % chunks:
      raise ValueError(
        f"config.loss_chunks={chunks} must be a whole number that divides "
        f"config.input.batch_size={size}."
      )
    return cls(model, loss, chunks)

  def init(self, rng, batch):
    why = 'text comes from tokenize(max_len=…, eos="sticky", model=…)'
    base.check_keys(batch, ("image", "text"), why)
    if batch["text"].ndim != 2:
      raise ValueError(
        f"text has shape {batch['text'].shape}, expected (batch, tokens). "
        'Choose one of several captions with choice(key="text") before '
        "tokenize."
      )
    return self.model.init(rng, batch["image"], batch["text"])

  def fit(self, variables, batches):
    if not isinstance(getattr(self.model, "img", None), vit.ViT):
      return variables
    images = (batch["image"] for batch in batches)
    own = {k: v["img"] for k, v in variables.items() if "img" in v}
    fitted = stem.fit(self.model.img.config, own, images)
    if fitted is own:
      return variables
    changed = {k: {**variables[k], "img": v} for k, v in fitted.items()}
    return {**variables, **changed}

  def check_vocabularies(self, sizes):
    tower = getattr(self.model, "txt", None)
    known = getattr(getattr(tower, "config", None), "vocab_size", None)
    if known is not None and sizes.get("text", 0) > known:
      raise ValueError(
        f"tokenize makes ids of a vocabulary of {sizes['text']}, but the text "
        f"tower knows {known}: set config.model.text.vocab_size="
        f"{sizes['text']}, or use the vocabulary that it was trained with."
      )

  def embed(self, variables, batch, *, rng=None):
    """Returns (zimg, ztxt), each (batch, dim), and the model's new state."""
    inputs = batch["image"], batch["text"]
    found, state = base.apply(self.model, variables, *inputs, rng=rng)
    return found[:2], state

  def compare(self, variables, embeddings, batch):
    """Returns the numbers of `measure` from the embeddings of `embed`."""
    params = variables["params"]
    scale = {"temperature": jnp.exp(params["t"])}
    if "b" in params:
      scale["bias"] = params["b"]
    mask, size = batch.get("_mask"), len(batch["text"])
    kw = {"mask": mask, "chunks": self.loss_chunks}
    return {
      "loss": LOSSES[self.loss](*embeddings, **scale, **kw),
      **{k: jnp.broadcast_to(x, (size,)) for k, x in scale.items()},
    }

  def measure(self, variables, batch, *, rng=None):
    embeddings, state = self.embed(variables, batch, rng=rng)
    return self.compare(variables, embeddings, batch), state

  def predict_fns(self):
    return {"predict": self._predict, **super().predict_fns()}

  def _predict(self, variables, batch):
    """Returns (zimg, ztxt, out), with None for an input that is missing."""
    return self.model.apply(variables, batch.get("image"), batch.get("text"))

  def model_options(self):
    return two_towers.options(self.model)

  def grad_norms(self, grads):
    """Returns the norms of each tower's embedding and of each of its blocks."""
    norms = {}
    for tower, embedding, blocks in (
      ("img", "embedding", "Transformer"),
      ("txt", "Embed_0", "Encoder_0"),
    ):
      tree = grads.get(tower, {})
      if "BertEncoder_0" in tree:
        tree = bert.by_block(tree)
      found = base.grad_norms_by_depth(tree, embedding, blocks)
      norms |= {f"{tower}/{name}": norm for name, norm in found.items()}
    return norms
