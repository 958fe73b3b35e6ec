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

_KEY = "labels"  # in the metadata
_TASK = "classification"
_MULTI_LABEL = "multi_label_classification"


class Labels(NamedTuple):
  """Names of classes, in order, and the loss; None if unknown."""

  names: list[str] | None = None
  loss: str | None = None


class _Ours(TypedDict, total=False):
  names: list[str] | None
  loss: str | None


def read(path: str, count: int) -> Labels:
  """Returns what is known of the classes of a checkpoint.

  Raises:
    ValueError: a run's config has other than `count` names.
  """
  where = files.locate(path)
  said = files.read_metadata(where.path) if where.is_file else {}
  if _KEY in said:
    return Labels(**schema.parse(f"{_KEY} in {path}", said[_KEY], _Ours))
  if config := checkpoints.config_beside(path):
    if config.get("task", _TASK) != _TASK:
      return Labels()
    names = config.get("class_names") or None
    place = f"config.json of {path}"
    schema.check(place, "class_names", names, list[str] | None)
    if names and len(names) != count:
      raise ValueError(
        f"{place} has {len(names)} class_names, and the model "
        f"{count} classes. Put right or remove the names."
      )
    return Labels(names, config.get("loss", "sigmoid_xent"))
  file = os.path.join(where.folder, workdir.CONFIG)
  if "layout" in said or not os.path.isfile(file):  # else it is a library's
    return Labels()
  config = schema.read_json(file, dict[str, Any])
  known = config.get("id2label") or config.get("label_names") or {}
  if isinstance(known, list):
    known = {str(i): name for i, name in enumerate(known)}
  numbers = [*map(str, range(count))]
  names = [str(known[i]) for i in numbers] if {*known} == {*numbers} else None
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
  metadata = {**exported.metadata, _KEY: json.dumps(labels._asdict())}
  return dataclasses.replace(exported, metadata=metadata, config=config)
