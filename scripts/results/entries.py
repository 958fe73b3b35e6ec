"""What stands in the tables: numbers with intervals, or why there is none."""

import dataclasses
import math
from collections.abc import Sequence

from scripts.results import aggregate, stats

NOT_RUN = "not run"
NOT_PUBLISHED = "–"


@dataclasses.dataclass(frozen=True)
class Entry:
  """A cell: a mean with what is to be said of it, or words alone.

  Attributes:
    mean: None where there are only words.
    note: how it was compared, what is missing; or the words.
    runs: how many were averaged; None for a number of the paper.
    sign: "+" for differences.
    digits: of the mean after the decimal point; its interval has two.
  """

  mean: stats.Mean | None = None
  note: str = ""
  runs: int | None = None
  sign: str = ""
  digits: int = 2

  def text(self) -> str:
    if self.mean is None:
      return self.note
    sign = self.sign if round(self.mean.value, self.digits) else ""
    text = f"{self.mean.value:{sign}.{self.digits}f}".replace("-", "−")
    if not math.isnan(self.mean.ci):
      text += f" ± {self.mean.ci:.2f}"
    notes = [f"n={self.runs}"] if self.runs else []
    notes += [self.note] if self.note else []
    return f"{text} ({', '.join(notes)})" if notes else text


@dataclasses.dataclass(frozen=True)
class Table:
  """A table to be written in whatever format.

  Attributes:
    name: key of `layouts.LAYOUTS`.
    title: what it shows.
    header: a name for each column.
    rows: text for what tells rows apart, an `Entry` for what was measured.
    notes: sentences below it.
    filled: how many cells hold a result of a run.
    by_model: whether there is a column for each model, not a row.
  """

  name: str
  title: str
  header: Sequence[str]
  rows: Sequence[Sequence[str | Entry]]
  notes: Sequence[str]
  filled: int
  by_model: bool


def ours(arm: aggregate.Arm | None) -> Entry:
  """Returns the entry of an arm, None for one that was never run."""
  if arm is None:
    return Entry(note=NOT_RUN)
  if arm.waiting:
    return Entry(note=arm.waiting)
  if not arm.done:
    count = len(arm.open)
    return Entry(note=f"incomplete ({count} run{'s' * (count > 1)})")
  return Entry(arm.mean, arm.note(), len(arm.done))


def difference(new: aggregate.Arm | None, old: aggregate.Arm | None) -> Entry:
  """Returns new − old of two arms, where both have results."""
  if not (new and new.done and old and old.done):
    lacking = any(arm and not arm.done for arm in (new, old))
    return Entry(note="incomplete" if lacking else NOT_RUN)
  if new.probes and old.probes:
    mean, how = stats.difference(new.values, old.values)
    return Entry(mean, f"CI of {mean.n} probes, {how}", 1, sign="+")
  # Seeds of a probe are no seeds of runs: of a probed run the mean counts.
  new, old = (
    {"probes": arm.mean.value} if arm.probes else arm.values
    for arm in (new, old)
  )
  mean, how = stats.difference(new, old)
  return Entry(mean, how, mean.n, sign="+")


def published(value: float | None, ci: float = math.nan, sign="") -> Entry:
  """Returns the entry of a number in the paper, in its precision."""
  if value is None:
    return Entry(note=NOT_PUBLISHED)
  return Entry(stats.Mean(value, ci, 1), sign=sign, digits=1)


def condensed(table: Table) -> Table:
  """Returns a table without most of what was never run, and says so.

  Of the differences, columns without a number go; of Table 3, tasks without a
  result of ours. Other tables are short.
  """

  def lacks(cell):
    words = (NOT_RUN, NOT_PUBLISHED)
    return isinstance(cell, Entry) and not cell.mean and cell.note in words

  columns = range(len(table.header))
  rows = table.rows
  if table.by_model:
    columns = [i for i in columns if not all(lacks(row[i]) for row in rows)]
  if table.name == "3":
    rows = [
      row
      for row in rows
      if row[1].startswith("mean of") or not all(map(lacks, row[-3:]))
    ]
  left_out = len(table.rows) - len(rows) or len(table.header) - len(columns)
  if not left_out:
    return table
  what = "rows" if len(rows) < len(table.rows) else "columns"
  note = (
    f"Left out here: {left_out} {what} that were not run; `python -m "
    f"scripts.tables … --table {table.name}` shows all."
  )
  return dataclasses.replace(
    table,
    header=[table.header[i] for i in columns],
    rows=[tuple(row[i] for i in columns) for row in rows],
    notes=[*table.notes, note],
  )
