"""Lays results out as the paper's tables, beside what the paper reports."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from dpn import errors
from dpn.scripts.results import aggregate, paper, runs

NOT_PUBLISHED = "–"
WORDS = {
  "ci95": "a 95% confidence interval (Student's t)",
  "sem": "one standard error (SEM)",
}
Arms = Mapping[paper.Place, aggregate.Arm]


@dataclasses.dataclass(frozen=True)
class Table:
  """A table to be written in whatever format.

  The first `keys` columns of `frame` hold text, the others `Estimate`s or
  words. `filled` says whether a run fills any of the paper's cells.
  """

  name: str
  title: str
  frame: pd.DataFrame
  keys: int
  notes: Sequence[str]
  filled: bool = True


@dataclasses.dataclass(frozen=True)
class Sorted:
  """The runs that were given, sorted into a table's cells.

  Attributes:
    arms: what fills the cells.
    left_out: paths of complete runs that fill none, by the reason.
    wrong: why runs of a cell cannot be averaged.
  """

  arms: Arms
  left_out: Mapping[str, Sequence[str]]
  wrong: Sequence[str] = ()


def build(
  name: str,
  frame: pd.DataFrame,
  metric: str | None = None,
  interval: str = "ci95",
) -> tuple[Table, list[str]]:
  """Returns one of the paper's tables, and which of its cells are left out.

  Args:
    name: one of `paper.TABLES`.
    frame: of the runs, see `runs.frame`.
    metric: what to read instead of the table's own metric.
    interval: what its notes say of ±, see `measured`.
  """
  spec, found = paper.TABLES[name], sort_runs(name, frame, metric)
  make, keys = (_differences, 1) if spec.reference else (_pairs, len(spec.keys))
  published = paper.printed(name)
  is_papers = lambda values, arm: (
    (values, arm) in published
    or (not published and values[0] in spec.archs and arm in spec.arms)
  )
  any_filled = any(a.metric and is_papers(*at) for at, a in found.arms.items())
  rows, title = make(name, found.arms), f"{spec.number}: {spec.title}"
  notes = _notes(name, found, len(frame), interval)
  wrong = [f"{spec.number}: {why}" for why in found.wrong]
  return Table(name, title, rows, keys, notes, any_filled), wrong


def filled(
  frame: pd.DataFrame, interval: str = "ci95"
) -> tuple[list[Table], list[str]]:
  """Returns the paper's tables that runs fill, and which cells are left out.

  A table of differences needs an arm besides base and dpn, which are in Table 1
  (left) already.
  """
  others = {*frame.arm} - {runs.BASE, runs.DPN}
  made, wrong = [], []
  for name, spec in paper.TABLES.items():
    if spec.reference and not others & {*spec.arms}:
      continue
    table, left_out = build(name, frame, interval=interval)
    made, wrong = made + [table] * table.filled, wrong + left_out
  return made, wrong


def measured(made: Iterable[Table], interval: str) -> list[Table]:
  """Returns tables in which ± shows `interval`, a key of `MEASURES`."""
  show = lambda cell: (
    dataclasses.replace(cell, interval=interval)
    if isinstance(cell, aggregate.Estimate)
    else cell
  )
  return [
    dataclasses.replace(table, frame=table.frame.map(show)) for table in made
  ]


def sort_runs(
  name: str, frame: pd.DataFrame, metric: str | None = None
) -> Sorted:
  """Returns which run fills which cell of a table, see `build`."""
  spec = paper.TABLES[name]
  why = pd.Series(
    [_why_not(run, spec, metric) for run in frame.run], frame.index
  )
  rejected = frame[(why != "") & frame.complete]
  left_out = {k: list(of.path) for k, of in rejected.groupby(why)}
  belongs = frame[why == ""]
  if "epochs" in spec.keys:
    belongs = runs.frame([*belongs.run, *_earlier(name, belongs.run)])
  rows = {}
  for i, run in zip(belongs.index, belongs.run, strict=True):
    values, arm = _place(run, spec)
    rows.setdefault(values, {}).setdefault((values, arm), []).append(i)
  arms, wrong = {}, []
  for row in rows.values():
    groups = {place: belongs.loc[of] for place, of in row.items()}
    arms |= _of_one_metric(groups, spec, metric, wrong)
  left_out |= {
    "copies of runs with the same seed and the same result": [
      path for arm in arms.values() for path in arm.copies
    ],
    "candidates that were not chosen": [
      path for arm in arms.values() for path in arm.unchosen
    ],
  }
  return Sorted(arms, {k: of for k, of in left_out.items() if of}, wrong)


def _of_one_metric(groups, spec, metric, wrong):
  """Returns the arms of a row, by one metric if there is one that all have.

  Else each arm has its own first metric, and `aggregate.gain` compares none of
  them. Adds to `wrong` why runs cannot be averaged.
  """

  def averaged(metrics):
    arms = {}
    for place, group in groups.items():
      try:
        arms[place] = aggregate.arm(group, metrics[place])
      except ValueError as e:
        wrong.append(str(e))
        arms[place] = aggregate.Arm(waiting="in conflict, left out")
    return arms

  metrics = {
    place: _metrics(group.run.iloc[0], spec, metric)
    for place, group in groups.items()
  }
  arms = averaged(metrics)
  if len({arm.metric for arm in arms.values() if arm.metric}) > 1:
    counted = [
      run
      for place, group in groups.items()
      for run in group.run[group.path.isin(arms[place].paths)]
    ]
    for shared in next(iter(metrics.values())):
      if all(shared in run.finals for run in counted) and all(
        shared in known for known in metrics.values()
      ):
        return averaged(dict.fromkeys(groups, (shared,)))
  return arms


def _metrics(run, spec, metric):
  """Returns the metrics to read from a run for a table: the first it has."""
  if named := metric or run.table.get("metric"):
    return (named,)
  return runs.ACCURACIES if paper.has_none(run) else spec.metrics


def _earlier(name, found):
  """Yields runs as they were at earlier epochs that the paper reports.

  A row of which complete runs fill a cell gets none: they had a schedule of
  their own.
  """
  published = dict.fromkeys(values for values, _ in paper.printed(name))
  row = lambda run: _place(run, paper.TABLES[name])[0]
  filled = {row(run) for run in found if run.complete}
  for run in found:
    *model, epochs = row(run)
    for *other, epoch in published if epochs.isdecimal() else ():
      is_earlier = other == model and int(epoch) < int(epochs)
      is_earlier &= (*other, epoch) not in filled
      if is_earlier and (earlier := run.at_epoch(int(epoch))):
        yield earlier


def _why_not(run, spec, metric):
  """Returns why a run fills no cell of a table, "" if it does."""
  if run.trial:
    return "of two steps (runlocal)"
  recipe, others = run.cell["recipe"], paper.tables_of(run)
  see = f" (see {others})" if others else ""
  if paper.has_none(run):
    if not spec.own_rows:
      return f"of {recipe}, which is in no table like this"
    accuracy = all(map(aggregate.is_fraction, run.headline))
    if run.complete and metric is None and not accuracy:
      return f"of {recipe}, whose result is no accuracy"
  elif paper.family(recipe)[0] not in spec.recipes:
    return f"of {recipe}{see}"
  if run.cell["arm"] not in spec.arms:
    return f"of other arms{see}"
  other = spec.excludes(run.cell)
  return other and f"of {other}{see}"


def _place(run, spec):
  """Returns the values of the keys that tell a run's row apart, and its arm."""
  values = {key: str(run.cell.get(key, "")) for key in spec.keys}
  recipe = run.cell["recipe"]
  if "recipe" not in values:
    model = "arch" if "arch" in values else spec.keys[0]
    if paper.has_none(run):
      values[model] = f"{recipe} {values[model]}"
    elif reading := paper.family(recipe)[1]:
      values[model] += f", {reading}"
  return tuple(values.values()), run.cell["arm"]


