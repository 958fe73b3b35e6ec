"""Tasks: what a run learns. `make` builds the one a config asks for."""

from collections.abc import Mapping
from typing import Any

from dpn import registry
from dpn.tasks import base, classification, contrastive, segmentation

TASKS = {
  "classification": classification.Classification,
  "contrastive": contrastive.Contrastive,
  "segmentation": segmentation.Segmentation,
}


def find(config: Mapping[str, Any]) -> type[base.Task]:
  """Returns the class that `config.task` gives, by name or import path."""
  name = config.get("task", "classification")
  found = registry.lookup("task", name, TASKS)
  if not (isinstance(found, type) and issubclass(found, base.Task)):
    raise ValueError(
      f"task={name!r} is {found!r}. It must be a class that derives from "
      "dpn.tasks.base.Task."
    )
  return found


def make(config: Mapping[str, Any]) -> base.Task:
  """Returns the task of a config, see `base.Task.from_config`."""
  return find(config).from_config(config)


def model_options(config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the options of a config's model, see `base.Task.model_options`."""
  return make(config).model_options()
