"""Prints what runs have shown, and the paper's tables that they fill.

  python -m scripts.tables runs/digits
  python -m scripts.tables runs/table1 --table 1_left
  python -m scripts.tables runs --table all --format html -o tables.html
  python -m scripts.tables runs --format long -o long.csv
  python -m scripts.tables runs --format archive -o runs.jsonl

Without --table: arms × metrics, each arm's difference from the baseline, and
those rows of the paper's tables that a run fills (config.table says which, see
docs/tables.md). --table NAME prints a whole table, also what was never run, and
names each finished run that fills no cell of it, with the reason. --table runs
prints every measured metric and each arm's difference in it; --table classes
shows runs of segmentation class by class. --interval says what follows ±, for
runs and paper alike: a 95% interval (ci95) or a standard error (sem). An
archive holds the runs in a file, a few kilobytes each; all commands that read
results take it in place of their folders.
"""

import dataclasses
from collections.abc import Sequence

from dpn.scripts.results import (
  aggregate,
  classes,
  output,
  own_runs,
  paper,
  render,
  run_files,
  runs,
  tables,
  zoo,
)


def main(argv: Sequence[str] | None = None):
  args = _parser().parse_args(argv)
  with output.errors_in_a_line():
    frame = runs.frame(run_files.find(args.runs))
    frame = own_runs.of_arms(frame, args.arms, args.baseline)
    options = args.table or args.metric or args.interval or args.baseline
    if args.format in ("long", "archive") and options:
      raise ValueError(
        f"--format {args.format} has all logged numbers of all runs. Leave out "
        "--table, --metric, --interval and --baseline."
      )
    args.interval = args.interval or "ci95"
    if args.metric and {classes.NAME, zoo.NAME} & {*(args.table or ())}:
      raise ValueError(
        f"--table {classes.NAME} and {zoo.NAME} have metrics of their own. "
        "Leave out --metric."
      )
    if args.baseline and {*(args.table or ())} - {own_runs.NAME}:
      raise ValueError(
        f"--baseline is of --table {own_runs.NAME}, or none: others have "
        "baselines of their own. Leave it out."
      )
    if args.format == "long":
      output.write(args.output, render.as_csv(runs.long(frame)))
      return
    if args.format == "archive":
      output.write(args.output, run_files.archive(list(frame.run)))
      return
    make = _named if args.table else _existing
    made, wrong = make(frame, args)
    if not made and not wrong:
      raise ValueError(
        "There is nothing to show. "
        + " ".join(own_runs.trials(frame) or ["No run is of segmentation."])
      )
    made = tables.measured(made, args.interval)
    parts = [render.FORMATS[args.format](table) for table in made]
    if args.format == "html":
      parts = [render.page("Results", *parts)]
    output.write(args.output, "\n".join(parts))
    if wrong:
      raise ValueError("\n".join(["left out:", *dict.fromkeys(wrong)]))


def _parser():
  parser = output.parser(__doc__)
  add = parser.add_argument
  add("runs", nargs="+", help=run_files.HELP)
  known = [*paper.TABLES, classes.NAME, own_runs.NAME, zoo.NAME, "all"]
  add("--table", nargs="+", action="extend", choices=known, metavar="NAME",
      help=f"tables to print whole: {', '.join(known)}")  # fmt: skip
  formats = [*render.FORMATS, "long", "archive"]
  add("--format", default="text", choices=formats)
  add("--metric", help="metric to use instead of the runs' or the table's own")
  own_runs.add_arms(parser, "arms to show, if not all")
  output.add_trust(parser)
  measures = aggregate.MEASURES
  add("--interval", choices=measures, help="what follows ± (ci95)")
  output.add_output(parser)
  return parser


def _existing(frame, args):
  """Returns the tables that hold a result, and what is wrong with others."""
  models, wrong = own_runs.models(frame, args.baseline, args.metric)
  made = own_runs.side_by_side(models)
  if made:
    notes = own_runs.in_words(models)
    notes += [*made[-1].notes, *own_runs.trials(frame)]
    made[-1] = dataclasses.replace(made[-1], notes=notes)
  if args.metric:
    return made, wrong
  papers, more = tables.filled(frame, args.interval)
  return [*made, *map(tables.reduced, papers)], wrong + more


def _named(frame, args):
  """Returns the tables that were asked for, and what is wrong with others."""
  every = [name for name, table in paper.TABLES.items() if table.rows]
  names = every if "all" in args.table else args.table
  made, wrong = [], []
  for name in names:
    if name == classes.NAME:
      found, without = classes.per_class(frame)
      made, wrong = made + found, wrong + without
    elif name == own_runs.NAME:
      models, without = own_runs.models(frame, args.baseline, args.metric)
      wrong += without
      made += own_runs.side_by_side(models) + own_runs.everything(models)
    elif name == zoo.NAME:
      made += zoo.build(frame)
    else:
      table, without = tables.build(name, frame, args.metric, args.interval)
      made, wrong = [*made, table], wrong + without
  return made, wrong


if __name__ == "__main__":
  main()
