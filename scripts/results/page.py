"""Writes a report as one HTML file that needs no other."""

import base64
import html
import io
from collections.abc import Sequence

from matplotlib import figure

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
figcaption {{ font-size: 0.9rem; color: #444; }}
table {{ font-size: 0.9rem; }}
.note {{ font-size: 0.9rem; color: #444; margin: 0.4rem 0; }}
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


def page(title: str, *parts: str) -> str:
  """Returns the HTML page of parts made by the functions below."""
  return _PAGE.format(title=html.escape(title), body="\n".join(parts))


def heading(text: str) -> str:
  """Returns a section's heading."""
  return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str) -> str:
  """Returns a paragraph; `text` between backquotes is shown as code."""
  return f"<p>{_with_code(text)}</p>"


def note(text: str) -> str:
  """Returns a smaller paragraph, to go below a table."""
  return f"<p class=note>{_with_code(text)}</p>"


def _with_code(text):
  pieces = html.escape(text).split("`")
  pieces[1::2] = [f"<code>{piece}</code>" for piece in pieces[1::2]]
  return "".join(pieces)


def commands(*lines: str) -> str:
  """Returns lines to type, one below the other."""
  return f"<pre>{html.escape(chr(10).join(lines))}</pre>"


def table(
  header: Sequence[str], rows: Sequence[Sequence[str]], *, keys: int = 1
) -> str:
  """Returns a table, its first `keys` columns aligned left, others right."""

  def line(cell, values):
    cells = []
    for i, (name, value) in enumerate(zip(header, values, strict=True)):
      key = " class=key" if i < keys else ""
      label = f' data-label="{html.escape(name)}"' if cell == "td" else ""
      cells.append(f"<{cell}{key}{label}>{html.escape(value)}</{cell}>")
    return f"<tr>{''.join(cells)}</tr>"

  head = f"<thead>{line('th', header)}</thead>"
  body = f"<tbody>{''.join(line('td', row) for row in rows)}</tbody>"
  wide = " class=wide" if len(header) > _MANY_COLUMNS else ""
  return f'<div class="scroll"><table{wide}>{head}{body}</table></div>'


def details(summary: str, text: str) -> str:
  """Returns lines of text that a click unfolds."""
  return (
    f"<details><summary>{html.escape(summary)}</summary>"
    f"<pre>{html.escape(text)}</pre></details>"
  )


def row(*figures: str) -> str:
  """Returns pictures side by side where the screen is wide enough."""
  return f'<div class="row">{"".join(figures)}</div>'


def picture(fig: figure.Figure, caption: str) -> str:
  """Returns a figure as a PNG inside the page, with its caption."""
  png = io.BytesIO()
  fig.savefig(png, format="png", dpi=2 * PIXELS_PER_INCH)
  data = base64.b64encode(png.getvalue()).decode()
  width = round(fig.get_figwidth() * PIXELS_PER_INCH)
  text = html.escape(caption)
  return (
    f'<figure style="flex-basis: {width}px"><img width="{width}" alt="{text}" '
    f'src="data:image/png;base64,{data}">'
    f"<figcaption>{text}</figcaption></figure>"
  )
