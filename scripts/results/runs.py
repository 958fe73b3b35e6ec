"""Runs of trainers.train, and the data frame that results are made from."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dpn import errors
from dpn.scripts.results import arms
from dpn.trainers import workdir

UNKNOWN = "unknown"
BASE, DPN, OWN = arms.BASE, "dpn", "own"
ACCURACIES = ("val/prec@1", "test/prec@1", "minival/prec@1")
TRAINING_LOSS = "training/loss_last_tenth"
EMBEDDING_SHARE = "training/embedding_grad_share"
SUMMARIES = (TRAINING_LOSS, EMBEDDING_SHARE)
# How to sum up columns of timing.jsonl for a run that has no done.json yet.
COSTS = {
  "images_per_sec": "median",
  "mfu": "median",
  "peak_memory_gb": "median",
  "seconds": lambda column: column.sum(min_count=1),
  "core_hours": "max",
}


def by_step(rows: Sequence[Mapping[str, float]] = ()) -> pd.DataFrame:
  """Returns a row per step, a column per metric."""
  frame = pd.DataFrame(rows or {"step": []}).astype({"step": int})
  return frame.groupby("step").last().astype(float)


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """What one run wrote down.

  Attributes:
    path: its folder; for an archived run the name that it had, see `folder`.
    config: as resolved when it started.
    logged: metrics.jsonl: a row per step (the index), a column per metric.
    done: done.json; None while the run is incomplete.
    origin: environment.json: each field as a start of the run last recorded it.
    timing: timing.jsonl, likewise by step.
    tested: test.json, what scripts.evaluate measured afterwards.
    summary: sums up the log, see `finals`; an archive has it in `done`.
    chosen: whether selection.json of the sweep names the run; None without one.
    averaged: whether `logged` has means over tenths of the training, as in an
      archive; then it says nothing about single steps.
    diverged: whether it ended at a loss that was not finite.
    arm: its name beside the other runs of a `frame`.
  """

  path: str
  config: Mapping[str, Any]
  logged: pd.DataFrame = dataclasses.field(default_factory=by_step)
  done: Mapping[str, Any] | None = None
  origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  timing: pd.DataFrame = dataclasses.field(default_factory=by_step)
  tested: Mapping[str, float] = dataclasses.field(default_factory=dict)
  summary: Mapping[str, float] = dataclasses.field(default_factory=dict)
  chosen: bool | None = None
  averaged: bool = False
  diverged: bool = False
  arm: str | None = None

  @property
  def folder(self) -> str | None:
    """The folder of its files; None for an archived run.

    Whatever is at the path of an archived run may be somebody else's.
    """
    return None if self.averaged else self.path

  @property
  def complete(self) -> bool:
    return self.done is not None

  @property
  def table(self) -> Mapping[str, Any]:
    """Returns `config.table`, see docs/tables.md; {} without it."""
    return self.config.get("table") or {}

  @property
  def trial(self) -> bool:
    """Whether it is a run of two steps (`runlocal`)."""
    return bool(self.table.get("runlocal"))

  @functools.cached_property
  def cell(self) -> dict[str, Any]:
    """Returns the run's place in tables: recipe, arch, arm and further keys.

    `config.table` names it, except for the arm, which config.model knows
    better if a flag has changed it; what the table adds to the model's name
    with a "_" stays, as "none_standardized", of pixels. A run whose table has
    neither recipe nor arch has the recipe "own" and, as arch, a hash of what
    must not differ within a row. A run of two steps (`runlocal`) fills no cell.
    """
    if self.trial:
      return {"recipe": "runlocal", "arch": "", "arm": ""}
    model = arms.image_model(self.config)
    table = {"recipe": OWN, "arch": "", "arm": BASE}
    if not {"recipe", "arch"} & self.table.keys():
      table["arch"] = arms.row_hash(self.config)
    table |= self.table
    known = arms.model_name(model)
    more = str(table["arm"]).startswith(f"{known or 'none'}_")
    if self.arm or (arms.says_arm(model) and not more):
      table["arm"] = self.arm or known or BASE
    skipped = ("candidate", "metric", "also")
    return {k: v for k, v in table.items() if k not in skipped}

  @property
  def title(self) -> str:
    """Returns recipe, model and what else tells rows apart, but not the arm."""
    parts = [self.cell["recipe"], self.cell["arch"]]
    for key in sorted(self.cell.keys() - {"recipe", "arch", "arm"}):
      name, value = key.replace("_", " "), self.cell[key]
      parts.append(f"{name} {value}" if str(value)[:1].isdigit() else value)
    return " ".join(str(part) for part in parts if part)

  @property
  def headline(self) -> tuple[str, ...]:
    """Returns the metrics that are the run's result.

    Those that config.table names, else the first of `ACCURACIES`, else all
    that evaluators measured, else the training loss.
    """
    if "metric" in self.table:
      return (self.table["metric"], *self.table.get("also", ()))
    known = self.finals if self.complete else self.logged.columns
    accuracies = [metric for metric in ACCURACIES if metric in known]
    measured = [
      m
      for m in known
      if "/" in m and not m.startswith("grad_norm") and m not in SUMMARIES
    ]
    return tuple(accuracies[:1] or measured or ("loss",))

  @functools.cached_property
  def finals(self) -> Mapping[str, float]:
    """Returns the last step's metrics and `tested`; {} of an incomplete run.

    Also two that sum up the log: `TRAINING_LOSS`, the mean over the last tenth
    of the steps, and `EMBEDDING_SHARE`, the median over all of the norm of the
    embedding's gradient over that of the whole gradient, before clipping.
    """
    if not self.complete:
      return {}
    last = self.done.get("metrics")
    if not last and len(self.logged):
      last = self.logged.iloc[-1].dropna().to_dict()
    last = {**self.summary, **(last or {}), **self.tested}
    return {name: value for name, value in last.items() if name != "step"}

  def at_epoch(self, epoch: int) -> "Run | None":
    """Returns a complete run as it was evaluated near an earlier epoch.

    `config.table.epochs` is how many the run has, and in the result `epoch`.
    None if nothing was evaluated within a hundredth of the steps until then.
    """
    step = (self.done or {}).get("step")
    if not step:
      return None
    wanted = step * epoch / self.table["epochs"]
    known = self.logged.reindex(columns=self.headline[:1]).dropna()
    near = known.index[abs(known.index - wanted) <= wanted / 100]
    if not len(near):
      return None
    last = min(near, key=lambda step: abs(step - wanted))
    config = {**self.config, "table": {**self.table, "epochs": epoch}}
    done = {k: v for k, v in self.done.items() if k == "extended_at"}
    done |= {
      "step": int(last),
      "metrics": self.logged.loc[last].dropna().to_dict(),
    }
    return dataclasses.replace(
      self, config=config, done=done, tested={}, summary={}
    )

  def final(self, metric: str) -> float:
    """Returns the metric's value at the last step of a complete run."""
    return self._known("final metric", metric, self.finals)

  def series(self, metric: str) -> pd.Series:
    """Returns the logged values of a metric by step."""
    return self._known("metric", metric, self.logged).dropna()

  def _known(self, kind, name, values):
    if name not in values:
      message = errors.unknown(kind, name, values)
      raise ValueError(f"In {self.path}: {message}")
    return values[name]


