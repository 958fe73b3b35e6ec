"""Prints the paper's tables with your own numbers beside the published ones.

  python -m scripts.tables runs/table1 --table 1_left
  python -m scripts.tables runs --table all --format html -o tables.html
  python -m scripts.tables runs --format long -o long.csv
  python -m scripts.tables runs --format archive -o runs.jsonl

Folders are searched for runs; config.table says which cell a run fills
(docs/tables.md). A cell that was never run says "not run"; a finished run that
fills none is named below the table, with the reason. --interval says what
stands after ±, on both sides: a 95% interval (ci95) or a standard error (sem).
--table classes shows runs of segmentation, class by class. An archive holds the
runs in a file of a few kilobytes each, which stands for their folders in all
commands that read results.
"""

import argparse
from collections.abc import Sequence

from dpn.scripts.results import (
  aggregate,
  classes,
  output,
  render,
  runs,
  table_specs,
  tables,
)


def main(argv: Sequence[str] | None = None):
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("runs", nargs="+", help="folders that hold runs")
  known = [*table_specs.SPECS, classes.NAME, "all"]
  parser.add_argument("--table", nargs="+", default=["all"], choices=known)
  parser.add_argument(
    "--format", default="text", choices=[*render.FORMATS, "long", "archive"]
  )
  parser.add_argument("--metric", help="instead of the table's own")
  parser.add_argument(
    "--interval", default="ci95", choices=aggregate.MEASURES, help="after ±"
  )
  parser.add_argument("-o", "--output", metavar="FILE", help="not the screen")
  args = parser.parse_args(argv)
  names = table_specs.TABLES if "all" in args.table else args.table
  with output.errors_in_a_line():
    found = runs.find(args.runs)
    if args.format == "long":
      output.write(args.output, render.as_csv(runs.long(found)))
      return
    if args.format == "archive":
      output.write(args.output, runs.archive(found))
      return
    frame, form = runs.frame(found), render.FORMATS[args.format]
    build = lambda name: tables.build(name, frame, args.metric, args.interval)
    built = []
    for name in names:
      of_classes = name == classes.NAME
      built += (
        classes.per_class(frame, args.interval) if of_classes else [build(name)]
      )
    parts = [form(table) for table in built]
    if args.format == "html":
      parts = [render.page("Dual PatchNorm: the paper's tables", *parts)]
    output.write(args.output, "\n".join(parts))


if __name__ == "__main__":
  main()
