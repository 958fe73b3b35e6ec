"""Lays results out as the paper's tables, beside what the paper reports."""

import collections
import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from scripts.results import aggregate, cells, entries, runs

PUBLISHED = json.loads(
  pathlib.Path(__file__).with_name("paper_tables.json").read_text("utf-8")
)


@dataclasses.dataclass(frozen=True)
class Layout:
  """How a table is made.

  Attributes:
    keys: what tells its rows apart, names in paper_tables.json.
    recipes: whose runs belong there.
    metrics: what is read, the first that there is.
    guests: whether recipes of no table get rows of their own.
  """

  keys: Sequence[str]
  recipes: Sequence[str]
  metrics: Sequence[str] = ("val/prec@1",)
  guests: bool = False


_IMAGENET = ("AugReg", "DeiT", "AugReg+384 finetune")
_PROBE = ("fewshot/imagenet_25shot",)
LAYOUTS = {
  "1_left": Layout(("recipe", "arch"), _IMAGENET, guests=True),
  "1_right": Layout(("steps", "arch"), ("I21k",), _PROBE),
  "2_left": Layout(("steps", "arch"), ("JFT",), _PROBE),
  "2_right": Layout(("arch", "resolution", "steps"), ("JFT finetune",)),
  "3": Layout(("arch", "task"), ("VTAB",), ("test/prec@1",)),
  "4": Layout(
    ("arch", "pretrain_steps"), ("LiT",), ("zeroshot/imagenet_prec@1",)
  ),
  "5": Layout(("train_fraction",), ("ADE20K",), ("val/miou",)),
  "6": Layout(("arch",), ("AugReg",), guests=True),
  "7": Layout(("arch", "setting"), ("SUN397",), ("test/prec@1",)),
  "figure_1": Layout(("arch",), ("AugReg",), guests=True),
}
TABLES = tuple(name for name in LAYOUTS if name in PUBLISHED)
GUEST_METRICS = ("val/prec@1", "test/prec@1", "minival/prec@1")
_KNOWN_RECIPES = {r for layout in LAYOUTS.values() for r in layout.recipes}


def build(
  name: str, found: Sequence[runs.Run], metric: str | None = None
) -> entries.Table:
  """Returns one of the paper's tables with the runs' results.

  Args:
    name: one of `LAYOUTS`.
    found: the runs, in any order.
    metric: what to read instead of the table's own metric.

  Raises:
    ValueError: see `aggregate.by_cell`.
  """
  arms = arms_of(name, found, metric)
  if name in DELTAS:
    header, rows = _deltas(name, arms)
  else:
    header, rows = _pairs(name, arms)
  filled = sum(bool(arm.done) for arm in arms.values())
  notes = _notes(name, arms, len(found))
  return entries.Table(
    name, title(name), header, rows, notes, filled, name in DELTAS
  )


Place = tuple[tuple[str, ...], str]  # (values of the layout's keys, arm)


def arms_of(
  name: str, found: Sequence[runs.Run], metric: str | None = None
) -> dict[Place, aggregate.Arm]:
  """Returns the arms that belong to a table by place, see `build`."""
  layout = LAYOUTS[name]

  def place(cell):
    guest = layout.guests and cell.recipe not in _KNOWN_RECIPES
    if not guest and cell.recipe not in layout.recipes:
      return None
    values = [cell.get(key) for key in layout.keys]
    if guest and "recipe" not in layout.keys:
      values[0] = f"{cell.recipe} {values[0]}"
    if name in DELTAS and cell.arm not in DELTAS[name].arms:
      return None
    if name not in DELTAS and cell.arm not in (cells.BASE, cells.DPN):
      return None
    metrics = GUEST_METRICS if guest else layout.metrics
    named = metric or cell.metric
    return (tuple(values), cell.arm), (named,) if named else metrics

  return aggregate.collect(found, place)


def title(name: str) -> str:
  """Returns what a table shows."""
  table = PUBLISHED.get(name)
  if not table:
    return "Figure 1: placements of LayerNorm, top-1 relative to pre-LN"
  return f"{table['source'].partition(', ')[2]}: {table['title']}"


def _pairs(name, arms):
  """Returns header and rows of a table of base against DPN."""
  reported = _reported(name)
  more = sorted({row for row, _ in arms if row not in reported})
  rows = []
  for row in [*reported, *more]:
    pair = [arms.get((row, arm)) for arm in (cells.BASE, cells.DPN)]
    rows.append(_pair(row, reported.get(row, {}), *pair))
  if name == "3":
    rows = _with_groups(rows, reported, arms)
  header = [key.replace("_", " ") for key in LAYOUTS[name].keys]
  kinds = ("base", "DPN", "DPN − base")
  header += [f"{whose} {kind}" for whose in ("paper", "ours") for kind in kinds]
  return header, rows


def _pair(row, paper, base, dpn):
  """Returns a row: its keys, the paper's numbers, ours."""
  values = paper.get("base"), paper.get("dpn")
  gain = None if None in values else values[1] - values[0]
  return (
    *row,
    entries.published(values[0], paper.get("base_ci", math.nan)),
    entries.published(values[1], paper.get("dpn_ci", math.nan)),
    entries.published(gain, sign="+"),
    entries.ours(base),
    entries.ours(dpn),
    entries.difference(dpn, base),
  )