def frame(found: Sequence[Run]) -> pd.DataFrame:
  """Returns a row for each run, its final metrics (if complete) as columns.

  The other columns: `run` (the `Run` itself), the keys of `Run.cell`, and
  those of `_facts`. Runs without config.table are named after the few fields
  that tell them apart, an arm after all that its config changes, see `arms`.
  """
  if not found:  # the columns that any run has
    return frame([Run("", {})])[:0]
  named = _named([dataclasses.replace(run, arm=None) for run in found])
  return pd.DataFrame(
    {**run.finals, **run.cell, **_facts(run), "title": title}
    for run, title in named
  )


def _named(found):
  """Returns runs with the names of their arms, each with its row's title."""
  titles, names = _titles(found), [run.cell["arm"] for run in found]
  for title in dict.fromkeys(titles):
    row = [
      i
      for i, run in enumerate(found)
      if titles[i] == title and not run.trial and "candidate" not in run.table
    ]
    configs, called = [found[i].config for i in row], [names[i] for i in row]
    called = arms.within_row(configs, called, no_plain=title == OWN)
    for i, name in zip(row, called, strict=True):
      names[i] = name
  return [
    (run if run.trial else dataclasses.replace(run, arm=name), title)
    for run, name, title in zip(found, names, titles, strict=True)
  ]


