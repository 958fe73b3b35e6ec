"""Lays results out as the paper's tables, beside what the paper reports."""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence

import pandas as pd

from scripts.results import aggregate, runs, table_specs

Place = tuple[tuple[str, ...], str]  # (values of the spec's keys, arm)
Arms = Mapping[Place, aggregate.Arm]


@dataclasses.dataclass(frozen=True)
class Table:
  """A table to be written in whatever format.

  Attributes:
    name: key of `table_specs.SPECS`.
    title: what it shows.
    frame: its first `keys` columns hold text, the others `Estimate`s or words.
    keys: see `frame`.
    notes: sentences below it.
    arms: what was averaged for it.
  """

  name: str
  title: str
  frame: pd.DataFrame
  keys: int
  notes: Sequence[str] = ()
  arms: Arms = dataclasses.field(default_factory=dict)

  @property
  def filled(self) -> bool:
    """Whether any cell holds a result of a run."""
    return any(arm.metric for arm in self.arms.values())


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
  notes = _notes(name, arms, len(frame))
  return Table(name, table_specs.title(name), rows, keys, notes, arms)


def arms_of(
  name: str, frame: pd.DataFrame, metric: str | None = None
) -> dict[Place, aggregate.Arm]:
  """Returns the arms that belong to a table by place, see `build`."""
  spec = table_specs.SPECS[name]
  if frame.empty:
    return {}
  guest = spec.guests & ~frame.recipe.isin(table_specs.RECIPES)
  if metric is None:  # an accuracy stands in the table, or nothing
    guest &= frame.run.map(_has_accuracy)
  belongs = (guest | frame.recipe.isin(spec.recipes)) & ~frame.trial
  belongs &= frame.arm.isin(spec.arms)
  places = [
    (_place(spec, run, is_guest), run.cell["arm"])
    for run, is_guest in zip(frame.run, guest, strict=True)
  ]
  groups = frame[belongs].groupby(pd.Series(places, frame.index)[belongs])
  arms = {}
  for place, group in groups:
    named = metric or group.run.iloc[0].table.get("metric")
    metrics = runs.ACCURACIES if guest[group.index[0]] else spec.metrics
    arms[place] = aggregate.arm(group, (named,) if named else metrics)
  return arms


def _place(spec, run, is_guest):
  """Returns the values of the keys that tell a run's row apart."""
  first, *others = (str(run.cell.get(key, "")) for key in spec.keys)
  if is_guest and "recipe" not in spec.keys:
    first = f"{run.cell['recipe']} {first}"
  return (first, *others)


def _has_accuracy(run):
  return not run.complete or all(map(aggregate.is_fraction, run.headline))


def _pairs(name, arms):
  """Returns a table of base against DPN."""
  reported = table_specs.reported(name)
  more = sorted({row for row, _ in arms if row not in reported})
  rows = []
  for row in [*reported, *more]:
    pair = [arms.get((row, arm)) for arm in (runs.BASE, runs.DPN)]
    rows.append(_pair(row, reported.get(row, {}), *pair))
  if name == "3":
    rows = _with_groups(rows, reported, arms)
  header = [key.replace("_", " ") for key in table_specs.SPECS[name].keys]
  kinds = ("base", "DPN", "DPN − base")
  header += [f"{whose} {kind}" for whose in ("paper", "ours") for kind in kinds]
  return pd.DataFrame(rows, columns=header, dtype=object)


def _pair(row, paper, base, dpn):
  """Returns a row: its keys, the paper's numbers, ours."""
  values = paper.get("base"), paper.get("dpn")
  gain = None if None in values else values[1] - values[0]
  return (
    *row,
    table_specs.published(values[0], paper.get("base_ci", math.nan)),
    table_specs.published(values[1], paper.get("dpn_ci", math.nan)),
    table_specs.published(gain, sign="+"),
    aggregate.cell(base),
    aggregate.cell(dpn),
    aggregate.gain(dpn, base),
  )


