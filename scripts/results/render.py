"""Writes tables as text, Markdown, CSV or HTML, and pages of them."""

import base64
import html as html_lib
import io
import math
from collections.abc import Sequence

import pandas as pd
from matplotlib import figure

from scripts.results import aggregate, output, tables

PIXELS_PER_INCH = 100  # of the page; pictures hold twice as many
_MANY_COLUMNS = 5  # more do not fit on a narrow screen

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{
  margin: 0 auto; max-width: 74rem; padding: 1rem 1.2rem 3rem; color: #1b1b1b;
  background: #fff; font: 1rem/1.5 system-ui, sans-serif;
}}
h1 {{ font-size: 1.6rem; line-height: 1.25; }}
h2 {{ font-size: 1.15rem; margin-top: 2.2rem; }}
p {{ max-width: 44rem; }}
code, pre {{ font: 0.85em ui-monospace, monospace; background: #f4f4f4; }}
code {{ overflow-wrap: anywhere; }}
pre {{ padding: 0.7rem; overflow-x: auto; white-space: pre-wrap; }}
.scroll {{ overflow-x: auto; margin-bottom: 1rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.25rem 0.8rem 0.25rem 0; text-align: right; }}
td:not(.key) {{ white-space: nowrap; }}
.key {{ text-align: left; }}
th {{ border-bottom: 1px solid #888; vertical-align: bottom; }}
td {{ border-bottom: 1px solid #e6e6e6; }}
.row {{ display: flex; flex-wrap: wrap; gap: 0 1rem; align-items: flex-start; }}
figure {{ margin: 0.8rem 0; flex: 0 1 29rem; break-inside: avoid; }}
img {{ max-width: 100%; height: auto; }}
figcaption, table, .note {{ font-size: 0.9rem; }}
figcaption, .note {{ color: #444; }}
.note {{ margin: 0.4rem 0; }}
summary {{ cursor: pointer; }}
details {{ margin: 0.5rem 0 1.2rem; }}
@media (max-width: 60rem) {{  /* rows of wide tables become cards */
  .wide thead {{ display: none; }}
  .wide tr {{ display: block; padding: 0.5rem 0; }}
  .wide tr {{ border-bottom: 1px solid #888; }}
  .wide td {{ display: flex; justify-content: space-between; gap: 1rem; }}
  .wide td {{ border: 0; padding: 0.05rem 0; white-space: normal; }}
  .wide td::before {{ content: attr(data-label); color: #555; }}
  .wide td::before {{ text-align: left; }}
  .wide, .wide tbody {{ display: block; }}
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
  lines = grid(table.frame, keys=table.keys)
  return "\n".join([table.title, "", lines, "", *table.notes, ""])


def md(table: tables.Table) -> str:
  """Returns a Markdown table below a heading, its notes as a list."""
  frame = table.frame.map(lambda cell: str(cell).replace("|", "\\|"))
  lines = grid(frame, keys=table.keys, style="pipe")
  notes = [f"- {note}" for note in table.notes]
  return "\n".join([f"### {table.title}", "", lines, "", *notes, ""])


def grid(frame: pd.DataFrame, *, keys: int = 1, style: str = "plain") -> str:
  """Returns columns of text, the first `keys` aligned left, others right.

  Args:
    frame: any cells; their `str` is shown.
    keys: see above.
    style: one of tabulate's table formats.
  """
  align = ["left" if i < keys else "right" for i in range(frame.shape[1])]
  lines = frame.map(lambda cell: output.printable(str(cell))).to_markdown(
    index=False, tablefmt=style, colalign=align, disable_numparse=True
  )
  return "\n".join(line.rstrip() for line in lines.splitlines())


def csv(table: tables.Table) -> str:
  """Returns a table as CSV, every number in a field of its own.

  A column of estimates gives "<name>", "<name> ci", "<name> n" and "<name>
  note"; words instead of a number stand in "<name>". Empty columns are left
  out.
  """
  columns = {}
  for i, (name, cells) in enumerate(table.frame.items()):
    if i < table.keys:
      columns[name] = cells
      continue
    for field in ("", " ci", " n", " note"):
      columns[name + field] = [_field(cell, field) for cell in cells]
  frame = pd.DataFrame(columns)
  return as_csv(frame.loc[:, (frame != "").any()])


def _field(cell, field):
  """Returns a field of a cell in CSV."""
  if not isinstance(cell, aggregate.Estimate):
    return "" if field else cell
  return {
    "": f"{cell.mean:.{cell.digits + 2}f}",
    " ci": "" if math.isnan(cell.ci) else f"{cell.ci:.4f}",
    " n": "" if cell.n is None else str(cell.n),
    " note": cell.note,
  }[field]


def as_csv(frame: pd.DataFrame) -> str:
  """Returns a frame as CSV that no spreadsheet takes for formulas."""
  inert = frame.map(_inert).rename(columns=_inert)
  return inert.to_csv(index=False, lineterminator="\n")


def _inert(cell):
  """Returns a cell, text that would run as a formula behind an apostrophe."""
  if not isinstance(cell, str) or not cell.startswith(tuple("=+-@\t\r")):
    return cell
  try:
    float(cell)
  except ValueError:
    return f"'{cell}"
  return cell


def html(table: tables.Table) -> str:
  """Returns a section of a page."""
  return "\n".join(
    (
      heading(table.title),
      html_table(table.frame, keys=table.keys),
      *(paragraph(note, "note") for note in table.notes),
    )
  )


def page(title: str, *parts: str) -> str:
  """Returns the HTML page of parts made by the functions below."""
  return _PAGE.format(title=html_lib.escape(title), body="\n".join(parts))


def heading(text: str) -> str:
  """Returns a section's heading."""
  return f"<h2>{html_lib.escape(text)}</h2>"


def paragraph(text: str, kind: str = "text") -> str:
  """Returns a paragraph; `text` between backquotes is shown as code."""
  pieces = html_lib.escape(text).split("`")
  pieces[1::2] = [f"<code>{piece}</code>" for piece in pieces[1::2]]
  return f"<p class={kind}>{''.join(pieces)}</p>"


def html_table(frame: pd.DataFrame, *, keys: int = 1) -> str:
  """Returns a table, its first `keys` columns aligned left, others right.

  A row of a wide table becomes a card on a narrow screen, hence its labels.
  """
  names = [html_lib.escape(name) for name in frame]

  def line(tag, cells, labels):
    return "<tr>{}</tr>".format(
      "".join(
        f"<{tag}{' class=key' if i < keys else ''}{label}>{cell}</{tag}>"
        for i, (cell, label) in enumerate(zip(cells, labels, strict=True))
      )
    )

  labels = [f' data-label="{name}"' for name in names]
  cells = frame.map(lambda cell: html_lib.escape(str(cell)))
  rows = [line("td", row, labels) for row in cells.itertuples(index=False)]
  head = line("th", names, [""] * len(names))
  wide = " class=wide" if len(names) > _MANY_COLUMNS else ""
  return (
    f'<div class="scroll"><table{wide}><thead>{head}</thead>'
    f"<tbody>{''.join(rows)}</tbody></table></div>"
  )


def details(summary: str, text: str) -> str:
  """Returns lines of text that a click unfolds."""
  return (
    f"<details><summary>{html_lib.escape(summary)}</summary>"
    f"<pre>{html_lib.escape(text)}</pre></details>"
  )


def pictures(figures: Sequence[tuple[figure.Figure, str]]) -> str:
  """Returns figures with captions, side by side if the screen is wide."""
  return (
    f'<div class="row">{"".join(_picture(*pair) for pair in figures)}</div>'
  )


def _picture(fig, caption):
  """Returns a figure as a PNG inside the page, with its caption."""
  png = io.BytesIO()
  fig.savefig(png, format="png", dpi=2 * PIXELS_PER_INCH)
  data = base64.b64encode(png.getvalue()).decode()
  width = round(fig.get_figwidth() * PIXELS_PER_INCH)
  text = html_lib.escape(caption)
  return (
    f'<figure style="flex-basis: {width}px"><img width="{width}" alt="{text}" '
    f'src="data:image/png;base64,{data}">'
    f"<figcaption>{text}</figcaption></figure>"
  )
