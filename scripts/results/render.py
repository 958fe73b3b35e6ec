"""Writes tables as text, Markdown, CSV or HTML, and pages of them."""

import base64
import dataclasses
import html as html_lib
import io
import math
import pathlib
import re
from collections.abc import Sequence

import pandas as pd
from matplotlib import figure

from dpn.scripts.results import aggregate, output, tables

PIXELS_PER_INCH = 100  # of the page; pictures hold twice as many
PIXELS_PER_CELL = 500  # of the grid; wider pictures take a row

_STYLE = pathlib.Path(__file__).with_name("page.css").read_text("utf-8")
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


@dataclasses.dataclass(frozen=True)
class Picture:
  """A figure of a page, with what stands above and below it."""

  figure: figure.Figure
  caption: str
  title: str = ""


def text(table: tables.Table) -> str:
  """Returns a table for a terminal."""
  lines = grid(_shown(table, "* {}"), keys=table.keys)
  return "\n".join([table.title, "", lines, "", *table.notes, ""])


def md(table: tables.Table) -> str:
  """Returns a Markdown table below a heading, its notes as a list."""
  frame = _shown(table, "**{}**", lambda cell: cell.replace("|", "\\|"))
  lines = grid(frame, keys=table.keys, style="pipe")
  notes = [f"- {note}" for note in table.notes]
  return "\n".join([f"### {table.title}", "", lines, "", *notes, ""])


def _shown(table, mark, escape=str):
  """Returns a table's cells as text, and in the header what ± stands for.

  `mark` is a format for the cells that are to stand out.
  """

  def shown(cell):
    text = escape(str(cell))
    return mark.format(text) if getattr(cell, "best", False) else text

  named = lambda cells: any(getattr(c, "has_interval", False) for c in cells)
  names = [
    f"{name} ± {table.measure}" if named(cells) else name
    for name, cells in table.frame.items()
  ]
  return table.frame.map(shown).set_axis(names, axis=1)


def grid(frame: pd.DataFrame, *, keys: int = 1, style: str = "plain") -> str:
  """Returns columns of text, the first `keys` aligned left, others right.

  `style` is one of tabulate's table formats.
  """
  align = ["left" if i < keys else "right" for i in range(frame.shape[1])]
  lines = frame.map(lambda cell: output.printable(str(cell))).to_markdown(
    index=False, tablefmt=style, colalign=align, disable_numparse=True
  )
  return "\n".join(line.rstrip() for line in lines.splitlines())


def csv(table: tables.Table) -> str:
  """Returns a table as CSV, every number in a field of its own.

  A column of estimates gives "<name>", "<name> ci" (half the 95% interval) or
  "<name> sem", "<name> n", "<name> note" and "<name> marked"; words instead of
  a number stand in "<name>". Empty columns are left out.
  """
  columns = [
    pd.DataFrame(map(_fields, cells), dtype=object).add_prefix(name)
    for name, cells in table.frame.items()
  ]
  frame = pd.concat(columns, axis=1).fillna("")
  return as_csv(frame.loc[:, (frame != "").any()])


def _fields(cell):
  """Returns a cell's fields in CSV, by the end of the column's name."""
  if not isinstance(cell, aggregate.Estimate):
    return {"": cell}
  mean = round(cell.mean, cell.digits + 2)
  spread = "" if math.isnan(cell.ci) else round(cell.spread, 4)
  kind = {"ci95": " ci", "sem": " sem"}[cell.interval]
  marked = "yes" if cell.best else ""
  facts = {" n": cell.n or "", " note": cell.note, " marked": marked}
  return {"": mean, kind: spread, **facts}


def as_csv(frame: pd.DataFrame) -> str:
  """Returns a frame as CSV that no spreadsheet takes for formulas."""

  def inert(cell):
    formula = isinstance(cell, str) and cell.startswith(tuple("=+-@\t\r"))
    return f"'{cell}" if formula else cell

  inert_frame = frame.map(inert).rename(columns=inert)
  return inert_frame.to_csv(index=False, lineterminator="\n")


def html(table: tables.Table, level: int = 2) -> str:
  """Returns a section of a page, its heading of some level."""
  notes = [paragraph(note, "note") for note in table.notes]
  return "\n".join([heading(table.title, level), html_cells(table), *notes])