def _with_groups(rows, reported, arms):
  """Returns the rows of Table 3 with means over groups after each model."""
  groups = {
    **table_specs.PUBLISHED["3"]["groups"],
    "all 19 tasks": table_specs.tasks(),
  }
  paper = pd.DataFrame(reported).T  # (arch, task) × (base, dpn)
  result = []
  for arch in dict.fromkeys(arch for arch, _ in reported):
    result += [row for row in rows if row[:2] in reported and row[0] == arch]
    for group, tasks in groups.items():
      pair = [
        _over_tasks([arms.get(((arch, task), arm)) for task in tasks])
        for arm in (runs.BASE, runs.DPN)
      ]
      means = paper.loc[[(arch, task) for task in tasks]].mean()
      result.append(_pair((arch, f"mean of {group}"), means.to_dict(), *pair))
  return result + [row for row in rows if row[:2] not in reported]


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
  spec = table_specs.SPECS[name]
  columns = {
    "arm": [f"{a}: top-1" if a == spec.reference else a for a in spec.arms]
  }
  for arch in archs(name, arms):
    if spec.printed:
      columns[f"{arch} paper"] = [
        table_specs.printed(arm, arch) for arm in spec.arms
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
  return [*known, *sorted({arch for (arch,), _ in arms if arch not in known})]


def _notes(name, arms, count):
  """Returns sentences that say what the numbers are."""
  notes = []
  if paper := table_specs.PUBLISHED.get(name):
    notes.append(
      f"Paper: {'; '.join(filter(None, (paper['source'], paper['setting'])))}."
    )
  if name == "6":
    notes.append(
      "Differences to dpn, whose own top-1 is in the first row. What is given "
      "as the paper's for dpn and base is from Table 1 (left)."
    )
  if not arms:
    return [*notes, f"None of the {count} runs given belongs into this table."]
  metrics = sorted({arm.metric for arm in arms.values() if arm.metric})
  if metrics:
    notes.append(
      f"Ours: mean of {' or '.join(metrics)} at the last step over n runs ± "
      "95% confidence interval (Student's t). Differences are "
      "paired seed by seed where both arms have the same seeds, else Welch's."
    )
  still = [path for arm in arms.values() for path in arm.open]
  if still:
    notes.append(f"Incomplete, left out of the means: {', '.join(still)}.")
  notes += _seeds(table_specs.SPECS[name].reference or runs.BASE, arms)
  copies = [path for arm in arms.values() for path in arm.copies]
  if copies:
    notes.append(
      "Left out as copies of runs with the same seed and the same result: "
      f"{', '.join(copies)}."
    )
  return notes


def _seeds(reference, arms):
  """Returns a note on arms that have other seeds than their reference."""
  seeds = {place: ", ".join(map(str, arm.seeds)) for place, arm in arms.items()}
  different = collections.defaultdict(list)
  for (row, arm), ours in seeds.items():
    theirs = seeds.get((row, reference))
    if ours and theirs and ours != theirs:
      different[" ".join(row), theirs, ours].append(arm)
  return [
    f"{row}: {reference} has the seeds {theirs}; {', '.join(names)} {ours}."
    for (row, theirs, ours), names in different.items()
  ]


def condensed(table: Table) -> Table:
  """Returns a table without most of what was never run, and says so.

  Of the differences, columns without a number go; of Table 3, tasks without a
  result of ours. Other tables are short.
  """
  lacks = table.frame.isin([aggregate.NOT_RUN, table_specs.NOT_PUBLISHED])
  kept = table.frame
  if table_specs.SPECS[table.name].reference:
    kept, what = kept.loc[:, ~lacks.all()], "columns"
  elif table.name == "3":
    mean = kept["task"].str.startswith("mean of")
    kept, what = kept[mean | ~lacks.iloc[:, -3:].all(axis=1)], "rows"
  count = max(len(table.frame) - len(kept), lacks.shape[1] - kept.shape[1])
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
  rows, arms = [], {}
  for model, group in frame[~frame.trial].groupby("title"):
    done = group.run[group.complete]
    for metric in done.iloc[0].headline if len(done) else ():
      found = {
        name: aggregate.arm(repetitions, (metric,))
        for name, repetitions in group.groupby("arm")
      }
      base = found.get(runs.BASE)
      unit = " [%]" if aggregate.is_fraction(metric) else ""
      for name in sorted(found, key=lambda name: (name != runs.BASE, name)):
        gain = aggregate.gain(found[name], base)
        if name == runs.BASE or not isinstance(gain, aggregate.Estimate):
          gain = ""
        cell = aggregate.cell(found[name])
        rows.append((model, metric + unit, name, cell, gain))
        arms[(model, metric), name] = found[name]
  if not rows:
    return None
  header = ("model", "metric", "arm", "result", "minus base")
  table = pd.DataFrame(rows, columns=header, dtype=object)
  return Table("results", "Results", table, 3, _verdict(table), arms)


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
  at_scale = table_specs.reported("1_left").values()
  gains = [row["dpn"] - row["base"] for row in at_scale]
  return [
    f"Dual PatchNorm minus ViT, {metric}: {gain}. {verdict}",
    "At scale, on ImageNet-1k, the paper reports "
    f"{min(gains):+.1f} to {max(gains):+.1f} points for {len(gains)} models: "
    "its Table 1 (left).",
  ]
