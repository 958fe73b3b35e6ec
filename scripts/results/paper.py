"""The papers' tables: which runs belong in them, and the printed numbers.

All of it is data, in paper_tables.json.
"""

import dataclasses
import functools
import itertools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from dpn.scripts.results import aggregate, runs

Place = tuple[tuple[str, ...], str]  # (values of the table's keys, arm)


@dataclasses.dataclass(frozen=True)
class Table:
  """A table of a paper.

  Without `reference` a row compares two arms, base and a new one; with it there
  is a row for each arm, of differences from the reference, and a column for
  each model.

  Attributes:
    title: what it shows.
    source: paper and number.
    keys: names in `rows` that tell its rows (with `reference`, columns) apart.
    recipes: whose runs belong there, with all their readings (`family`).
    metrics: the metrics to read, the first that there is.
    own_rows: whether recipes of no table get rows of their own.
    arms: those that belong there.
    reference: the arm that the others are compared with.
    archs: the columns that the paper has.
    only: values that other keys of a cell must have, if the cell has them.
    rows: as printed; a drawing has none.
    digits: after the decimal point.
    interval: how many runs the paper's ± is from, and what is known of it.
    groups: tasks whose means are reported.
    setting, metric, note: in the paper's words.
  """

  title: str
  source: str
  keys: Sequence[str]
  recipes: Sequence[str]
  metrics: Sequence[str] = ("val/prec@1",)
  own_rows: bool = False
  arms: Sequence[str] = (runs.BASE, runs.DPN)
  reference: str | None = None
  archs: Sequence[str] = ()
  only: Mapping[str, str] = dataclasses.field(default_factory=dict)
  rows: Sequence[Mapping[str, Any]] = ()
  digits: int = 1
  interval: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  groups: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
  setting: str = ""
  metric: str = ""
  note: str = ""

  @property
  def number(self) -> str:
    """Returns "Table 6", "Figure 1" and so on."""
    return self.source.partition(", ")[2]

  def excludes(self, cell: Mapping[str, object]) -> str:
    """Returns a key and value that keep a cell out of this table, or ""."""
    for key, value in self.only.items():
      if str(cell.get(key, value)) != value:
        return f"{key} {cell[key]}"
    return ""

  def explain(self, interval: str) -> str:
    """Returns what is known of the paper's ±, "" if it has none."""
    if not self.interval:
      return ""
    shown = ""
    if interval == "ci95":
      count = self.interval["runs"]
      shown = (
        f" As 95% intervals (Student's t, n={count}) they are shown "
        f"{aggregate.t_95(count - 1):.2f} times as wide as printed; --interval "
        "sem shows them as they are."
      )
    known = self.interval["known"]
    return f"The paper calls its ± 95% intervals: {known}.{shown}"


_FILE = pathlib.Path(__file__).with_name("paper_tables.json")
TABLES = {
  k: Table(**v) for k, v in json.loads(_FILE.read_text("utf-8")).items()
}
RECIPES = {recipe for table in TABLES.values() for recipe in table.recipes}
NEW_ARMS = {runs.DPN: "DPN", "lape": "LaPE", "dtn": "DTN"}  # as columns
# The rows of means in Table 3, and the tasks that each is over.
GROUPS = {f"mean of {name}": of for name, of in TABLES["3"].groups.items()}
GROUPS["mean of all 19 tasks"] = [*itertools.chain(*GROUPS.values())]


def family(recipe: str) -> tuple[str, str]:
  """Returns a recipe and its reading: "JFT, map" is "JFT" read as "map"."""
  name, _, reading = recipe.partition(", ")
  return name, reading


def has_none(run: runs.Run) -> bool:
  """Returns whether a run's recipe is in no table."""
  return family(run.cell["recipe"])[0] not in RECIPES


def tables_of(run: runs.Run) -> str:
  """Returns which tables have a run's recipe and arm, "" for none."""
  recipe, arm = family(run.cell["recipe"])[0], run.cell["arm"]
  return ", ".join(
    table.number
    for table in TABLES.values()
    if recipe in table.recipes
    and arm in table.arms
    and not table.excludes(run.cell)
  )


def number(
  value: float,
  sem: float = math.nan,
  sign: str = "",
  count: int = 3,
  digits: int = 1,
) -> aggregate.Estimate:
  """Returns a number from the paper, in the paper's precision.

  What the paper has after ± is taken for the standard error of `count` runs,
  see `Table.explain`.
  """
  df = count - 1
  ci = aggregate.t_95(df) * sem
  return aggregate.Estimate(value, ci, sign=sign, digits=digits, df=df)


@functools.cache
def printed(name: str) -> dict[Place, aggregate.Estimate]:
  """Returns what the paper has in a table, by place, in the paper's order."""
  table, found = TABLES[name], {}
  if name == "6":
    return _relative_to_dpn(table.rows)
  count = table.interval.get("runs", 3)
  for row in _by_task(table.rows) if name == "3" else table.rows:
    place = tuple(str(row[key]) for key in table.keys)
    for arm in (arm for arm in table.arms if arm in row):
      value, sem, sign = row[arm], row.get(f"{arm}_ci", math.nan), ""
      if table.reference not in (None, arm):
        value, sign = value - row[table.reference], "+"
      found[place, arm] = number(value, sem, sign, count, table.digits)
  return found


def _by_task(rows):
  """Returns Table 3, whose rows are (arch, arm), as rows of (arch, task)."""
  tasks = pd.DataFrame(rows).set_index(["arch", "arm"])
  for mean, of in GROUPS.items():
    tasks[mean] = tasks[of].mean(axis=1)
  stacked = tasks.rename_axis(columns="task").stack()
  return stacked.unstack("arm", sort=False).reset_index().to_dict("records")


def _relative_to_dpn(rows):
  """Returns Table 6; dpn and base are taken from Table 1 (left)."""
  found = {
    ((arch,), row["arm"]): number(gain, sign="+")
    for row in rows
    for arch, gain in row.items()
    if arch != "arm"
  }
  for row in TABLES["1_left"].rows:
    if row["recipe"] == "AugReg":
      place, gain = (row["arch"],), row["base"] - row["dpn"]
      found[place, runs.BASE] = number(gain, sign="+")
      found[place, runs.DPN] = number(row["dpn"], row["dpn_ci"])
  return found
