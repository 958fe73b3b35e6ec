"""Tasks: what a run learns. `make` builds the one a config asks for."""

from collections.abc import Mapping
from typing import Any

from dpn import errors
from dpn.models import vit
from dpn.tasks import base, classification

MODELS = {"vit": vit.Model}


def make(config: Mapping[str, Any], *, batch_shards: int = 1) -> base.Task:
  """Returns the task of a config.

  Args:
    config: reads task, model_name, model, num_classes, loss, mixup and
      init_head_bias.
    batch_shards: over how many devices the batch is split, for mixup within
      each device (`mixup.scope="device"`).

  Raises:
    ValueError: a name or value is unknown.
  """
  task = config.get("task", "classification")
  if task not in TASKS:
    raise ValueError(errors.unknown("task", task, TASKS))
  return TASKS[task](config, batch_shards)


def _classification(config, batch_shards):
  model_name = config.get("model_name", "vit")
  if model_name not in MODELS:
    raise ValueError(errors.unknown("model_name", model_name, MODELS))
  if not config.get("num_classes"):
    raise ValueError(
      "config.num_classes is missing; set it to the number of classes, the "
      "same as in the onehot op of config.input.pp."
    )
  mixup = dict(config.get("mixup") or {})
  scopes = {"global": 1, "device": batch_shards}
  scope = mixup.get("scope", "global")
  if scope not in scopes:
    raise ValueError(errors.unknown("mixup.scope", scope, scopes))
  if mixup.get("fold_in") is not None:
    raise ValueError(
      f"mixup.fold_in={mixup['fold_in']!r} is not supported: one mixing "
      "weight serves the whole batch. Set it to None."
    )
  return classification.Classification(
    model=MODELS[model_name](
      config["num_classes"], **dict(config.get("model") or {})
    ),
    loss=config.get("loss", "sigmoid_xent"),
    mixup_p=mixup.get("p") or 0.0,
    mixup_groups=scopes[scope],
    cutmix_p=mixup.get("cutmix_p") or 0.0,
    switch_prob=mixup.get("switch_prob", 0.5),
    init_head_bias=config.get("init_head_bias"),
  )


TASKS = {"classification": _classification}
