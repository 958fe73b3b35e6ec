"""Image classification with soft or hard labels."""

import dataclasses
from typing import TypedDict, get_type_hints

import jax
import jax.numpy as jnp

from dpn import augment, errors, losses, mixing, schema
from dpn.tasks import image_model


class _Config(TypedDict, total=False):
  """What this task reads in a config, besides its model."""

  class_names: list[str]
  loss: str
  augment: dict | None
  mixup: dict | None
  init_head_bias: float | None


@dataclasses.dataclass(frozen=True)
class Classification(image_model.ImageModel):
  """Cross entropy of a model's logits on `image` and `labels`.

  A low `init_head_bias` makes the sigmoid loss start small when there are many
  classes. `config.augment` shifts and mirrors images on the device, before
  `config.mixup` mixes them. `config.class_names` is for display, and
  scripts.predict.
  """

  config_keys = (
    *image_model.ImageModel.config_keys,
    *("class_names", "init_head_bias", "loss", "mixup", "augment"),
  )
  HOW_LABELS = 'onehot(…, key="label", key_result="labels")'

  loss: str = "sigmoid_xent"  # see `losses.get`
  shifts: augment.Augment = dataclasses.field(default_factory=augment.Augment)
  mixup: mixing.Mixup = dataclasses.field(default_factory=mixing.Mixup)
  mixes: bool | jax.Array = True  # whether this step mixes
  init_head_bias: float | None = None

  def __post_init__(self):
    losses.get(self.loss)

  @classmethod
  def from_config(cls, config):
    schema.check("config", "", config, _Config)
    model = image_model.make(config)
    names = config.get("class_names")
    if names and len(names) != config["num_classes"]:
      raise ValueError(
        f"config.class_names has {len(names)} names, expected one for each of "
        f"the {config['num_classes']} classes."
      )
    return cls(
      model=model,
      loss=config.get("loss", "sigmoid_xent"),
      shifts=_section(config, "augment", augment.Augment),
      mixup=_section(config, "mixup", mixing.Mixup),
      init_head_bias=config.get("init_head_bias"),
    )

  def init(self, rng, batch):
    variables = super().init(rng, batch)
    if self.init_head_bias is not None:
      if "bias" not in variables["params"].get("head", ()):
        raise ValueError(
          f"config.init_head_bias={self.init_head_bias} is for a model with "
          "the parameter head/bias, which this one lacks. Leave it out."
        )
      head = variables["params"]["head"]
      head["bias"] = jnp.full_like(head["bias"], self.init_head_bias)
    return variables

  def at(self, step):
    if self.mixup.until_steps is None:
      return self
    return dataclasses.replace(self, mixes=step < self.mixup.until_steps)

  def augment(self, rng, batch):
    image, labels = batch["image"], batch["labels"]
    if self.shifts:
      rng, *rngs = jax.random.split(rng, 3)
      image = self.shifts(*rngs, image)
    mixed = self.mixup(rng, image, labels)
    if self.mixes is not True:
      pick = lambda x, y: jnp.where(self.mixes, x, y)
      mixed = jax.tree.map(pick, mixed, (image, labels))
    return {**batch, "image": mixed[0], "labels": mixed[1]}

  def measure(self, variables, batch, *, rng=None):
    if rng is not None:
      augment_rng, rng = jax.random.split(rng)
      batch = self.augment(augment_rng, batch)
    (logits, _), state = self.apply(variables, batch["image"], rng)
    return {"loss": losses.get(self.loss)(logits, batch["labels"])}, state


def _section(config, key, cls):
  """Returns a section of the config as a `cls`, after checking its keys."""
  section, hints = dict(config.get(key) or {}), get_type_hints(cls)
  for name, value in section.items():
    errors.check_known(f"key in config.{key}:", name, hints)
    schema.check(f"config.{key}", name, value, hints[name])
  return cls(**section)
