"""Reads the folders that trainers.train leaves behind."""

import dataclasses
import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dpn import errors, metrics
from scripts.results import configs
from trainers import workdir

UNKNOWN = "unknown"
BASE, DPN, OWN = "base", "dpn", "own"
ACCURACIES = ("val/prec@1", "test/prec@1", "minival/prec@1")
# Of timing.jsonl's column, for a run whose done.json is not there yet.
COSTS = {
  "images_per_sec": "median",
  "mfu": "median",
  "seconds": "sum",
  "core_hours": "max",
}


def _by_step(rows: Sequence[Mapping[str, float]] = ()) -> pd.DataFrame:
  """Returns a row per step, a column per metric."""
  frame = pd.DataFrame(rows or {"step": []})
  by_step = frame.astype({"step": int}).groupby("step").last()
  return by_step.astype(float)


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """What one run wrote down.

  Attributes:
    path: its folder.
    config: as resolved when it started.
    logged: metrics.jsonl: a row per step (the index), a column per metric.
    done: done.json; None while the run is incomplete.
    starts: environment.json: one mapping for each start of the run.
    timing: timing.jsonl, likewise by step.
    tested: test.json, what scripts.evaluate measured afterwards.
    chosen: whether selection.json of the sweep names the run; None without one.
  """

  path: str
  config: Mapping[str, Any]
  logged: pd.DataFrame = dataclasses.field(default_factory=_by_step)
  done: Mapping[str, Any] | None = None
  starts: Sequence[Mapping[str, Any]] = ()
  timing: pd.DataFrame = dataclasses.field(default_factory=_by_step)
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
    steps = [(self.done or {}).get("step", 0), *self.logged.index[-1:]]
    return int(max(steps))

  @property
  def status(self) -> str:
    """Returns "complete", or how far the run has come."""
    if self.complete:
      return "complete"
    total = self.config.get("total_steps")
    of = f" of {total:,}" if total else ""
    return f"incomplete, step {self.step:,}{of}"

  @property
  def commit(self) -> str:
    """Returns the commit of the last start, "unknown" if none is recorded."""
    return self._start("commit").get("commit", UNKNOWN)

  @property
  def config_hash(self) -> str:
    """Returns the recorded hash of the config, or that of config.json."""
    recorded = self._start("config_hash").get("config_hash")
    return recorded or workdir.config_hash(self.config)

  @property
  def device(self) -> str:
    """Returns what the run was last trained on."""
    start = self._start("device_kind")
    if not start:
      return UNKNOWN
    return f"{start.get('num_devices', 1)} × {start['device_kind']}"

  def _start(self, key):
    """Returns the last start that recorded `key`, {} if none did."""
    return next((s for s in reversed(self.starts) if s.get(key)), {})

  def cost(self, name: str) -> float:
    """Returns one of `COSTS`, mfu in [0, 1]; NaN if it was not recorded."""
    value = (self.done or {}).get(name)
    if value is None and name in self.timing:
      value = self.timing[name].agg(COSTS[name])
    return math.nan if value is None else float(value)

  @property
  def table(self) -> Mapping[str, Any]:
    """Returns `config.table`, see docs/tables.md; {} without it."""
    return self.config.get("table") or {}

  @property
  def trial(self) -> bool:
    """Whether this is a run of two steps (`runlocal`), which fills no cell."""
    return bool(self.table.get("runlocal"))

  @property
  def candidate(self) -> str | None:
    """Returns which candidate of a selection the run is, None if none."""
    return self.table.get("candidate")

  @functools.cached_property
  def cell(self) -> dict[str, Any]:
    """Returns the run's place in tables: recipe, arch, arm and further keys.

    `config.table` names it, except for the arm, which config.model knows
    better if a flag has changed it. A run without config.table has the recipe
    "own" and, as arch, a hash of all that may not differ within a row.
    """
    if self.trial:
      return {"recipe": "runlocal", "arch": "", "arm": ""}
    model = self.config.get("model") or {}
    table = {"recipe": OWN, "arch": "", "arm": BASE}
    table |= self.table or {"arch": configs.row_hash(self.config)}
    if {"stem_ln", "block_ln", "block_ln_kw"} & model.keys():
      table["arm"] = configs.arm(model) or BASE
    skipped = ("candidate", "metric")
    return {k: v for k, v in table.items() if k not in skipped}

  @property
  def title(self) -> str:
    """Returns recipe, model and what else tells rows apart, but not the arm."""
    named = dict(self.cell)
    parts = [named.pop("recipe"), named.pop("arch")]
    named.pop("arm")
    parts += [
      f"{key.replace('_', ' ')} {value}" if isinstance(value, int) else value
      for key, value in sorted(named.items())
    ]
    return " ".join(str(part) for part in parts if part)

  @property
  def headline(self) -> tuple[str, ...]:
    """Returns the metrics that are the run's result.

    The one that config.table names, else the first of `ACCURACIES`, else
    all that evaluators measured, else the training loss.
    """
    if "metric" in self.table:
      return (self.table["metric"],)
    known = self.finals if self.complete else self.logged.columns
    accuracies = [metric for metric in ACCURACIES if metric in known]
    measured = [m for m in known if "/" in m and not m.startswith("grad_norm/")]
    return tuple(accuracies[:1] or measured or ("loss",))

  @property
  def finals(self) -> Mapping[str, float]:
    """Returns the metrics of the last step of a complete run, and `tested`."""
    if self.done is None:
      raise ValueError(f"{self.path} is incomplete: train it to its end first.")
    last = self.done.get("metrics")
    if not last and len(self.logged):
      last = self.logged.iloc[-1].dropna()
    last = {**(last if last is not None else {}), **self.tested}
    return {name: value for name, value in last.items() if name != "step"}

  def final(self, metric: str) -> float:
    """Returns the metric's value at the last step of a complete run."""
    if metric not in self.finals:
      raise ValueError(self._unknown("final metric", metric, self.finals))
    return self.finals[metric]

  def series(self, metric: str) -> pd.Series:
    """Returns the logged values of a metric by step."""
    if metric not in self.logged:
      raise ValueError(self._unknown("metric", metric, self.logged))
    return self.logged[metric].dropna()

  def _unknown(self, kind, got, known):
    return f"In {self.path}: {errors.unknown(kind, got, known)}"


