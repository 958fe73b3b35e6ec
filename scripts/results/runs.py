"""Reads the folders that trainers.train leaves behind."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors

from dpn import errors, metrics
from trainers import workdir

UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True)
class Run:
  """What one run wrote down.

  Attributes:
    path: its folder.
    config: as resolved when it started.
    rows: of metrics.jsonl, in the order of their steps.
    done: of done.json; None while the run is incomplete.
    starts: of environment.json, one mapping for each start of the run; empty
      where there is no such file.
    timing: rows of timing.jsonl, likewise.
    tested: what scripts.evaluate measured afterwards, of test.json.
    chosen: whether selection.json of the sweep names the run; None without one.
  """

  path: str
  config: Mapping[str, Any]
  rows: Sequence[Mapping[str, float]]
  done: Mapping[str, Any] | None
  starts: Sequence[Mapping[str, Any]] = ()
  timing: Sequence[Mapping[str, float]] = ()
  tested: Mapping[str, float] = dataclasses.field(default_factory=dict)
  chosen: bool | None = None

  @property
  def complete(self) -> bool:
    return self.done is not None

  @property
  def seed(self) -> int:
    return self.config.get("seed", 0)

  @property
  def step(self) -> int:
    """Returns the last step on record, 0 if there is none."""
    done = (self.done or {}).get("step")
    return done or (self.rows[-1]["step"] if self.rows else 0)

  @property
  def status(self) -> str:
    """Returns "complete", or how far the run has come."""
    if self.complete:
      return "complete"
    total = self.config.get("total_steps")
    return f"incomplete, step {self.step:,}" + (
      f" of {total:,}" if total else ""
    )

  @property
  def commit(self) -> str:
    """Returns the commit of the last start, "unknown" if none is recorded."""
    commits = [start["commit"] for start in self.starts if start.get("commit")]
    return commits[-1] if commits else UNKNOWN

  @property
  def config_hash(self) -> str:
    """Returns the recorded hash of the config, or one of config.json."""
    for start in reversed(self.starts):
      if start.get("config_hash"):
        return start["config_hash"]
    return workdir.config_hash(self.config)

  @property
  def device(self) -> str:
    """Returns what the run was trained on, as of its last start."""
    for start in reversed(self.starts):
      if start.get("device_kind"):
        return f"{start.get('num_devices', 1)} × {start['device_kind']}"
    return UNKNOWN

  def timed(self, done_key: str, timing_key: str, last=False) -> float | None:
    """Returns a figure of the run's speed, None if it recorded none.

    Args:
      done_key: its name in done.json, which goes first.
      timing_key: its name in timing.jsonl.
      last: take the last row there instead of the median.
    """
    if (self.done or {}).get(done_key) is not None:
      return self.done[done_key]
    values = [row[timing_key] for row in self.timing if timing_key in row]
    if not values:
      return None
    return values[-1] if last else float(np.median(values))

  @property
  def finals(self) -> Mapping[str, float]:
    """Returns the metrics of the last step of a complete run, and `tested`."""
    if self.done is None:
      raise ValueError(f"{self.path} is incomplete: train it to its end first.")
    last = self.done.get("metrics") or self._last_row()
    return {k: v for k, v in {**last, **self.tested}.items() if k != "step"}

  def _last_row(self):
    """Returns all that was logged at the last step."""
    rows = [row for row in self.rows if row["step"] == self.rows[-1]["step"]]
    return {name: value for row in rows for name, value in row.items()}

  def final(self, metric: str) -> float:
    """Returns the metric's value at the last step of a complete run."""
    if metric not in self.finals:
      raise ValueError(self._unknown("final metric", metric, self.finals))
    value = self.finals[metric]
    if not isinstance(value, int | float):
      raise ValueError(
        f"In {self.path}: {metric} is {value!r}, expected a number. Check what "
        "wrote done.json there."
      )
    return value

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
    return f"In {self.path}: {errors.unknown(kind, got, known)}"


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
  _check(path, config)
  return Run(
    path,
    config,
    _read_rows(os.path.join(path, metrics.METRICS)),
    _read_json(os.path.join(path, "done.json")),
    _read_json(os.path.join(path, "environment.json"), list) or (),
    _read_rows(os.path.join(path, metrics.TIMING)),
    _read_json(os.path.join(path, "test.json")) or {},
    _chosen(path),
  )


def _check(path, config):
  """Raises if a field that tells runs apart is of another kind."""
  kinds = {"seed": int, "model": dict, "input": dict, "table": dict}
  for name, kind in kinds.items():
    value = config.get(name)
    if value is not None and not isinstance(value, kind):
      what = "an integer" if kind is int else "an object"
      raise ValueError(
        f"{os.path.join(path, 'config.json')}: {name!r} is {value!r}, expected "
        f"{what}. Is it the config of a run of trainers.train?"
      )


def _chosen(path):
  """Returns whether the selection beside a run names it, None without one."""
  sweep, name = os.path.split(os.path.abspath(path))
  selection = _read_json(os.path.join(sweep, "selection.json"))
  if selection is None:
    return None
  return any(name in choice["runs"] for choice in selection["cells"].values())


def find(roots: Sequence[str]) -> list[Run]:
  """Returns all runs in or below some folders, each once.

  Raises:
    ValueError: one of the folders is none, or holds no run.
  """
  found = {}
  for root in roots:
    if not os.path.isdir(root):
      raise ValueError(
        f"{root} is not a folder. Give folders of runs, as scripts.sweep or "
        "trainers.train make them."
      )
    paths = list(_below(root))
    if not paths:
      raise ValueError(_none_in(root))
    for path in paths:
      found.setdefault(os.path.realpath(path), path)
  return [read(path) for path in found.values()]


def _below(root):
  """Yields the run folders in or below a folder, in order."""
  for folder, inside, files in os.walk(root):
    inside.sort()
    if "config.json" in files:
      inside.clear()
      yield folder


def _none_in(root):
  return (
    f"Found no run in {root}; expected folders with a config.json, as "
    "trainers.train makes them. Give the folder that holds the --workdirs."
  )


def _read_rows(path):
  """Returns the objects of metrics.jsonl, less a last line cut by a kill."""
  rows = []
  lines = []
  if os.path.exists(path):
    with open(path, encoding="utf-8", errors="replace") as f:
      lines = f.read().splitlines()
  for number, line in enumerate(lines, 1):
    try:
      row = json.loads(line)
      rows.append(row | {"step": int(row["step"])})
    except (ValueError, TypeError, KeyError) as e:
      if number < len(lines):
        raise ValueError(
          f"{path}, line {number} is damaged: expected an object with "
          f'"step", got {line[:40]!r}. Remove the line, or train the run anew.'
        ) from e
  return rows


def _read_json(path, kind=dict):
  """Returns the dict or list in a file, None if there is no such file."""
  if not os.path.exists(path):
    return None
  with open(path, encoding="utf-8") as f:
    try:
      data = json.load(f)
    except ValueError as e:
      raise ValueError(f"{path} is damaged, expected JSON: {e}.") from e
  if not isinstance(data, kind):
    raise ValueError(
      f"{path} holds {json.dumps(data)[:40]}, expected "
      f"{'an object' if kind is dict else 'a list'}."
    )
  return data
