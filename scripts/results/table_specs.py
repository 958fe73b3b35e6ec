"""The paper's tables: what belongs into them, laid out beside its numbers."""

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence

import pandas as pd

from scripts.results import aggregate, runs

PUBLISHED = json.loads(
  pathlib.Path(__file__).with_name("paper_tables.json").read_text("utf-8")
)
NOT_PUBLISHED = "–"
PLACEMENTS = tuple(
  f"sa={sa},mlp={mlp}"
  for sa in ("pre", "post", "pre+post")
  for mlp in ("pre", "post", "pre+post")
  if f"sa={sa},mlp={mlp}" != runs.PLAIN_BLOCK
)


@dataclasses.dataclass(frozen=True)
class Spec:
  """What a table is made of.

  Without `reference` a row compares base with DPN; with it there is a row for
  each arm, of differences from the reference, and a column for each model.

  Attributes:
    keys: what tells its rows (its columns, with `reference`) apart, names in
      paper_tables.json.
    recipes: whose runs belong there.
    metrics: what is read, the first that there is.
    guests: whether recipes of no table get rows of their own.
    arms: those that belong there.
    reference: the arm that the others are compared with.
    archs: the columns that the paper has.
    printed: whether the paper prints the differences.
  """

  keys: Sequence[str]
  recipes: Sequence[str]
  metrics: Sequence[str] = ("val/prec@1",)
  guests: bool = False
  arms: Sequence[str] = (runs.BASE, runs.DPN)
  reference: str | None = None
  archs: Sequence[str] = ()
  printed: bool = False


_PROBE = ("fewshot/imagenet_25shot",)
SPECS = {
  "1_left": Spec(
    ("recipe", "arch"), ("AugReg", "DeiT", "AugReg+384 finetune"), guests=True
  ),
  "1_right": Spec(("steps", "arch"), ("I21k",), _PROBE),
  "2_left": Spec(("steps", "arch"), ("JFT",), _PROBE),
  "2_right": Spec(("arch", "resolution", "steps"), ("JFT finetune",)),
  "3": Spec(("arch", "task"), ("VTAB",), ("test/prec@1",)),
  "4": Spec(
    ("arch", "pretrain_steps"), ("LiT",), ("zeroshot/imagenet_prec@1",)
  ),
  "5": Spec(("train_fraction",), ("ADE20K",), ("val/miou",)),
  "6": Spec(
    ("arch",),
    ("AugReg",),
    guests=True,
    arms=(runs.DPN, runs.BASE, *(r["arm"] for r in PUBLISHED["6"]["rows"])),
    reference=runs.DPN,
    archs=("B/16", "S/16", "B/32", "S/32", "Ti/16"),
    printed=True,
  ),
  "7": Spec(("arch", "setting"), ("SUN397",), ("test/prec@1",)),
  "figure_1": Spec(
    ("arch",),
    ("AugReg",),
    guests=True,
    arms=(runs.BASE, *PLACEMENTS, "normformer", "sub_ln", runs.DPN),
    reference=runs.BASE,
    archs=("S/16", "B/16", "B/32", "Ti/16", "S/32"),
  ),
}
TABLES = tuple(name for name in SPECS if name in PUBLISHED)
_RECIPES = {recipe for spec in SPECS.values() for recipe in spec.recipes}

Place = tuple[tuple[str, ...], str]  # (values of the spec's keys, arm)
Arms = Mapping[Place, aggregate.Arm]


