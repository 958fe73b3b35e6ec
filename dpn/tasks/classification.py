"""Image classification with soft or hard labels."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn import cutmix, losses
from dpn.weights import model_options


@dataclasses.dataclass(frozen=True)
class Classification:
  """Cross entropy of a model's logits on `image` and `labels`.

  Attributes:
    model: returns (logits, out) for images.
    loss: name of one of `dpn.losses`.
    mixup_p: parameter of mixup's Beta distribution; 0 for no mixup.
    mixup_groups: see `mixup.mixup`.
    cutmix_p: parameter of cutmix's; 0 for no cutmix.
    switch_prob: probability of cutmix in a step, where both are on.
    init_head_bias: value the head's bias starts at; low values make the
      sigmoid loss start small when there are many classes.
  """

  model: nn.Module
  loss: str = "sigmoid_xent"
  mixup_p: float = 0.0
  mixup_groups: int = 1
  cutmix_p: float = 0.0
  switch_prob: float = 0.5
  init_head_bias: float | None = None

  def __post_init__(self):
    losses.get(self.loss)

  def init(self, rng, batch):
    for key in ("image", "labels"):
      if key not in batch:
        raise ValueError(
          f"The examples have {', '.join(sorted(batch))}, but no {key!r}. "
          "Let config.input.pp make it, and name it in keep(...); labels come "
          'from onehot(…, key="label", key_result="labels").'
        )
    variables = self.model.init(rng, batch["image"])
    if self.init_head_bias is not None:
      head = variables["params"]["head"]
      head["bias"] = jnp.full_like(head["bias"], self.init_head_bias)
    return variables

  def measure(self, variables, batch, *, rng=None):
    image, labels = batch["image"], batch["labels"]
    if rng is None:
      (logits, _), state = self.model.apply(variables, image), {}
    else:
      mixup_rng, model_rng = jax.random.split(rng)
      image, labels = self.mix(mixup_rng, image, labels)
      (logits, _), state = self.model.apply(
        variables,
        image,
        train=True,
        rngs={"dropout": model_rng},
        mutable=[name for name in variables if name != "params"],
      )
    return {"loss": losses.get(self.loss)(logits, labels)}, state

  def mix(
    self, rng: jax.Array, image: jax.Array, labels: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns a batch under mixup or cutmix, as training sees it."""
    return cutmix.mixup_or_cutmix(
      rng,
      image,
      labels,
      mixup_p=self.mixup_p,
      cutmix_p=self.cutmix_p,
      switch_prob=self.switch_prob,
      groups=self.mixup_groups,
    )

  def model_options(self) -> Mapping[str, Any]:
    """Returns what says which function the parameters compute, JSON-able."""
    return model_options.options(self.model)

  def predict_fns(self):
    return {"predict": self._predict, "loss": self._loss}

  def _predict(self, variables, batch) -> tuple[jax.Array, Mapping[str, Any]]:
    """Returns (logits, out)."""
    return self.model.apply(variables, batch["image"])

  def _loss(self, variables, batch) -> Mapping[str, jax.Array]:
    """Returns `measure` as in evaluation, {"loss": (batch,)}."""
    return self.measure(variables, batch)[0]
