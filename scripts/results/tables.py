"""Lays results out as the paper's tables, beside what the paper reports."""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from scripts.results import aggregate, runs, table_specs
from scripts.results.table_specs import Place

NOT_PUBLISHED = "–"
Arms = Mapping[Place, aggregate.Arm]


@dataclasses.dataclass(frozen=True)
class Table:
  """A table to be written in whatever format.

  The first `keys` columns of `frame` hold text, the others `Estimate`s or
  words. `filled` says whether any cell holds a result of a run.
  """

  name: str
  title: str
  frame: pd.DataFrame
  keys: int
  notes: Sequence[str]
  filled: bool = True


def build(name: str, frame: pd.DataFrame, metric: str | None = None) -> Table:
  """Returns one of the paper's tables with the runs' results.

  Args:
    name: one of `table_specs.SPECS`.
    frame: of the runs, see `runs.frame`.
    metric: what to read instead of the table's own metric.

  Raises:
    ValueError: see `aggregate.arm`.
  """
  arms = arms_of(name, frame, metric)
  by_model = table_specs.SPECS[name].reference
  rows = _differences(name, arms) if by_model else _pairs(name, arms)
  keys = 1 if by_model else len(table_specs.SPECS[name].keys)
  filled = any(arm.metric for arm in arms.values())
  notes = _notes(name, arms, len(frame))
  return Table(name, table_specs.title(name), rows, keys, notes, filled)


def arms_of(
  name: str, frame: pd.DataFrame, metric: str | None = None
) -> dict[Place, aggregate.Arm]:
  """Returns the arms that belong to a table by place, see `build`."""
  spec = table_specs.SPECS[name]
  if frame.empty:
    return {}
  guest = spec.guests & ~frame.recipe.isin(table_specs.RECIPES)
  if metric is None:  # an accuracy stands in the table, or nothing
    guest &= ~frame.complete | frame.run.map(
      lambda run: all(map(aggregate.is_fraction, run.headline))
    )
  belongs = (guest | frame.recipe.isin(spec.recipes)) & ~frame.trial
  belongs &= frame.arm.isin(spec.arms)
  places = pd.Series(map(_place, frame.run, guest, [spec] * len(frame)))
  arms = {}
  for place, group in frame[belongs].groupby(places[belongs]):
    named = metric or group.run.iloc[0].table.get("metric")
    metrics = runs.ACCURACIES if guest[group.index[0]] else spec.metrics
    arms[place] = aggregate.arm(group, (named,) if named else metrics)
  return arms


def _place(run, is_guest, spec):
  """Returns the values of the keys that tell a run's row apart, and its arm."""
  first, *others = (str(run.cell.get(key, "")) for key in spec.keys)
  if is_guest and "recipe" not in spec.keys:
    first = f"{run.cell['recipe']} {first}"
  return (first, *others), run.cell["arm"]


def _pairs(name, arms):
  """Returns a table of base against DPN."""
  paper, arms = table_specs.paper(name), dict(arms)
  rows = dict.fromkeys(row for row, _ in paper)
  more = sorted({row for row, _ in arms} - rows.keys())
  for (arch, mean), arm in paper if name == "3" else ():
    if tasks := table_specs.GROUPS.get(mean):
      of_tasks = [arms.get(((arch, task), arm)) for task in tasks]
      arms[(arch, mean), arm] = _over_tasks(of_tasks)
  cells = []
  for row in [*rows, *more]:
    base, dpn = (paper.get((row, arm)) for arm in (runs.BASE, runs.DPN))
    gain = table_specs.number(dpn.mean - base.mean, sign="+") if base else None
    ours = [arms.get((row, arm)) for arm in (runs.BASE, runs.DPN)]
    cells.append((
      *row,
      *(value or NOT_PUBLISHED for value in (base, dpn, gain)),
      *map(aggregate.cell, ours),
      aggregate.gain(*reversed(ours)),
    ))  # fmt: skip
  header = [key.replace("_", " ") for key in table_specs.SPECS[name].keys]
  kinds = ("base", "DPN", "DPN − base")
  header += [f"{whose} {kind}" for whose in ("paper", "ours") for kind in kinds]
  return pd.DataFrame(cells, columns=header, dtype=object)


def _over_tasks(arms):
  """Returns the mean arm of several tasks; incomplete if one is not done."""
  if not any(arms):
    return None
  done = sum(bool(arm and arm.metric) for arm in arms)
  if done < len(arms):
    return aggregate.Arm(waiting=f"incomplete: {done} of {len(arms)} tasks")
  by_seed = pd.DataFrame([arm.values for arm in arms])  # (tasks, seeds)
  if by_seed.isna().any(axis=None):  # the tasks were run with other seeds
    by_seed = by_seed.mean(axis=1).to_frame("mean")
  return dataclasses.replace(arms[0], values=by_seed.mean(), open=())


