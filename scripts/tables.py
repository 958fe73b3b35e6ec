"""Prints the paper's tables with your own numbers beside the published ones.

  python -m scripts.tables runs/table1 --table 1_left
  python -m scripts.tables runs --table all --format html -o tables.html
  python -m scripts.tables runs --format long -o long.csv

Folders are searched for runs; config.table says which cell a run fills
(docs/tables.md). A cell that was never run says "not run".
"""

import argparse
from collections.abc import Sequence

from dpn import errors
from scripts.results import output, render, runs, table_specs, tables

FORMATS = {
  "text": render.text,
  "md": render.md,
  "html": render.html,
  "csv": render.csv,
}


def _parse(argv):
  parser = argparse.ArgumentParser(
    description=__doc__.partition("\n")[0],
    epilog=f"Tables: {', '.join(table_specs.SPECS)}.",
  )
  parser.add_argument("runs", nargs="+", help="folders that hold runs")
  parser.add_argument("--table", nargs="+", default=["all"], metavar="NAME")
  parser.add_argument("--format", default="text", choices=[*FORMATS, "long"])
  parser.add_argument("--metric", help="instead of the table's own")
  parser.add_argument("-o", "--output", metavar="FILE", help="not the screen")
  args = parser.parse_args(argv)
  if args.table == ["all"]:
    args.table = list(table_specs.TABLES)
  for name in args.table:
    if name not in table_specs.SPECS:
      known = [*table_specs.SPECS, "all"]
      raise ValueError(errors.unknown("table", name, known))
  return args


def main(argv: Sequence[str] | None = None):
  with output.errors_in_a_line():
    args = _parse(argv)
    found = runs.find(args.runs)
    frame = runs.frame(found)
    if args.format == "long":
      output.write(args.output, render.as_csv(runs.long(found)))
      return
    parts = [
      FORMATS[args.format](tables.build(name, frame, args.metric))
      for name in args.table
    ]
    if args.format == "html":
      parts = [render.page("Dual PatchNorm: the paper's tables", *parts)]
    output.write(args.output, "\n".join(parts))


if __name__ == "__main__":
  main()
