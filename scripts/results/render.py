"""Writes tables as text, Markdown, CSV or HTML, and pages of them.

A page is a list of parts, which the functions below make: plain data, that
page.html.j2 turns into HTML and escapes.
"""

import base64
import dataclasses
import io
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import jinja2
import pandas as pd
from matplotlib import figure

from dpn import errors
from dpn.scripts.results import aggregate, tables

PIXELS_PER_INCH = 100  # of the page; pictures hold twice as many
PIXELS_PER_CELL = 500  # of the grid; wider pictures take a row
Part = dict[str, Any]

_TEMPLATES = jinja2.Environment(
  loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
  autoescape=True,
  undefined=jinja2.StrictUndefined,
  trim_blocks=True,
  lstrip_blocks=True,
)


@dataclasses.dataclass(frozen=True)
class Picture:
  """A figure of a page, or a PNG, with the texts above and below it."""

  figure: figure.Figure | bytes
  caption: str
  title: str = ""
  width: int = 0  # in pixels of the page; 0 for the figure's own

  @property
  def png(self) -> str:
    """The pixels as text for a data URL."""
    data = self.figure
    if not isinstance(data, bytes):
      file = io.BytesIO()
      data.savefig(file, format="png", dpi=2 * PIXELS_PER_INCH)
      data = file.getvalue()
    return base64.b64encode(data).decode()

  @property
  def pixels(self) -> int:
    return self.width or round(self.figure.get_figwidth() * PIXELS_PER_INCH)


def page(title: str, *parts: Part, numbered: bool = False) -> str:
  """Returns the HTML page of some parts, with a table of contents if numbered.

  Headings of level 2 and 3 have the numbers.
  """
  template = _TEMPLATES.get_template("page.html.j2")
  return template.render(
    title=title, parts=parts, numbered=numbered, wide=PIXELS_PER_CELL
  )


def heading(text: str, level: int = 2) -> Part:
  return {"kind": "heading", "text": text, "level": level}


def paragraph(text: str, style: str = "text") -> Part:
  """Returns a paragraph; `text` between backquotes is shown as code."""
  return {"kind": "paragraph", "pieces": text.split("`"), "style": style}


def listed(texts: Sequence[str], most: int = 12) -> Part:
  """Returns a list; what exceeds `most` is folded away."""
  return {"kind": "list", "first": texts[:most], "more": texts[most:]}


def html_table(frame: pd.DataFrame, *, keys: int = 1) -> Part:
  """Returns a table, its first `keys` columns aligned left."""
  rows = frame.astype(object).to_numpy().tolist()
  return {"kind": "table", "header": [*frame], "rows": rows, "left": keys}


def group(*parts: Part, style: str = "") -> Part:
  """Returns parts that stay together; "intro" sets them in columns."""
  return {"kind": "group", "parts": parts, "style": style}


def folded(summary: str, *parts: Part) -> Part:
  """Returns parts of a page that a click unfolds."""
  return {"kind": "folded", "summary": summary, "parts": parts}


def lines(text: str) -> Part:
  """Returns text whose lines are kept."""
  return {"kind": "lines", "text": text}


def pictures(shown: Sequence[Picture]) -> Part:
  """Returns figures in a grid of equal cells, wider ones across all of it."""
  return {"kind": "pictures", "shown": shown}


def cells(table: tables.Table) -> Part:
  """Returns a table without its title and notes."""
  frame = table.frame.set_axis(_header(table), axis=1)
  return html_table(frame, keys=table.keys)


def html(table: tables.Table, level: int = 2) -> Part:
  """Returns a section of a page, its heading of some level."""
  notes = [paragraph(note, "note") for note in table.notes]
  return group(heading(table.title, level), cells(table), *notes)


def text(table: tables.Table) -> str:
  """Returns a table for a terminal."""
  shown = grid(_marked(table, "* {}"), keys=table.keys)
  return "\n".join([table.title, "", shown, "", *table.notes, ""])


def md(table: tables.Table) -> str:
  """Returns a Markdown table below a heading, its notes as a list."""
  escape = lambda text: text.replace("|", "\\|")
  frame = _marked(table, "**{}**").map(escape).rename(columns=escape)
  shown = grid(frame, keys=table.keys, style="pipe")
  notes = [f"- {note}" for note in table.notes]
  return "\n".join([f"### {table.title}", "", shown, "", *notes, ""])


def _marked(table, mark):
  """Returns a table's cells as text; `mark` is a format for the best."""
  frame = table.frame.map(
    lambda cell: (mark if getattr(cell, "best", False) else "{}").format(cell)
  )
  return frame.set_axis(_header(table), axis=1)


def _header(table):
  """Returns the names of columns, which say what ± stands for."""
  header = []
  for name, column in table.frame.items():
    shown = [c.interval for c in column if getattr(c, "has_interval", False)]
    header.append(f"{name} ± {aggregate.MEASURES[shown[0]]}" if shown else name)
  return header


def grid(frame: pd.DataFrame, *, keys: int = 1, style: str = "plain") -> str:
  """Returns columns of text, the first `keys` aligned left, others right.

  `style` is one of tabulate's table formats.
  """
  align = ["left" if i < keys else "right" for i in range(frame.shape[1])]
  rows = frame.map(lambda cell: errors.printable(str(cell))).to_markdown(
    index=False, tablefmt=style, colalign=align, disable_numparse=True
  )
  return "\n".join(row.rstrip() for row in rows.splitlines())


def csv(table: tables.Table) -> str:
  """Returns a table as CSV, every number in a field of its own.

  A column of estimates gives "<name>", "<name> ci" (half the 95% interval) or
  "<name> sem", "<name> n", "<name> note" and "<name> marked"; words instead of
  a number stand in "<name>". Empty columns are left out.
  """
  columns = [
    pd.DataFrame(map(_fields, column), dtype=object).add_prefix(name)
    for name, column in table.frame.items()
  ]
  frame = pd.concat(columns, axis=1).fillna("")
  return as_csv(frame.loc[:, (frame != "").any()])


def _fields(cell):
  """Returns a cell's fields in CSV, by the end of the column's name."""
  if not isinstance(cell, aggregate.Estimate):
    return {"": cell}
  return {
    "": round(cell.mean, cell.digits + 2),
    {"ci95": " ci", "sem": " sem"}[cell.interval]: (
      "" if math.isnan(cell.ci) else round(cell.spread, cell.digits + 2)
    ),
    " n": cell.n or "",
    " note": cell.note,
    " marked": "yes" if cell.best else "",
  }


def as_csv(frame: pd.DataFrame) -> str:
  """Returns a frame as CSV that no spreadsheet takes for formulas."""

  def inert(cell):
    formula = isinstance(cell, str) and cell.startswith(tuple("=+-@\t\r"))
    return f"'{cell}" if formula else cell

  inert_frame = frame.map(inert).rename(columns=inert)
  return inert_frame.to_csv(index=False, lineterminator="\n")


FORMATS = {"text": text, "md": md, "html": html, "csv": csv}
