"""What a classifier's outputs mean: names of its classes, and its loss.

Runs have `class_names` and `loss` in their config.json, converted files both in
their metadata. transformers' config.json has `id2label` and `problem_type`,
timm's `label_names`.
"""

import dataclasses
import json
import os
from typing import Any, NamedTuple, TypedDict

from dpn import schema
from dpn.scripts.evaluation import checkpoints
from dpn.trainers import workdir
from dpn.weights import export, files

_KEY = "labels"  # in the metadata; has a run's class_names and loss
_TASK = "classification"
_MULTI_LABEL = "multi_label_classification"


class Labels(NamedTuple):
  """Names of classes, in order, and the loss; None if unknown."""

  names: list[str] | None = None
  loss: str | None = None


class _Ours(TypedDict, total=False):
  class_names: list[str] | None
  loss: str | None


def read(path: str, count: int) -> Labels:
  """Returns what is known of the classes of a checkpoint.

  Raises:
    ValueError: a run or a converted file has other than `count` names.
  """
  where = files.locate(path)
  said = files.read_metadata(where.path) if where.is_file else {}
  place, config = f"config.json of {path}", checkpoints.config_beside(path)
  if _KEY in said:
    place = f"{_KEY} in the metadata of {path}"
    config = schema.parse(place, said[_KEY], _Ours)
  if config.get("task", _TASK) != _TASK:
    return Labels()
  if config:
    schema.check(place, "", config, _Ours)
    names = config.get("class_names") or None
    if names and len(names) != count:
      raise ValueError(
        f"{place} has {len(names)} class_names, and the model {count} classes. "
        "Put right or remove the names."
      )
    return Labels(names, config.get("loss", "sigmoid_xent"))
  file = os.path.join(where.folder, workdir.CONFIG)
  # Our own files say what they know; a config.json beside them is of another.
  if "layout" in said or not os.path.isfile(file):
    return Labels()
  return _of_library(schema.read_json(file, dict[str, Any]), count)


def _of_library(config, count) -> Labels:
  known = config.get("id2label") or config.get("label_names")
  if isinstance(known, list):
    known = {str(i): name for i, name in enumerate(known)}
  numbers, names = [*map(str, range(count))], None
  if isinstance(known, dict) and known.keys() == {*numbers}:  # of this head
    names = [str(known[i]) for i in numbers]
  sigmoid = config.get("problem_type") == _MULTI_LABEL
  return Labels(names, "sigmoid_xent" if sigmoid else None)


def added(exported: export.Exported, labels: Labels, to: str):
  """Returns what to write for a library, with what is known of classes."""
  names, loss = labels
  if labels == Labels():
    return exported
  by_name = {name: i for i, name in enumerate(names or ())}
  by_id = {str(i): name for i, name in enumerate(names or ())}
  multi = _MULTI_LABEL if loss == "sigmoid_xent" else None
  hf = {"problem_type": multi, "id2label": by_id, "label2id": by_name}
  said = {"timm": {"label_names": names}, "hf": hf}.get(to, {})
  config = dict(exported.config)
  if said := {key: value for key, value in said.items() if value}:
    config[workdir.CONFIG] = {**config[workdir.CONFIG], **said}
  ours = {"class_names": names, "loss": loss}
  metadata = {**exported.metadata, _KEY: json.dumps(ours)}
  return dataclasses.replace(exported, metadata=metadata, config=config)