def left_out(reasons: Mapping[str, Sequence[str]]) -> str:
  """Returns a sentence on what was left out and why, "" for nothing."""
  listed = [
    f"{errors.some_of(paths, 3)}: {reason}" for reason, paths in reasons.items()
  ]
  return f"Finished runs left out: {'; '.join(listed)}." if listed else ""


def _pairs(name, arms):
  """Returns a table of base against a new arm."""
  spec = paper.TABLES[name]
  published = paper.printed(name)
  if name == "3":
    arms = arms | _means_over_tasks(arms, spec)
  rows = dict.fromkeys(values for values, _ in published)
  more = sorted({values for values, _ in arms} - rows.keys())
  cells = []
  for row in [*rows, *more]:
    base, new = (published.get((row, arm)) for arm in spec.arms)
    gain = None
    if base and new:
      gain = new.mean - base.mean
      gain = paper.number(gain, sign="+", digits=base.digits)
    ours = [arms.get((row, arm)) for arm in spec.arms]
    won = aggregate.gain(*reversed(ours))
    side = won.side if isinstance(won, aggregate.Estimate) else 0
    marked = [
      dataclasses.replace(cell, best=True) if side == better else cell
      for cell, better in zip(map(aggregate.cell, ours), (-1, 1), strict=True)
    ]
    theirs = [value or NOT_PUBLISHED for value in (base, new, gain)]
    cells.append((*row, *theirs, *marked, won))
  header = [key.replace("_", " ") for key in spec.keys]
  new = paper.NEW_ARMS[spec.arms[1]]
  kinds = ("base", new, f"{new} − base")
  header += [f"{whose} {kind}" for whose in ("paper", "ours") for kind in kinds]
  return pd.DataFrame(cells, columns=header, dtype=object)