def _titles(found):
  """Returns the titles of runs' rows.

  Runs without config.table are told apart by the few fields in which they
  differ. If these fields are settings, and the runs do not all have the same
  arms, the runs are arms of one row: with mixup and without.
  """
  own, arms_of = {}, {}
  for run in found:
    if run.cell["recipe"] == OWN:
      own[run.title] = run.config
      arms_of.setdefault(run.title, set()).add(run.cell["arm"])
  called, differ = {}, arms.told_apart(own) if len(own) > 1 else {}
  if len(differ) and len(differ.columns):
    first, *others = arms_of.values()
    crossed = len(first) > 1 and all(names == first for names in others)
    if arms.are_settings(differ) and not crossed:
      called = dict.fromkeys(own, OWN)
    else:
      called = {
        title: ", ".join(f"{k.replace('/', '.')} = {v}" for k, v in row.items())
        for title, row in differ.iterrows()
      }
      called = {title: f"{OWN}, {words}" for title, words in called.items()}
  return [called.get(run.title, run.title) for run in found]


def _facts(run):
  """Returns what is known of a run besides its results.

  `COSTS` are NaN where they were not recorded, other facts "unknown"; mfu is in
  [0, 1]. `step` is the last on record.
  """
  done, origin, config = run.done or {}, run.origin, run.config
  costs = run.timing.reindex(columns=list(COSTS)).agg(COSTS).to_dict()
  costs |= {name: done[name] for name in COSTS if done.get(name) is not None}
  step = int(max(done.get("step", 0), *run.logged.index[-1:], 0))
  total, device = config.get("total_steps"), origin.get("device_kind")
  count = origin.get("num_devices", 1)
  state = "diverged" if run.diverged else "incomplete"
  status = f"{state}, step {step:,}" + (f" of {total:,}" if total else "")
  return {
    "run": run,
    "path": run.path,
    "seed": config.get("seed", 0),
    "step": step,
    "complete": run.complete,
    "status": "complete" if run.complete else status,
    "trial": run.trial,
    "candidate": run.table.get("candidate"),
    "device": f"{count} × {device}" if device else UNKNOWN,
    "commit": origin.get("commit", UNKNOWN),
    "config_hash": origin.get("config_hash") or workdir.config_hash(config),
    **costs,
  }


def long(found: pd.DataFrame) -> pd.DataFrame:
  """Returns a row for each number of a `frame`'s runs, logged or final."""
  cell = ["run", "recipe", "arch", "arm", "seed"]
  code = ["commit", "config_hash", "complete"]
  numbers = {}
  for i, run in found.run.items():
    final = by_step([{**run.finals, "step": found.step[i]}])
    final = final.drop(columns=[*SUMMARIES], errors="ignore")
    numbers[i] = final.combine_first(run.logged).stack().dropna()
  numbers = pd.concat(numbers, names=["place", "step", "metric"])
  facts = found.drop(columns="run").rename(columns={"path": "run"})
  # By place: runs of two archives may have the same path.
  table = (
    numbers.rename("value").reset_index().join(facts[cell + code], on="place")
  )
  return table[[*cell, "step", "metric", "value", *code]]