@dataclasses.dataclass(frozen=True)
class Table:
  """A table to be written in whatever format.

  Attributes:
    name: key of `SPECS`.
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
    return any(arm.done for arm in self.arms.values())


def build(
  name: str, found: Sequence[runs.Run], metric: str | None = None
) -> Table:
  """Returns one of the paper's tables with the runs' results.

  Args:
    name: one of `SPECS`.
    found: the runs, in any order.
    metric: what to read instead of the table's own metric.

  Raises:
    ValueError: see `aggregate.arm`.
  """
  arms = arms_of(name, found, metric)
  by_model = SPECS[name].reference
  frame = _differences(name, arms) if by_model else _pairs(name, arms)
  keys = 1 if by_model else len(SPECS[name].keys)
  notes = _notes(name, arms, len(found))
  return Table(name, title(name), frame, keys, notes, arms)


def arms_of(
  name: str, found: Sequence[runs.Run], metric: str | None = None
) -> dict[Place, aggregate.Arm]:
  """Returns the arms that belong to a table by place, see `build`."""
  spec = SPECS[name]
  if not found:
    return {}
  frame = runs.frame(found)
  guest = spec.guests & ~frame.recipe.isin(_RECIPES)
  if metric is None:  # an accuracy stands in the table, or nothing
    guest &= frame.run.map(_has_accuracy)
  frame["place"] = [
    _place(spec, run, is_guest)
    for run, is_guest in zip(found, guest, strict=True)
  ]
  belongs = (guest | frame.recipe.isin(spec.recipes)) & ~frame.trial
  belongs &= frame.arm.isin(spec.arms)
  arms = {}
  for place, group in frame[belongs].groupby(["place", "arm"]):
    repetitions = list(group.run)
    named = metric or (repetitions[0].config.get("table") or {}).get("metric")
    metrics = runs.ACCURACIES if guest[group.index[0]] else spec.metrics
    arms[place] = aggregate.arm(repetitions, (named,) if named else metrics)
  return arms


def _place(spec, run, is_guest):
  """Returns the values of the keys that tell a run's row apart."""
  first, *others = (str(run.cell.get(key, "")) for key in spec.keys)
  if is_guest and "recipe" not in spec.keys:
    first = f"{run.cell['recipe']} {first}"
  return (first, *others)


def _has_accuracy(run):
  return not run.complete or all(map(aggregate.is_fraction, run.headline))


def title(name: str) -> str:
  """Returns what a table shows."""
  table = PUBLISHED.get(name)
  if not table:
    return "Figure 1: placements of LayerNorm, top-1 relative to pre-LN"
  return f"{table['source'].partition(', ')[2]}: {table['title']}"


def _pairs(name, arms):
  """Returns a table of base against DPN."""
  reported = _reported(name)
  more = sorted({row for row, _ in arms if row not in reported})
  rows = []
  for row in [*reported, *more]:
    pair = [arms.get((row, arm)) for arm in (runs.BASE, runs.DPN)]
    rows.append(_pair(row, reported.get(row, {}), *pair))
  if name == "3":
    rows = _with_groups(rows, reported, arms)
  header = [key.replace("_", " ") for key in SPECS[name].keys]
  kinds = ("base", "DPN", "DPN − base")
  header += [f"{whose} {kind}" for whose in ("paper", "ours") for kind in kinds]
  return pd.DataFrame(rows, columns=header, dtype=object)


def _pair(row, paper, base, dpn):
  """Returns a row: its keys, the paper's numbers, ours."""
  values = paper.get("base"), paper.get("dpn")
  gain = None if None in values else values[1] - values[0]
  return (
    *row,
    _published(values[0], paper.get("base_ci", math.nan)),
    _published(values[1], paper.get("dpn_ci", math.nan)),
    _published(gain, sign="+"),
    aggregate.cell(base),
    aggregate.cell(dpn),
    aggregate.gain(dpn, base),
  )


def _published(value, ci=math.nan, sign=""):
  """Returns a number of the paper, in its precision."""
  if value is None:
    return NOT_PUBLISHED
  return aggregate.Estimate(value, ci, sign=sign, digits=1)


def _reported(name):
  """Returns what the paper has: values of the keys → numbers of both arms."""
  rows = PUBLISHED[name]["rows"]
  if name != "3":
    keys = SPECS[name].keys
    return {tuple(str(row[key]) for key in keys): row for row in rows}
  by_arm = {(row["arch"], row["arm"]): row for row in rows}
  return {
    (arch, task): {arm: by_arm[arch, arm][task] for arm in ("base", "dpn")}
    for arch in dict.fromkeys(row["arch"] for row in rows)
    for task in _tasks()
  }


def _tasks():
  groups = PUBLISHED["3"]["groups"].values()
  return [task for group in groups for task in group]