def _differences(name, arms):
  """Returns a table of arms relative to one of them, by model."""
  spec, paper = table_specs.SPECS[name], table_specs.paper(name)
  columns = {
    "arm": [f"{a}: top-1" if a == spec.reference else a for a in spec.arms]
  }
  for arch in archs(name, arms):
    if paper:
      columns[f"{arch} paper"] = [
        paper.get(((arch,), arm), NOT_PUBLISHED) for arm in spec.arms
      ]
    reference = arms.get(((arch,), spec.reference))
    columns[f"{arch} ours"] = [
      aggregate.cell(reference)
      if arm == spec.reference
      else aggregate.gain(arms.get(((arch,), arm)), reference)
      for arm in spec.arms
    ]
  return pd.DataFrame(columns, dtype=object)


def archs(name: str, arms: Arms) -> list[str]:
  """Returns the models of a table of differences: the paper's, then others."""
  known = table_specs.SPECS[name].archs
  return [*known, *sorted({arch for (arch,), _ in arms} - {*known})]


def _notes(name, arms, count):
  """Returns sentences that say what the numbers are."""
  notes = []
  if published := table_specs.PUBLISHED.get(name):
    facts = filter(None, (published["source"], published["setting"]))
    notes.append(f"Paper: {'; '.join(facts)}.")
  if name == "6":
    notes.append(
      "Differences to dpn, whose own top-1 is in the first row. What is given "
      "as the paper's for dpn and base is from Table 1 (left)."
    )
  if not arms:
    notes.append(f"None of the {count} runs given belongs into this table.")
  metrics = sorted({arm.metric for arm in arms.values() if arm.metric})
  if metrics:
    notes.append(
      f"Ours: mean of {' or '.join(metrics)} at the last step over n runs ± "
      "95% confidence interval (Student's t). Differences are "
      "paired seed by seed where both arms have the same seeds, else Welch's."
    )
  for why, paths in {
    "Incomplete, left out of the means": [arm.open for arm in arms.values()],
    "Left out as copies of runs with the same seed and the same result": [
      arm.copies for arm in arms.values()
    ],
  }.items():
    if listed := ", ".join(itertools.chain(*paths)):
      notes.append(f"{why}: {listed}.")
  return notes


def condensed(table: Table) -> Table:
  """Returns a table without most of what was never run, and says so.

  Of the differences, columns without a number go; of Table 3, tasks without a
  result of ours. Other tables are short.
  """
  lacks = table.frame.isin([aggregate.NOT_RUN, NOT_PUBLISHED])
  kept, what = table.frame, "rows"
  if table_specs.SPECS[table.name].reference:
    kept, what = kept.loc[:, ~lacks.all()], "columns"
  elif table.name == "3":
    mean = kept["task"].isin(table_specs.GROUPS)
    kept = kept[mean | ~lacks.iloc[:, -3:].all(axis=1)]
  count = sum(lacks.shape) - sum(kept.shape)
  if not count:
    return table
  note = (
    f"Left out here: {count} {what} that were not run; `python -m "
    f"scripts.tables … --table {table.name}` shows all."
  )
  return dataclasses.replace(table, frame=kept, notes=[*table.notes, note])


def results(frame: pd.DataFrame) -> Table | None:
  """Returns what was measured: a row for each model, metric and arm.

  The last column is the difference from a plain ViT, where it was run; the
  metrics are each run's `headline`. None if no run is complete.
  """
  rows = []
  for model, group in frame[~frame.trial].groupby("title"):
    done = group.run[group.complete]
    for metric in done.iloc[0].headline if len(done) else ():
      arms = {
        name: aggregate.arm(repetitions, (metric,))
        for name, repetitions in group.groupby("arm")
      }
      base = arms.get(runs.BASE)
      unit = " [%]" if aggregate.is_fraction(metric) else ""
      for name in sorted(arms, key=lambda name: (name != runs.BASE, name)):
        gain = "" if name == runs.BASE else aggregate.gain(arms[name], base)
        gain = gain if isinstance(gain, aggregate.Estimate) else ""
        cell = aggregate.cell(arms[name])
        rows.append((model, metric + unit, name, cell, gain))
  if not rows:
    return None
  header = ("model", "metric", "arm", "result", "minus base")
  table = pd.DataFrame(rows, columns=header, dtype=object)
  return Table("results", "Results", table, 3, _verdict(table))


def _verdict(table):
  """Returns in words what a single comparison of DPN with a ViT has shown."""
  compared = table[(table.arm == runs.DPN) & (table["minus base"] != "")]
  if len(compared) != 1:
    return []
  metric, gain = compared[["metric", "minus base"]].iloc[0]
  if math.isnan(gain.ci):
    verdict = "A single seed has no interval: train more of them."
  elif abs(gain.mean) <= gain.ci:
    verdict = "The interval contains 0, so these runs do not tell them apart."
  else:
    verdict = "The interval does not contain 0."
  at_scale = table_specs.PUBLISHED["1_left"]["rows"]
  gains = [row["dpn"] - row["base"] for row in at_scale]
  return [
    f"Dual PatchNorm minus ViT, {metric}: {gain}. {verdict}",
    "At scale, on ImageNet-1k, the paper reports "
    f"{min(gains):+.1f} to {max(gains):+.1f} points for {len(gains)} models: "
    "its Table 1 (left).",
  ]