def frame(found: Sequence[Run]) -> pd.DataFrame:
  """Returns a row for each run, its final metrics (if complete) as columns.

  The other columns: `run` (the `Run` itself), the keys of `Run.cell`, its
  `COSTS`, title, path, seed, step, complete, status, trial, candidate, device,
  commit and config_hash.
  """
  plain = (
    "title", "path", "seed", "step", "complete", "status", "trial",
    "candidate", "device", "commit", "config_hash",
  )  # fmt: skip
  return pd.DataFrame(
    (run.finals if run.complete else {})
    | run.cell
    | {name: run.cost(name) for name in COSTS}
    | {name: getattr(run, name) for name in plain}
    | {"run": run}
    for run in found
  )


def long(found: Sequence[Run]) -> pd.DataFrame:
  """Returns a row for each number that the runs logged."""
  cell = ["run", "recipe", "arch", "arm", "seed"]
  code = ["commit", "config_hash", "complete"]
  numbers = pd.concat(
    {run.path: run.logged.stack().dropna() for run in found},
    names=["run", "step", "metric"],
  )
  facts = frame(found).drop(columns="run").rename(columns={"path": "run"})
  table = numbers.rename("value").reset_index().merge(facts[cell + code])
  return table[[*cell, "step", "metric", "value", *code]]


def read(path: str) -> Run:
  """Returns the run in a folder, complete or not.

  Raises:
    ValueError: it is no run's folder, or one of its files is damaged.
  """
  file = functools.partial(os.path.join, path)
  config = _read_json(file("config.json"))
  if config is None:
    raise ValueError(
      f"{path} is not the folder of a run: it has no config.json. Give the "
      "--workdir of trainers.train."
    )
  for name, kind in _CONFIG.items():
    _check(file("config.json"), name, config.get(name), kind)
  done = _read_json(file("done.json"))
  tested = _read_json(file("test.json")) or {}
  _check(file("done.json"), "metrics", (done or {}).get("metrics"), dict)
  for name, value in {**((done or {}).get("metrics") or {}), **tested}.items():
    _check(file("done.json or test.json"), name, value, int | float)
  return Run(
    path,
    config,
    _read_rows(file(metrics.METRICS)),
    done,
    _read_json(file("environment.json"), list) or (),
    _read_rows(file(metrics.TIMING)),
    tested,
    _chosen(path),
  )


_CONFIG = {"seed": int, "model": dict, "input": dict, "table": dict}
_KINDS = {int: "an integer", dict: "an object", list: "a list"}


def _check(file, name, value, kind):
  """Raises if a field that results are told apart by is of another type."""
  if value is not None and not isinstance(value, kind):
    raise ValueError(
      f"{file}: {name!r} is {value!r}, expected {_KINDS.get(kind, 'a number')}."
      " Is it a file of trainers.train?"
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
    ValueError: one of the folders does not exist, or holds no run.
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
      raise ValueError(
        f"Found no run in {root}; expected folders with a config.json, as "
        "trainers.train makes them. Give the folder that holds the --workdirs."
      )
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


def _read_rows(path):
  """Returns a .jsonl file by step; rows of the same step are joined."""
  try:
    rows = metrics.read(path)
    if not all(isinstance(row.get("step"), int) for row in rows):
      raise ValueError('expected "step" in every line')
    return _by_step(rows)
  except (ValueError, AttributeError) as e:
    raise ValueError(
      f"{path} is damaged: {e}. Remove the damaged line, or train the run anew."
    ) from e


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
      f"{path} holds {json.dumps(data)[:40]}, expected {_KINDS[kind]}."
    )
  return data
