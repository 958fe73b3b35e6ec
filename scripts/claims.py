"""Prints each checkable claim of the paper beside what your runs say about it.

  python -m scripts.claims runs
  python -m scripts.claims runs --format md -o claims.md

A claim whose runs are missing says "not run". Finished runs that no claim is
about are listed at the end.
"""

import dataclasses
import textwrap
from collections.abc import Sequence

from dpn.scripts.results import claims, output, render, run_files, runs

_COLUMN = 40  # characters per line of a cell, on the terminal


def main(argv: Sequence[str] | None = None):
  parser = output.parser(__doc__)
  parser.add_argument("runs", nargs="+", help=run_files.HELP)
  parser.add_argument("--format", default="text", choices=render.FORMATS)
  output.add_output(parser)
  args = parser.parse_args(argv)
  with output.errors_in_a_line():
    table = claims.build(runs.frame(run_files.find(args.runs)))
    if args.format == "text":
      wrap = lambda text: textwrap.fill(text, _COLUMN)
      table = dataclasses.replace(table, frame=table.frame.map(wrap))
    text = render.FORMATS[args.format](table)
    if args.format == "html":
      text = render.page(table.title, text)
    output.write(args.output, text)


if __name__ == "__main__":
  main()
