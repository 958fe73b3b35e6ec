"""Top-1 accuracy and loss of a classifier."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from dpn import errors, losses
from dpn.evaluators import mean


@dataclasses.dataclass(kw_only=True)
class Evaluator(mean.Evaluator):
  """Reports `prec@1`, in [0, 1], and `loss`.

  An example whose labels are all zero (as in ImageNet-ReaL) does not count;
  one with several labels counts as right when the top class is among them. As
  in big_vision, `prec@1` is the mean of the top class's label, so with smoothed
  labels (`on`, `off` of onehot) it is not the accuracy.
  """

  PRED: ClassVar[str] = "predict"

  loss_name: str = "sigmoid_xent"  # see `losses.get`
  label_key: str = "labels"  # (batch, classes), one-hot or several

  def __post_init__(self):
    losses.get(self.loss_name)
    super().__post_init__()

  def measure(self, variables, batch):
    logits, *_ = self.predict_fn(variables, batch)
    errors.check_known("label_key", self.label_key, batch)
    labels = batch[self.label_key]
    top = jnp.argmax(logits, axis=-1)[:, None]  # (batch, 1)
    return {
      "loss": losses.get(self.loss_name)(logits, labels),  # checks the shapes
      "prec@1": jnp.take_along_axis(labels, top, axis=-1)[:, 0],
      "_mask": labels.max(axis=-1) > 0,
    }