def _reported(name):
  """Returns what the paper has: values of the keys → numbers of both arms."""
  rows = PUBLISHED[name]["rows"]
  if name != "3":
    keys = LAYOUTS[name].keys
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
  archs = list(dict.fromkeys(arch for arch, _ in reported))
  result = []
  for arch in archs:
    result += [row for row in rows if row[:2] in reported and row[0] == arch]
    for group, tasks in groups.items():
      paper = {
        arm: float(np.mean([reported[arch, task][arm] for task in tasks]))
        for arm in ("base", "dpn")
      }
      pair = [
        _over_tasks([arms.get(((arch, task), arm)) for task in tasks])
        for arm in (cells.BASE, cells.DPN)
      ]
      result.append(_pair((arch, f"mean of {group}"), paper, *pair))
  return result + [row for row in rows if row[:2] not in reported]


def _over_tasks(arms):
  """Returns the mean arm of several tasks; incomplete if one is not done."""
  if not any(arms):
    return None
  done = sum(bool(arm and arm.done) for arm in arms)
  if done < len(arms):
    return aggregate.Arm(waiting=f"incomplete: {done} of {len(arms)} tasks")
  keys = arms[0].values.keys()
  if any(arm.values.keys() != keys for arm in arms):
    mean = float(np.mean([arm.mean.value for arm in arms]))
    return dataclasses.replace(arms[0], values={"mean": mean})
  values = {
    key: float(np.mean([arm.values[key] for arm in arms])) for key in keys
  }
  return dataclasses.replace(arms[0], values=values, open=())


def _deltas(name, arms):
  """Returns header and rows of arms relative to one of them, by model."""
  layout = DELTAS[name]
  columns = archs(name, arms)
  header, rows = ["arm"], []
  for arch in columns:
    header += [f"{arch} paper"] * layout.printed + [f"{arch} ours"]
  for arm in layout.arms:
    absolute = arm == layout.reference
    row = [f"{arm}: top-1" if absolute else arm]
    for arch in columns:
      if layout.printed:
        row.append(printed(arm, arch))
      own, reference = (arms.get(((arch,), a)) for a in (arm, layout.reference))
      row.append(
        entries.ours(own) if absolute else entries.difference(own, reference)
      )
    rows.append(tuple(row))
  return header, rows


def archs(name: str, arms: Mapping[Place, aggregate.Arm]) -> list[str]:
  """Returns the models of a table of differences: the paper's, then others."""
  known = DELTAS[name].archs
  return [*known, *sorted({arch for (arch,), _ in arms if arch not in known})]


def printed(arm: str, arch: str) -> entries.Entry:
  """Returns Table 6's number; of dpn and base those of Table 1 (left)."""
  table_1 = _reported("1_left").get(("AugReg", arch), {})
  if arm == cells.DPN:
    return entries.published(
      table_1.get("dpn"), table_1.get("dpn_ci", math.nan)
    )
  if arm == cells.BASE:
    gain = table_1["base"] - table_1["dpn"] if table_1 else None
    return entries.published(gain, sign="+")
  row = next(row for row in PUBLISHED["6"]["rows"] if row["arm"] == arm)
  return entries.published(row.get(arch), sign="+")


@dataclasses.dataclass(frozen=True)
class Deltas:
  """How a table of differences is made.

  Attributes:
    reference: the arm that the others are compared with.
    arms: the rows.
    archs: the columns that the paper has.
    printed: whether the paper prints numbers.
  """

  reference: str
  arms: Sequence[str]
  archs: Sequence[str]
  printed: bool


_SIDES = ("pre", "post", "pre+post")
PLACEMENTS = tuple(
  f"sa={sa},mlp={mlp}"
  for sa in _SIDES
  for mlp in _SIDES
  if f"sa={sa},mlp={mlp}" != cells.PLAIN_BLOCK
)
DELTAS = {
  "6": Deltas(
    cells.DPN,
    (cells.DPN, cells.BASE, *(row["arm"] for row in PUBLISHED["6"]["rows"])),
    ("B/16", "S/16", "B/32", "S/32", "Ti/16"),
    printed=True,
  ),
  "figure_1": Deltas(
    cells.BASE,
    (cells.BASE, *PLACEMENTS, "normformer", "sub_ln", cells.DPN),
    ("S/16", "B/16", "B/32", "Ti/16", "S/32"),
    printed=False,
  ),
}


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
  notes += _seeds(name, arms)
  copies = [run.path for arm in arms.values() for run in arm.copies]
  if copies:
    notes.append(
      "Left out as copies of runs with the same seed and the same result: "
      f"{', '.join(copies)}."
    )
  return notes


def _seeds(name, arms):
  """Returns a note on arms that have other seeds than their reference."""
  reference = DELTAS[name].reference if name in DELTAS else cells.BASE
  different = collections.defaultdict(list)
  for (row, arm), result in arms.items():
    other = arms.get((row, reference))
    if not (result.done and other and other.done):
      continue
    seeds, others = (_seeds_of(a) for a in (result, other))
    if seeds != others:
      different[" ".join(row), seeds, others].append(arm)
  return [
    f"{row}: {reference} has the seeds {others}; {', '.join(names)} {seeds}."
    for (row, seeds, others), names in different.items()
  ]


def _seeds_of(arm):
  return ", ".join(str(run.seed) for run in arm.done)
