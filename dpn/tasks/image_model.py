"""What tasks that train a model of images share."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypedDict

import flax.linen as nn
import jax

from dpn import errors, schema
from dpn.models import stem, vit
from dpn.tasks import base

MODELS = {"vit": vit.Model}


class _Config(TypedDict, total=False):
  num_classes: int | None
  model_name: str
  model: Mapping | None


def make(config: Mapping[str, Any]) -> nn.Module:
  """Returns the model of `config.model_name` and `config.model`."""
  schema.check("config", "", config, _Config)
  name = config.get("model_name", "vit")
  errors.check_known("model_name", name, MODELS)
  if not config.get("num_classes"):
    raise ValueError(
      "config.num_classes is missing; set it to the number of classes that "
      "the labels of config.input.pp have."
    )
  return MODELS[name](config["num_classes"], **dict(config.get("model") or {}))


@dataclasses.dataclass(frozen=True)
class ImageModel(base.Task):
  """A model of images, images → (logits, out), that learns from `labels`."""

  config_keys = ("model_name", "model", "num_classes")
  HOW_LABELS: ClassVar[str] = ""  # ops that make them, for a message

  model: nn.Module

  def init(self, rng, batch):
    for key in ("image", "labels"):
      if key not in batch:
        raise ValueError(
          f"The examples have {', '.join(sorted(batch))}, but no {key!r}. "
          "Let config.input.pp make it, and name it in keep(...); labels come "
          f"from {self.HOW_LABELS}."
        )
    return self.model.init(rng, batch["image"])

  def fit(self, model_state, batches):
    images = (batch["image"] for batch in batches)
    return stem.fit(self.model.config, model_state, images)

  def apply(
    self, variables: base.Variables, image: jax.Array, rng: jax.Array | None
  ) -> tuple[tuple[jax.Array, Mapping[str, Any]], Mapping[str, Any]]:
    """Returns (what the model makes of images, its new state).

    In training if there is a generator, else in evaluation; see `measure`.
    """
    if rng is None:
      return self.model.apply(variables, image), {}
    return self.model.apply(
      variables,
      image,
      train=True,
      rngs={"dropout": rng},
      mutable=[name for name in variables if name != "params"],
    )

  def predict_fns(self):
    return {"predict": self.predict, **super().predict_fns()}

  def predict(self, variables, batch):
    """Returns (logits, out)."""
    return self.apply(variables, batch["image"], None)[0]

  def model_options(self):
    return vit.options(self.model)

  def grad_norms(self, grads):
    """Returns the norms of the embedding and of each block.

    They are those of Figure 2 of arXiv 2302.01327; blocks looped or scanned.
    """
    return base.grad_norms_by_depth(grads, "embedding", "Transformer")