def _means_over_tasks(arms, spec):
  """Returns the arms of Table 3's rows of means."""
  archs = dict.fromkeys(row["arch"] for row in spec.rows)
  archs |= dict.fromkeys(arch for (arch, _), _ in arms)
  means = {}
  for arch, arm in itertools.product(archs, spec.arms):
    for mean, tasks in paper.GROUPS.items():
      of_tasks = [arms.get(((arch, task), arm)) for task in tasks]
      if any(of_tasks):
        means[(arch, mean), arm] = _over_tasks(of_tasks)
  return means


def _over_tasks(arms):
  """Returns the mean arm of several tasks; incomplete if one is not done."""
  done = sum(bool(arm and arm.metric) for arm in arms)
  if done < len(arms):
    return aggregate.Arm(waiting=f"incomplete: {done} of {len(arms)} tasks")
  if len(metrics := sorted({arm.metric for arm in arms})) > 1:
    return aggregate.Arm(waiting=f"of {' and '.join(metrics)}, no mean")
  by_seed = pd.DataFrame([arm.values for arm in arms])  # (tasks, seeds)
  if by_seed.isna().any(axis=None):  # the tasks were run with other seeds
    by_seed = by_seed.mean(axis=1).to_frame("mean")
  n = min(arm.n for arm in arms)
  return dataclasses.replace(arms[0], values=by_seed.mean(), n=n, open=())


def _differences(name, arms):
  """Returns a table of arms relative to one of them, by model."""
  spec, published = paper.TABLES[name], paper.printed(name)
  columns = {
    "arm": [f"{a}: top-1" if a == spec.reference else a for a in spec.arms]
  }
  for arch in archs(name, arms):
    if published:
      columns[f"{arch} paper"] = [
        published.get(((arch,), arm), NOT_PUBLISHED) for arm in spec.arms
      ]
    reference = arms.get(((arch,), spec.reference))
    columns[f"{arch} ours"] = [
      aggregate.cell(reference)
      if arm == spec.reference
      else _marked(aggregate.gain(arms.get(((arch,), arm)), reference))
      for arm in spec.arms
    ]
  return pd.DataFrame(columns, dtype=object)


def _marked(gain):
  """Returns a difference, marked if its interval lies above 0."""
  is_number = isinstance(gain, aggregate.Estimate)
  return dataclasses.replace(gain, best=gain.side == 1) if is_number else gain


def archs(name: str, arms: Arms) -> list[str]:
  """Returns the models of a table of differences: the paper's, then others."""
  known = paper.TABLES[name].archs
  return [*known, *sorted({arch for (arch,), _ in arms} - {*known})]


def _notes(name, found, count, interval):
  """Returns sentences that say what the numbers are."""
  notes, arms, spec = [], found.arms, paper.TABLES[name]
  if spec.rows:
    said = spec.source, spec.setting, spec.metric, spec.note
    facts = "; ".join(filter(None, said))
    notes.append(f"Paper: {facts}.")
  notes.append(
    (paper.TABLES["1_left"] if name == "6" else spec).explain(interval)
  )
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
      f"{WORDS[interval]}. Differences are {aggregate.PAIRING}. Marked is what "
      "is better than the arm it is compared with, by a difference whose 95% "
      "interval (Student's t) does not contain 0."
    )
  if still := ", ".join(itertools.chain(*(arm.open for arm in arms.values()))):
    notes.append(f"Incomplete, left out of the means: {still}.")
  notes += aggregate.extensions(arms.values())
  notes.append(left_out(found.left_out))
  return [note for note in notes if note]


def reduced(table: Table) -> Table:
  """Returns a table without rows, or columns of differences, that lack runs."""
  ours = table.frame.filter(like="ours")
  is_run = ours != aggregate.NOT_RUN
  kept = table.frame[is_run.any(axis=1)]
  if paper.TABLES[table.name].reference:
    empty = [name for name in ours if not is_run[name].any()]
    columns = [name.removesuffix("ours") + "paper" for name in empty]
    kept = kept.drop(columns=[*empty, *columns], errors="ignore")
  if kept.shape == table.frame.shape:
    return table
  note = f"Rows without a run are left out; --table {table.name} has them."
  return dataclasses.replace(table, frame=kept, notes=[*table.notes, note])
