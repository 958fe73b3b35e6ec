"""Reads the folders that trainers.train leaves behind."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors

from dpn import metrics, names


@dataclasses.dataclass(frozen=True)
class Run:
  """What one run wrote down.

  Attributes:
    path: its folder.
    config: as resolved when it started.
    rows: of metrics.jsonl, in the order of their steps.
    done: of done.json; None while the run is incomplete.
  """

  path: str
  config: Mapping[str, Any]
  rows: Sequence[Mapping[str, float]]
  done: Mapping[str, Any] | None

  def final(self, metric: str) -> float:
    """Returns the metric's value at the last step of a complete run."""
    if self.done is None:
      raise ValueError(f"{self.path} is incomplete: train it to its end first.")
    if metric not in self.done["metrics"]:
      raise ValueError(
        self._unknown("final metric", metric, self.done["metrics"])
      )
    return self.done["metrics"][metric]

  def series(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns (steps, values), (logged,) each."""
    pairs = [(row["step"], row[metric]) for row in self.rows if metric in row]
    if not pairs:
      known = {name for row in self.rows for name in row}
      raise ValueError(self._unknown("metric", metric, known))
    steps, values = zip(*pairs, strict=True)
    return np.array(steps), np.array(values)

  def param(self, name: str) -> np.ndarray:
    """Returns one trained parameter, its name joined by "/"."""
    path = os.path.join(self.path, "params.safetensors")
    if not os.path.exists(path):
      raise ValueError(f"{path} is missing: train the run to its end first.")
    with safetensors.safe_open(path, "numpy") as params:
      if name not in params.keys():  # noqa: SIM118, it is no mapping
        raise ValueError(self._unknown("parameter", name, params.keys()))
      return params.get_tensor(name)

  def _unknown(self, kind, got, known):
    return f"In {self.path}: {names.unknown(kind, got, known)}"


def read(path: str) -> Run:
  """Returns the run in a folder, complete or not.

  Raises:
    ValueError: the folder is not one of a run.
  """
  config = _read_json(os.path.join(path, "config.json"))
  if config is None:
    raise ValueError(
      f"{path} is not the folder of a run: it has no config.json. Give the "
      "--workdir of trainers.train."
    )
  rows = metrics.read(os.path.join(path, metrics.METRICS))
  return Run(path, config, rows, _read_json(os.path.join(path, "done.json")))


def read_all(root: str) -> list[Run]:
  """Returns the runs in the folders directly in `root`, by name.

  Raises:
    ValueError: there are none.
  """
  folders = sorted(os.listdir(root)) if os.path.isdir(root) else []
  paths = [os.path.join(root, name) for name in folders]
  found = [
    read(path)
    for path in paths
    if os.path.exists(os.path.join(path, "config.json"))
  ]
  if not found:
    raise ValueError(
      f"Found no run in {root}; expected folders with a config.json, as "
      "trainers.train makes them. Give the folder that holds the --workdirs."
    )
  return found


def _read_json(path):
  """Returns what a JSON file holds, None if there is no such file."""
  if not os.path.exists(path):
    return None
  with open(path) as f:
    try:
      return json.load(f)
    except json.JSONDecodeError as e:
      raise ValueError(f"{path} is damaged, expected JSON: {e}.") from e
