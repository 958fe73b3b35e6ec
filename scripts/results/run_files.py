"""Reads the folders that trainers.train leaves behind, and archives of them."""

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
import pandas as pd
from absl import logging

from dpn import damage, metrics, schema
from dpn.scripts.results import arms, runs
from dpn.trainers import workdir
from dpn.weights import files

HELP = "run folders, folders of them, or archives (.jsonl)"


class Table(TypedDict, total=False):
  """config.table, see docs/tables.md; other keys are strings or numbers."""

  recipe: str
  arch: str
  arm: str
  metric: str
  also: list[str]
  candidate: str


class Config(TypedDict, total=False):
  """The part of config.json that reading results needs."""

  model: dict[str, Any] | None
  table: Table | None
  seed: int | None
  total_steps: int | float | None


class Start(TypedDict, total=False):
  """An entry of environment.json."""

  commit: str | None
  config_hash: str | None
  device_kind: str | None
  num_devices: int | None


class Archived(TypedDict):
  """A line of a file that `archive` made."""

  path: str
  config: Config
  logged: dict[str, dict[str, float]]
  done: files.Done | None
  origin: Start
  chosen: NotRequired[bool]
  diverged: NotRequired[bool]


class Choice(TypedDict):
  """What select_best chose for a cell."""

  candidate: str
  runs: list[str]


class Selection(TypedDict):
  """selection.json of a sweep."""

  cells: dict[str, Choice]


def read(path: str) -> runs.Run:
  """Returns the run in a folder, complete or not.

  Raises:
    ValueError: it is no run's folder, or one of its files is damaged.
  """
  file = functools.partial(os.path.join, path)
  config = _read_json(file("config.json"), Config)
  if config is None:
    raise ValueError(
      f"{path} is not the folder of a run: it has no config.json. Give the "
      "--workdir of trainers.train."
    )
  origin = {}
  for start in _read_json(file("environment.json"), list[Start]) or ():
    origin |= {key: value for key, value in start.items() if value}
  log = file(metrics.METRICS)
  logged = _read_rows(log)
  done = _read_json(file("done.json"), files.Done)
  expected = (done or {}).get("metrics_crc32")
  if expected and os.path.isfile(log) and expected != metrics.checksum(log):
    text = "%s is not as the run left it: a number in it may be another."
    logging.warning(text, log)
  return runs.Run(
    path,
    config,
    logged,
    done,
    origin,
    _read_rows(file(metrics.TIMING)),
    _read_json(file(workdir.TEST), dict[str, float]) or {},
    _summary(logged),
    _chosen(path),
    diverged=os.path.exists(file(workdir.DIVERGED)),
  )


def _read_rows(path):
  """Returns a .jsonl file by step; rows of the same step are joined."""
  rows, damaged = metrics.scan(path, any_order=True)
  if damaged:
    raise ValueError(
      f"{path} is damaged: {damaged[0][:80]!r}. Remove the damaged line, or "
      "train the run anew."
    )
  return runs.by_step(rows)


def _read_json(path, hint):
  """Returns what is in a file, None if there is no such file."""
  return schema.read_json(path, hint) if os.path.exists(path) else None


def _summary(logged):
  """Returns a log's summary, see `runs.Run.finals`; {} for an empty log."""
  found = logged.reindex(columns=["loss", "grad_norm/embedding", "l2_grads"])
  last = found.loss[found.index > 0.9 * found.index.max()]
  share = found["grad_norm/embedding"] / found["l2_grads"]
  values = {
    runs.TRAINING_LOSS: last.mean(),
    runs.EMBEDDING_SHARE: share.median(),
  }
  return {name: float(x) for name, x in values.items() if pd.notna(x)}


def _chosen(path):
  """Returns whether the selection beside a run names it, None without one."""
  sweep, name = os.path.split(os.path.abspath(path))
  selection = _read_json(os.path.join(sweep, "selection.json"), Selection)
  if selection is None:
    return None
  return any(name in choice["runs"] for choice in selection["cells"].values())