def html_cells(table: tables.Table) -> str:
  """Returns a table alone, without its title and notes."""
  frame = _shown(table, "<b>{}</b>", html_lib.escape)
  return html_table(frame, keys=table.keys, escape=False)


def page(title: str, *parts: str) -> str:
  """Returns the HTML page of parts made by the functions below."""
  title, body = html_lib.escape(title), "\n".join(parts)
  return _PAGE.format(title=title, style=_STYLE, body=body)


def numbered(*parts: str) -> list[str]:
  """Returns parts of a page, its headings numbered, with a contents list."""
  first, *rest = re.split(r"<h([23])>(.*?)</h\1>", "\n".join(parts))
  body, contents, section, item = [first], [], 0, 0
  for level, title, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
    if level == "2":
      section, item = section + 1, 0
      contents.append(f'<li><a href="#s{section}">{section}. {title}</a></li>')
      body.append(f'<h2 id="s{section}">{section}. {title}</h2>{text}')
    else:
      item += 1
      body.append(f"<h3>{section}.{item} {title}</h3>{text}")
  return [f"<nav><ul>{''.join(contents)}</ul></nav>", *body]


def heading(text: str, level: int = 2) -> str:
  return f"<h{level}>{html_lib.escape(text)}</h{level}>"


def listed(texts: Sequence[str], most: int = 12) -> str:
  """Returns a list; what exceeds `most` is folded away."""
  items = [f"<li>{html_lib.escape(text)}</li>" for text in texts]
  shown = f"<ul>{''.join(items[:most])}</ul>"
  if len(items) <= most:
    return shown
  rest = f"<ul>{''.join(items[most:])}</ul>"
  return shown + folded(f"{len(items) - most} more", rest)


def paragraph(text: str, kind: str = "text") -> str:
  """Returns a paragraph; `text` between backquotes is shown as code."""
  pieces = html_lib.escape(text).split("`")
  pieces[1::2] = [f"<code>{piece}</code>" for piece in pieces[1::2]]
  return f"<p class={kind}>{''.join(pieces)}</p>"


def html_table(
  frame: pd.DataFrame, *, keys: int = 1, escape: bool = True
) -> str:
  """Returns a table, its first `keys` ≤ 4 columns aligned left, others right.

  What is too wide for the screen scrolls. Without `escape` cells are HTML.
  """
  with pd.option_context("display.max_colwidth", None):
    cells = frame.map(str).to_html(
      index=False, border=0, classes=f"keys{keys}", escape=escape
    )
  return f'<div class="scroll">{cells}</div>'


def details(summary: str, text: str) -> str:
  """Returns lines of text that a click unfolds."""
  return folded(summary, f"<pre>{html_lib.escape(text)}</pre>")


def folded(summary: str, *parts: str) -> str:
  """Returns parts of a page that a click unfolds."""
  body = "\n".join(parts)
  summary = html_lib.escape(summary)
  return f"<details><summary>{summary}</summary>{body}</details>"


def beside(*parts: str) -> str:
  """Returns parts side by side, as far as the screen is wide."""
  return f'<div class="beside">{"".join(parts)}</div>'


def block(*parts: str) -> str:
  """Returns parts that stay together."""
  return f"<div>{''.join(parts)}</div>"


def pictures(shown: Sequence[Picture]) -> str:
  """Returns figures in a grid of equal cells, wider ones across all of it."""
  cells = []
  for picture in shown:
    png = io.BytesIO()
    picture.figure.savefig(png, format="png", dpi=2 * PIXELS_PER_INCH)
    width = round(picture.figure.get_figwidth() * PIXELS_PER_INCH)
    cells.append(
      png_image(png.getvalue(), picture.caption, width, picture.title)
    )
  return f'<div class="grid">{"".join(cells)}</div>'


FORMATS = {"text": text, "md": md, "html": html, "csv": csv}


def png_image(png: bytes, caption: str, width: int, title: str = "") -> str:
  """Returns a picture inside the page, that many pixels wide, captioned."""
  data = base64.b64encode(png).decode()
  text = html_lib.escape(caption)
  kind = ' class="wide"' if width > PIXELS_PER_CELL else ""
  above = heading(title, 3) if title else ""
  return (
    f'<figure{kind}>{above}<img width="{width}" '
    f'alt="{html_lib.escape(title) or text}" '
    f'src="data:image/png;base64,{data}">'
    f"<figcaption>{text}</figcaption></figure>"
  )
