"""Prints the paper's tables with your own numbers beside the published ones.

  python -m scripts.tables runs/table1 --table 1_left
  python -m scripts.tables runs --table all --format html -o tables.html
  python -m scripts.tables runs --format long -o long.csv

Folders are searched for runs; which cell a run fills, its config says (see
configs/common.py). A cell that was never run says "not run".
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence

from dpn import errors
from scripts.results import cells, output, page, render, runs, table_specs

FORMATS = {"text": render.text, "md": render.md, "html": render.html}
LONG = (
  "run",
  "recipe",
  "arch",
  "arm",
  "seed",
  "step",
  "metric",
  "value",
  "commit",
  "config_hash",
  "complete",
)


def long_rows(found: Iterable[runs.Run]) -> Iterator[dict[str, str]]:
  """Yields a mapping of `LONG` for each number that the runs logged."""
  for run in found:
    cell = cells.of(run)
    known = {
      "run": run.path,
      "recipe": cell.recipe if cell else "runlocal",
      "arch": cell.get("arch") if cell else "",
      "arm": cell.arm if cell else "",
      "seed": run.seed,
      "commit": run.commit,
      "config_hash": run.config_hash,
      "complete": run.complete,
    }
    for row in run.rows:
      for metric, value in row.items():
        if metric != "step":
          filled = known | {
            "step": row["step"],
            "metric": metric,
            "value": value,
          }
          yield {name: str(filled[name]) for name in LONG}


def _render(tables, form):
  if form == "html":
    title = "Dual PatchNorm: the paper's tables"
    return page.page(title, *map(render.html, tables))
  if form == "csv":
    return "\n".join(render.as_csv(render.records(t)) for t in tables)
  return "\n".join(FORMATS[form](table) for table in tables)


def _parse(argv):
  parser = argparse.ArgumentParser(
    description=__doc__.partition("\n")[0],
    epilog=f"Tables: {', '.join(table_specs.LAYOUTS)}.",
  )
  parser.add_argument("runs", nargs="+", help="folders that hold runs")
  parser.add_argument("--table", nargs="+", default=["all"], metavar="NAME")
  parser.add_argument(
    "--format", default="text", choices=[*FORMATS, "csv", "long"]
  )
  parser.add_argument("--metric", help="instead of the table's own")
  parser.add_argument("--long", metavar="FILE", help="the long table as CSV")
  parser.add_argument("-o", "--output", metavar="FILE", help="not the screen")
  args = parser.parse_args(argv)
  if args.table == ["all"]:
    args.table = list(table_specs.TABLES)
  for name in args.table:
    if name not in table_specs.LAYOUTS:
      known = [*table_specs.LAYOUTS, "all"]
      raise ValueError(errors.unknown("table", name, known))
  return args


def _write(path: str | None, content: str):
  if path is None:
    print(content, end="" if content.endswith("\n") else "\n")
    return
  output.write(path, content)
  print(f"Wrote {path}.")


def main(argv: Sequence[str] | None = None):
  try:
    args = _parse(argv)
    found = runs.find(args.runs)
    if args.long or args.format == "long":
      long = render.as_csv(list(long_rows(found)))
    if args.long:
      _write(args.long, long)
    if args.format == "long":
      _write(args.output, long)
      return
    tables = [
      table_specs.build(name, found, args.metric) for name in args.table
    ]
    _write(args.output, _render(tables, args.format))
  except (ValueError, OSError) as e:
    sys.exit(f"Error: {e}")


if __name__ == "__main__":
  main()