def find(roots: Sequence[str]) -> list[runs.Run]:
  """Returns all runs in or below some folders, each once; follows links.

  A root may also be a file that `archive` made.

  Raises:
    ValueError: one of the folders does not exist, or holds no run.
  """
  found, archived = {}, []
  for root in roots:
    if os.path.isfile(root):
      try:
        archived += _unarchived(root)
      except (ValueError, TypeError, KeyError) as e:
        raise ValueError(
          f"{root} is no archive of runs ({e}), as scripts.tables makes with "
          "--format archive."
        ) from e
      continue
    if not os.path.isdir(root):
      raise ValueError(f"{root} is not a folder. Give folders of runs.")
    paths = list(_folders(root))
    if not paths:
      raise ValueError(
        f"Found no run in {root}; expected folders with a config.json. Give "
        "the folder that holds the --workdirs of trainers.train."
      )
    for path in paths:
      found.setdefault(os.path.realpath(path), path)
  result = [read(path) for path in found.values()] + archived
  for run in result:
    with damage.reading(run.path):
      if not run.config or not run.cell:  # `cell` raises for a damaged config
        raise ValueError("its config is empty")
  return result


def _folders(root) -> Iterator[str]:
  """Yields the folders of runs in or below a folder, linked ones too.

  Links come last: a run that is also there without a link has the path without
  it. A folder that links lead back to, such as a parent, is not read twice.
  """
  links, seen = [root], set()
  for start in links:  # which grows
    for folder, inside, names in os.walk(start):
      real = os.path.realpath(folder)
      is_run = "config.json" in names
      if is_run and real not in seen:
        yield folder
      if is_run or real in seen:
        inside.clear()
      seen.add(real)
      inside.sort()
      below = [os.path.join(folder, name) for name in inside]
      links += filter(os.path.islink, below)


def archive(found: Sequence[runs.Run]) -> str:
  """Returns runs as lines of JSON, small enough to be kept with a page.

  `find` reads them back. Of its evaluators a config has the one of
  config.table.metric. Of the log, results of evaluators are kept as they are,
  training as means over tenths of a run, and gradients of blocks not at all
  (`figures.depth` says so). Where things were on a machine is left out: folders
  above the runs', `data_dir` and the command.
  """
  lines = []
  top = os.path.join(os.path.dirname(_common([r.path for r in found])), "")
  for run in found:
    config = _without(run.config, ("evals", "data_dir"))
    measures = arms.evaluator(run.config)
    if section := (run.config.get("evals") or {}).get(measures):
      config["evals"] = {measures: _without(section, ("data_dir",))}
    line = {
      "path": os.path.abspath(run.path),
      "config": config,
      "logged": {
        metric: {
          int(step): float(f"{x:.5g}") for step, x in values.dropna().items()
        }
        for logged in _shortened(run.logged)
        for metric, values in logged.items()
      },
      "done": None if run.done is None else {**run.done, "metrics": run.finals},
      "origin": {k: v for k, v in run.origin.items() if k != "command"},
    }
    if run.chosen is not None:
      line["chosen"] = run.chosen
    if run.diverged:
      line["diverged"] = True
    # Not only in "path": a run may start from the parameters of another, and
    # data are called "arrays:/top/x.npz".
    text = json.dumps(line)
    for before in '":' if len(top) > 1 else '"':
      text = text.replace(before + json.dumps(top)[1:-1], before)
    lines.append(text + "\n")
  return "".join(lines)


def _shortened(logged):
  """Returns two frames: means over tenths of training, and evaluations."""
  steps, names = logged.index.to_numpy(), logged.columns.str
  tenth = np.ceil(10 * steps / max(steps.max(initial=0), 1))
  of_block = names.match(r"grad_norm\w*/(?!embedding)")
  measured = names.contains("/") & ~names.startswith("grad_norm")
  means = logged.loc[:, ~of_block & ~measured].groupby(tenth).mean()
  means.index = pd.Series(steps).groupby(tenth).max()
  return means, logged.loc[:, measured]


def from_common(paths: Sequence[str]) -> list[str]:
  """Returns paths relative to the folder that holds all of them."""
  top = _common(paths)
  return [os.path.relpath(path, top) for path in paths]


def _common(paths):
  folders = [os.path.dirname(os.path.abspath(path)) for path in paths]
  return os.path.commonpath(folders) if folders else ""


def _without(config, keys):
  """Returns a config without these keys at any depth: mixtures have several."""
  if not isinstance(config, Mapping):
    return config
  kept = {k: v for k, v in config.items() if k not in keys}
  return {key: _without(value, keys) for key, value in kept.items()}


def _unarchived(path):
  """Returns the runs in a file that `archive` made."""
  found = []
  with open(path, "rb") as f:
    for i, text in enumerate(f, 1):
      line = schema.parse(f"line {i}", text, Archived)
      logged = pd.DataFrame(line.pop("logged"))
      logged.index = pd.Index(map(int, logged.index), name="step")
      found.append(runs.Run(**line, logged=logged.sort_index(), averaged=True))
  if not found:
    raise ValueError("it is empty")
  return found
