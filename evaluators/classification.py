"""Top-1 accuracy and loss of a classifier."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dpn import errors, losses
from dpn.tasks import base
from evaluators import mean


class Evaluator(mean.Evaluator):
  """Reports `prec@1`, in [0, 1], and `loss`.

  An example whose labels are all zero (as in ImageNet-ReaL) does not count;
  one with several labels counts as right when the top class is among them.
  """

  PRED = "predict"

  def __init__(
    self,
    predict_fn: Callable[[base.Variables, base.Batch], Any],
    *,
    mesh: jax.sharding.Mesh,
    batch_size: int,
    data: Mapping[str, Any],
    pp_fn: str,
    loss_name: str = "sigmoid_xent",
    label_key: str = "labels",
    cache_final: bool = False,
  ):
    """Prepares the evaluation; see `mean.Evaluator` for what is not here.

    Args:
      predict_fn: (variables, batch) → (logits (batch, classes), …).
      mesh: the devices.
      batch_size: images at a time, over all devices.
      data: the data set.
      pp_fn: preprocessing, which must leave `image` and one-hot labels.
      loss_name: one of `dpn.losses`.
      label_key: of the one-hot labels (batch, classes).
      cache_final: keep the preprocessed data set in memory.
    """
    loss_fn = losses.get(loss_name)

    def measure(variables, batch):
      logits, *_ = predict_fn(variables, batch)
      if label_key not in batch:
        raise ValueError(errors.unknown("label_key", label_key, batch))
      labels = batch[label_key]
      top = jnp.argmax(logits, axis=-1)[:, None]  # (batch, 1)
      return {
        "prec@1": jnp.take_along_axis(labels, top, axis=-1)[:, 0],
        "loss": loss_fn(logits, labels),
        "_mask": batch["_mask"] & (labels.max(axis=-1) > 0),
      }

    super().__init__(
      measure,
      mesh=mesh,
      batch_size=batch_size,
      data=data,
      pp_fn=pp_fn,
      cache_final=cache_final,
    )
