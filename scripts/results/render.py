"""Writes tables as text, Markdown, CSV or HTML, and pages of them."""

import base64
import html as html_lib
import io
import math
from collections.abc import Sequence

import pandas as pd
from matplotlib import figure

from dpn.scripts.results import aggregate, output, tables

PIXELS_PER_INCH = 100  # of the page; pictures hold twice as many

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ margin: 0 auto; max-width: 74rem; padding: 1rem 1.2rem 3rem; }}
body {{ color: #1b1b1b; font: 1rem/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; }}
h2 {{ font-size: 1.15rem; margin-top: 2.2rem; }}
p {{ max-width: 44rem; }}
code, pre {{ font: 0.85em ui-monospace, monospace; background: #f4f4f4; }}
code, pre {{ overflow-wrap: anywhere; }}
pre {{ padding: 0.7rem; white-space: pre-wrap; }}
.scroll {{ overflow-x: auto; margin-bottom: 1rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.25rem 0.8rem 0.25rem 0; text-align: right; }}
td {{ border-bottom: 1px solid #e6e6e6; white-space: nowrap; }}
th {{ border-bottom: 1px solid #888; vertical-align: bottom; }}
.keys1 :nth-child(-n+1):is(th, td), .keys2 :nth-child(-n+2):is(th, td),
.keys3 :nth-child(-n+3):is(th, td), .keys4 :nth-child(-n+4):is(th, td)
{{ text-align: left; white-space: normal; }}
.row {{ display: flex; flex-wrap: wrap; gap: 0 1rem; align-items: flex-start; }}
figure {{ margin: 0.8rem 0; flex: 0 1 29rem; break-inside: avoid; }}
img {{ max-width: 100%; height: auto; }}
figcaption, table, .note {{ font-size: 0.9rem; }}
figcaption, .note {{ color: #444; margin: 0.4rem 0; }}
summary {{ cursor: pointer; }}
@media (max-width: 40rem) {{  /* while a wide table is scrolled sideways */
  :is(th, td):first-child {{ position: sticky; left: 0; background: #fff; }}
  td:first-child {{ max-width: 9rem; overflow-wrap: break-word; }}
}}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


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

  named = lambda cells: any(getattr(c, "ci", math.nan) >= 0 for c in cells)
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


def html(table: tables.Table) -> str:
  """Returns a section of a page."""
  notes = [paragraph(note, "note") for note in table.notes]
  return "\n".join([heading(table.title), html_cells(table), *notes])


def html_cells(table: tables.Table) -> str:
  """Returns a table alone, without its title and notes."""
  frame = _shown(table, "<b>{}</b>", html_lib.escape)
  return html_table(frame, keys=table.keys, escape=False)


def page(title: str, *parts: str) -> str:
  """Returns the HTML page of parts made by the functions below."""
  return _PAGE.format(title=html_lib.escape(title), body="\n".join(parts))


def heading(text: str) -> str:
  return f"<h2>{html_lib.escape(text)}</h2>"


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
  return (
    f"<details><summary>{html_lib.escape(summary)}</summary>"
    f"<pre>{html_lib.escape(text)}</pre></details>"
  )


def pictures(figures: Sequence[tuple[figure.Figure, str]]) -> str:
  """Returns figures with captions, side by side if the screen is wide."""
  shown = []
  for fig, caption in figures:
    png = io.BytesIO()
    fig.savefig(png, format="png", dpi=2 * PIXELS_PER_INCH)
    width = round(fig.get_figwidth() * PIXELS_PER_INCH)
    shown.append(png_image(png.getvalue(), caption, width))
  return f'<div class="row">{"".join(shown)}</div>'


FORMATS = {"text": text, "md": md, "html": html, "csv": csv}


def png_image(png: bytes, caption: str, width: int) -> str:
  """Returns a picture inside the page, that many pixels wide, captioned."""
  data = base64.b64encode(png).decode()
  text = html_lib.escape(caption)
  return (
    f'<figure style="flex-basis: {width}px"><img width="{width}" alt="{text}" '
    f'src="data:image/png;base64,{data}">'
    f"<figcaption>{text}</figcaption></figure>"
  )