def _with_groups(rows, reported, arms):
  """Returns the rows of Table 3 with means over groups after each model."""
  groups = {**PUBLISHED["3"]["groups"], "all 19 tasks": _tasks()}
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
  done = sum(bool(arm and arm.done) for arm in arms)
  if done < len(arms):
    return aggregate.Arm(waiting=f"incomplete: {done} of {len(arms)} tasks")
  by_seed = pd.DataFrame([arm.values for arm in arms])  # (tasks, seeds)
  if by_seed.isna().any(axis=None):  # the tasks were run with other seeds
    by_seed = by_seed.mean(axis=1).to_frame("mean")
  return dataclasses.replace(arms[0], values=by_seed.mean(), open=())


def _differences(name, arms):
  """Returns a table of arms relative to one of them, by model."""
  spec = SPECS[name]
  columns = {
    "arm": [f"{a}: top-1" if a == spec.reference else a for a in spec.arms]
  }
  for arch in archs(name, arms):
    if spec.printed:
      columns[f"{arch} paper"] = [printed(arm, arch) for arm in spec.arms]
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
  known = SPECS[name].archs
  return [*known, *sorted({arch for (arch,), _ in arms if arch not in known})]


def printed(arm: str, arch: str) -> aggregate.Estimate | str:
  """Returns Table 6's number; of dpn and base those of Table 1 (left)."""
  table_1 = _reported("1_left").get(("AugReg", arch), {})
  if arm == runs.DPN:
    return _published(table_1.get("dpn"), table_1.get("dpn_ci", math.nan))
  if arm == runs.BASE:
    gain = table_1["base"] - table_1["dpn"] if table_1 else None
    return _published(gain, sign="+")
  row = next(row for row in PUBLISHED["6"]["rows"] if row["arm"] == arm)
  return _published(row.get(arch), sign="+")


def _notes(name, arms, count):
  """Returns sentences that say what the numbers are."""
  notes = []
  if paper := PUBLISHED.get(name):
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
  still = [run.path for arm in arms.values() for run in arm.open]
  if still:
    notes.append(f"Incomplete, left out of the means: {', '.join(still)}.")
  notes += _seeds(SPECS[name].reference or runs.BASE, arms)
  copies = [run.path for arm in arms.values() for run in arm.copies]
  if copies:
    notes.append(
      "Left out as copies of runs with the same seed and the same result: "
      f"{', '.join(copies)}."
    )
  return notes


def _seeds(reference, arms):
  """Returns a note on arms that have other seeds than their reference."""
  seeds = {
    place: ", ".join(str(run.seed) for run in arm.done)
    for place, arm in arms.items()
  }
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
  lacks = table.frame.isin([aggregate.NOT_RUN, NOT_PUBLISHED])
  kept = table.frame
  if SPECS[table.name].reference:
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


def results(found: Sequence[runs.Run]) -> Table | None:
  """Returns what was measured: a row for each model, metric and arm.

  The last column is the difference from a plain ViT, where it was run; the
  metrics are each run's `headline`. None if no run is complete.
  """
  frame = runs.frame(found)
  rows, arms = [], {}
  for title_, model in frame[~frame.trial].groupby("title"):
    done = model.run[model.complete]
    for metric in done.iloc[0].headline if len(done) else ():
      by_arm = {
        name: aggregate.arm(list(group.run), (metric,))
        for name, group in model.groupby("arm")
      }
      unit = " [%]" if aggregate.is_fraction(metric) else ""
      base = by_arm.pop(runs.BASE, None)
      listed = {runs.BASE: base} if base else {}
      for name, arm in (listed | by_arm).items():
        arms[(title_, metric), name] = arm
        gain = "" if arm is base else aggregate.gain(arm, base)
        row = (title_, metric + unit, name, aggregate.cell(arm))
        rows.append(
          (*row, gain if isinstance(gain, aggregate.Estimate) else "")
        )
  if not rows:
    return None
  header = ("model", "metric", "arm", "result", "minus base")
  frame = pd.DataFrame(rows, columns=header, dtype=object)
  return Table("results", "Results", frame, 3, (), arms)
