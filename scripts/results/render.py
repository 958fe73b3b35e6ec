"""Writes a table as text, Markdown, CSV or HTML."""

import csv
import io
import math
import unicodedata
from collections.abc import Sequence

from scripts.results import entries, page


def text(table: entries.Table) -> str:
  """Returns a table for a terminal."""
  lines = aligned(table.header, _texts(table), keys=_keys(table))
  return "\n".join([table.title, "", lines, "", *table.notes, ""])


def md(table: entries.Table) -> str:
  """Returns a Markdown table below a heading, its notes as a list."""
  keys = _keys(table)
  rule = ["---" if i < keys else "--:" for i in range(len(table.header))]
  rows = [table.header, rule, *_texts(table)]
  lines = [
    f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    for row in rows
  ]
  notes = [f"- {note}" for note in table.notes]
  return "\n".join([f"### {table.title}", "", *lines, "", *notes, ""])


def html(table: entries.Table) -> str:
  """Returns a section of a page."""
  return "\n".join(
    (
      page.heading(table.title),
      page.table(table.header, _texts(table), keys=_keys(table)),
      *(page.note(note) for note in table.notes),
    )
  )


def records(table: entries.Table) -> list[dict[str, str]]:
  """Returns a mapping for each row, every number in a field of its own.

  A column of entries gives "<name>", "<name> ci", "<name> n" and "<name> note";
  words instead of a number stand in "<name>". Fields without any value are left
  out.
  """
  found = []
  for row in table.rows:
    record = {}
    for name, cell in zip(table.header, row, strict=True):
      record |= _fields(name, cell)
    found.append(record)
  empty = {name for name in found[0] if not any(r[name] for r in found)}
  return [{k: v for k, v in r.items() if k not in empty} for r in found]


def _fields(name, cell):
  """Returns the fields of a cell in a record."""
  if isinstance(cell, str):
    return {name: cell}
  value, ci, note = cell.note, "", ""
  if cell.mean:
    value, note = f"{cell.mean.value:.{cell.digits + 2}f}", cell.note
    ci = "" if math.isnan(cell.mean.ci) else f"{cell.mean.ci:.4f}"
  count = "" if cell.runs is None else str(cell.runs)
  return {
    name: value,
    f"{name} ci": ci,
    f"{name} n": count,
    f"{name} note": note,
  }


def as_csv(rows: Sequence[dict[str, str]]) -> str:
  """Returns mappings with the same keys as CSV with a header."""
  out = io.StringIO()
  writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
  writer.writeheader()
  writer.writerows(rows)
  return out.getvalue()


def aligned(
  header: Sequence[str], rows: Sequence[Sequence[str]], *, keys: int = 1
) -> str:
  """Returns columns for a terminal, the first `keys` aligned left."""
  lines = [header, *rows]
  widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]

  def pad(cell, width, left):
    space = " " * (width - _width(cell))
    return cell + space if left else space + cell

  return "\n".join(
    "  ".join(
      pad(cell, width, left=i < keys)
      for i, (cell, width) in enumerate(zip(line, widths, strict=True))
    ).rstrip()
    for line in lines
  )


def _width(cell):
  return sum(not unicodedata.combining(letter) for letter in cell)


def _texts(table):
  return [
    [cell if isinstance(cell, str) else cell.text() for cell in row]
    for row in table.rows
  ]


def _keys(table):
  """Returns how many columns hold text alone."""
  return sum(isinstance(cell, str) for cell in table.rows[0])
