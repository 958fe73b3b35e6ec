"""What a classifier's outputs mean, in config.json of ours and of libraries.

A run's, and that of a converted folder, has `class_names` and `loss`; that of
transformers `id2label` and `problem_type`; timm's `label_names`.
"""

import os
from typing import NamedTuple, TypedDict

from dpn import schema
from dpn.trainers import workdir
from dpn.weights import files

_TASK = "classification"
_NAMES = ("class_names", "id2label", "label_names")
_MULTI_LABEL = "multi_label_classification"


class Labels(NamedTuple):
  """Names of classes, in order, and the loss; None if unknown."""

  names: list[str] | None = None
  loss: str | None = None


class _Config(TypedDict, total=False):
  task: str
  loss: str | None
  problem_type: str | None
  class_names: list[str] | None
  id2label: dict[str, str] | None
  label_names: dict[str, str] | list[str] | None


def read(path: str, count: int) -> Labels:
  """Returns what is known of the classes of a checkpoint.

  Raises:
    ValueError: the config beside it names others than `count` classes.
  """
  file = os.path.join(files.locate(path).folder, workdir.CONFIG)
  config = schema.read_json(file, _Config) if os.path.isfile(file) else {}
  if config.get("task", _TASK) != _TASK:
    return Labels()
  sigmoid = "input" in config or config.get("problem_type") == _MULTI_LABEL
  loss = config.get("loss", "sigmoid_xent" if sigmoid else None)
  for key in _NAMES:
    if known := config.get(key):
      numbers = {str(i): i for i in range(count)}
      if isinstance(known, list):
        known = {str(i): name for i, name in enumerate(known)}
      elif known.keys() < numbers.keys():  # timm's may have gaps
        known = numbers | known
      if known.keys() != numbers.keys():
        raise ValueError(
          f"{file} has {len(known)} names in {key!r}, and the model {count} "
          "classes. Put right or remove the names."
        )
      return Labels([str(known[i]) for i in numbers], loss)
  return Labels(loss=loss)


def for_library(labels: Labels, to: str) -> dict[str, object]:
  """Returns fields of the config.json of a library, or of ours."""
  names, loss = labels
  sigmoid = {"problem_type": _MULTI_LABEL} if loss == "sigmoid_xent" else {}
  by_id = {str(i): name for i, name in enumerate(names or ())}
  by_name = {name: int(i) for i, name in by_id.items()}
  said = {
    "ours": {"class_names": names, "loss": loss},
    "timm": {"label_names": names},
    "hf": {**sigmoid, "id2label": by_id, "label2id": by_name},
  }
  return {key: value for key, value in said.get(to, {}).items() if value}
