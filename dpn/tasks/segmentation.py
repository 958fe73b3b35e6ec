"""Semantic segmentation with a linear decoder.

As in Segmenter (arXiv 2105.05633, Section 3.2) and, after it, arXiv 2302.01327,
Appendix G: the head is applied to every patch, its logits are upsampled to the
pixels. A class token takes part in the encoder and is dropped.
"""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from dpn.models import vit
from dpn.tasks import image_model

POOL_TYPES = ("gap", "tok")  # those without parameters of their own


@dataclasses.dataclass(frozen=True)
class Segmentation(image_model.ImageModel):
  """Cross entropy of `labels`, integers (batch, rows, cols), at every pixel.

  The loss of an example is the mean over its pixels that are not
  `ignore_label`, and the number of these pixels is its weight. So the loss of a
  batch is the mean over all of its pixels, however many devices and parts it is
  divided into. An example without any such pixel does not count. Labels that
  are no class make the loss NaN.
  """

  config_keys = (*image_model.ImageModel.config_keys, "ignore_label")
  HOW_LABELS = "a label map, one integer per pixel"

  ignore_label: int = 255

  @classmethod
  def from_config(cls, config):
    model = image_model.make(config)
    is_vit = isinstance(model, vit.ViT)
    if is_vit and (pool_type := model.config.pool_type) not in POOL_TYPES:
      raise ValueError(
        f"config.model.pool_type={pool_type!r} makes one vector of all tokens, "
        "which segmentation has no use for. Set it to 'tok' for a class token, "
        "which only the encoder sees, or 'gap' for none."
      )
    ignore_label = config.get("ignore_label")
    ignore_label = 255 if ignore_label is None else ignore_label
    if 0 <= ignore_label < config["num_classes"]:
      raise ValueError(
        f"config.ignore_label={ignore_label} is one of the "
        f"{config['num_classes']} classes: set it to a label that is none."
      )
    return cls(model=model, ignore_label=ignore_label)

  def init(self, rng, batch):
    variables = super().init(rng, batch)
    if batch["labels"].shape != batch["image"].shape[:3]:
      raise ValueError(
        f"Got images {batch['image'].shape} and labels "
        f"{batch['labels'].shape}, expected a label for each pixel: let the "
        "ops of config.input.pp that resize or crop do so to both."
      )
    return variables

  def measure(self, variables, batch, *, rng=None):
    (_, out), state = self.apply(variables, batch["image"], rng)
    # Compared as uint8, an ignore_label of -1 would be 255.
    labels = batch["labels"].astype(jnp.int32)  # (batch, rows, cols)
    logits = upsample(out["logits_2d"], labels.shape[1:])
    valid = labels != self.ignore_label
    labels = jnp.where(valid, labels, 0)
    # An index too large gives NaN, a negative one would count from the end.
    labels = jnp.where(labels < 0, logits.shape[-1], labels)
    xent = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    total = jnp.sum(jnp.where(valid, xent, 0.0), axis=(1, 2))
    count = jnp.sum(valid, axis=(1, 2), dtype=jnp.float32)
    return {"loss": total / jnp.maximum(count, 1.0), "_mask": count}, state

  def predict(self, variables, batch):
    """Returns (logits of the patches (batch, rows, cols, classes), out)."""
    (_, out), _ = self.apply(variables, batch["image"], None)
    return out["logits_2d"], out


def upsample(logits: jax.Array, size: tuple[int, int]) -> jax.Array:
  """Returns logits (batch, *size, classes), bilinear between pixel centres.

  This is PyTorch's `align_corners=False`.
  """
  shape = (logits.shape[0], *size, logits.shape[-1])
  return jax.image.resize(logits, shape, "bilinear")
