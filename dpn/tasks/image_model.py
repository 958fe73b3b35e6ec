"""The common base of tasks that train a model of images."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict

import flax.linen as nn
import jax

from dpn import registry, schema
from dpn.models import stem, vit
from dpn.tasks import base

MODELS = {"vit": vit.Model}


class _Config(TypedDict, total=False):
  num_classes: int | None
  model_name: str
  model: Mapping | None


def make(config: Mapping[str, Any]) -> nn.Module:
  """Returns the model of `config.model_name` and `config.model`.

  The name is one of `MODELS` or the import path of a function of your own,
  "mypkg.models:Mixer", called with `num_classes` and the options in
  `config.model`. It returns a Linen module, called as model(image, train=…) →
  (logits, out).
  """
  schema.check("config", "", config, _Config)
  name = config.get("model_name", "vit")
  make_model = registry.lookup("model_name", name, MODELS)
  if not config.get("num_classes"):
    raise ValueError(
      "config.num_classes is missing; set it to the number of classes that "
      "the labels of config.input.pp have."
    )
  return make_model(config["num_classes"], **dict(config.get("model") or {}))


@dataclasses.dataclass(frozen=True)
class ImageModel(base.Task):
  """A model of images, images → (logits, out), that learns from `labels`."""

  config_keys: ClassVar[tuple[str, ...]] = (
    *("model_name", "model", "num_classes"),
  )
  HOW_LABELS: ClassVar[str] = ""  # ops that make labels, for a message

  model: nn.Module

  @property
  def is_vit(self) -> bool:
    return isinstance(self.model, vit.ViT)

  def init(self, rng, batch):
    why = f"labels come from {self.HOW_LABELS}"
    base.check_keys(batch, ("image", "labels"), why)
    return self.model.init(rng, batch["image"])

  def fit(self, variables, batches):
    if not self.is_vit:
      return variables
    images = (batch["image"] for batch in batches)
    return stem.fit(self.model.config, variables, images)

  def apply(
    self, variables: base.Variables, image: jax.Array, rng: jax.Array | None
  ) -> tuple[tuple[jax.Array, Mapping[str, Any]], Mapping[str, Any]]:
    """Returns ((logits, out), the model's new state), see `base.apply`."""
    return base.apply(self.model, variables, image, rng=rng)

  def predict_fns(self):
    return {"predict": self.predict, **super().predict_fns()}

  def predict(self, variables, batch):
    """Returns (logits, out)."""
    return self.apply(variables, batch["image"], None)[0]

  def model_options(self):
    return vit.options(self.model) if self.is_vit else {}

  def grad_norms(self, grads):
    """Returns the norms of the embedding and of each block of a ViT.

    Figure 2 of arXiv 2302.01327 shows these. Blocks may be looped or scanned.
    """
    if not self.is_vit:
      return super().grad_norms(grads)
    return base.grad_norms_by_depth(grads, "embedding", "Transformer")
