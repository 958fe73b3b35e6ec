"""Image classification with soft or hard labels."""

import dataclasses
from typing import TypedDict

import jax
import jax.numpy as jnp

from dpn import augment, errors, losses, mixing, schema
from dpn.tasks import image_model

AUGMENT = {
  "pad": "by how many pixels images are shifted, at most",
  "pad_value": "what stands where nothing is, in the units that the model "
  "sees: a number, or one for each channel",
  "flip_lr": "whether half of the images are mirrored",
}
MIXUP = {
  "p": "of mixup's beta distribution; 0 turns it off",
  "cutmix_p": "of CutMix's beta distribution; 0 turns it off",
  "switch_prob": "probability of CutMix where both are on",
  "fold_in": "big_vision's; only None is supported",
  "until_steps": "the step from which on nothing is mixed",
}


class _Augment(TypedDict, total=False):
  pad: int
  pad_value: float | tuple[float, ...]
  flip_lr: bool


class _Mixup(TypedDict, total=False):
  p: float | None
  cutmix_p: float | None
  switch_prob: float
  until_steps: int | None


class _Config(TypedDict, total=False):
  """What this task reads in a config, besides its model."""

  class_names: list[str]
  loss: str
  augment: _Augment | None
  mixup: _Mixup | None
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
  pad: int = 0
  pad_value: float | tuple[float, ...] = 0.0  # in the units the model sees
  flip_lr: bool = False
  mixup_p: float = 0.0
  cutmix_p: float = 0.0
  switch_prob: float = 0.5
  mixup_until: int | None = None  # the step from which on nothing is mixed
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
    mixup = dict(config.get("mixup") or {})
    for key in mixup:
      errors.check_known("key in config.mixup:", key, MIXUP)
    shifts = dict(config.get("augment") or {})
    for key in shifts:
      errors.check_known("key in config.augment:", key, AUGMENT)
    if mixup.get("fold_in") is not None:
      raise ValueError(
        f"mixup.fold_in={mixup['fold_in']!r} is not supported: one mixing "
        "weight serves the whole batch. Set it to None."
      )
    return cls(
      model=model,
      loss=config.get("loss", "sigmoid_xent"),
      **shifts,
      mixup_p=mixup.get("p") or 0.0,
      cutmix_p=mixup.get("cutmix_p") or 0.0,
      switch_prob=mixup.get("switch_prob", 0.5),
      mixup_until=mixup.get("until_steps"),
      init_head_bias=config.get("init_head_bias"),
    )

  def init(self, rng, batch):
    variables = super().init(rng, batch)
    if self.init_head_bias is not None:
      head = variables["params"]["head"]
      head["bias"] = jnp.full_like(head["bias"], self.init_head_bias)
    return variables

  def at(self, step):
    if self.mixup_until is None:
      return self
    return dataclasses.replace(self, mixes=step < self.mixup_until)

  def augment(self, rng, batch):
    image = batch["image"]
    if self.pad or self.flip_lr:
      rng, shift_rng, flip_rng = jax.random.split(rng, 3)
      if self.pad:
        shift = augment.random_shift
        image = shift(shift_rng, image, self.pad, self.pad_value)
      if self.flip_lr:
        image = augment.random_flip_lr(flip_rng, image)
    mixed = mixing.mixup_or_cutmix(
      rng,
      image,
      batch["labels"],
      mixup_p=self.mixup_p,
      cutmix_p=self.cutmix_p,
      switch_prob=self.switch_prob,
    )
    own = image, batch["labels"]
    if self.mixes is not True:
      mixed = jax.tree.map(lambda x, y: jnp.where(self.mixes, x, y), mixed, own)
    return {**batch, "image": mixed[0], "labels": mixed[1]}

  def measure(self, variables, batch, *, rng=None):
    if rng is not None:
      augment_rng, rng = jax.random.split(rng)
      batch = self.augment(augment_rng, batch)
    (logits, _), state = self.apply(variables, batch["image"], rng)
    return {"loss": losses.get(self.loss)(logits, batch["labels"])}, state
