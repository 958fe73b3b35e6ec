"""The command line that scripts.show_predictions and show_retrieval share."""

import argparse
import os
from collections.abc import Callable, Sequence

from matplotlib import figure

from dpn.scripts.results import output

PREDICTIONS, RETRIEVAL = "predictions.png", "retrieval.png"
# Files in the folder of a run, and the commands that draw them.
PICTURES = {
  PREDICTIONS: "scripts.show_predictions",
  RETRIEVAL: "scripts.show_retrieval",
}


def parser(doc: str) -> argparse.ArgumentParser:
  """Returns a parser for runs and for what to show of them."""
  made = output.parser(doc)
  made.add_argument("runs", nargs="+", help="run folders")
  made.add_argument("--images", nargs="+", type=int, help="numbers, from 0")
  made.add_argument("--evaluator", help="whose data (that of the runs' metric)")
  made.add_argument("-o", "--output", metavar="FILE", help="the picture")
  output.add_trust(made)
  return made


def main(
  args: argparse.Namespace,
  picture: str,
  draw: Callable[[Sequence[str]], figure.Figure],
):
  """Writes a picture, by default to the folder of the first run.

  Args:
    args: of `parser`.
    picture: name of the file.
    draw: names of the runs → the picture.
  """
  titles = [os.path.basename(os.path.abspath(path)) for path in args.runs]
  file = args.output or os.path.join(args.runs[0], picture)
  with output.errors_in_a_line():
    output.save(draw(titles), file)


def spread(count: int) -> list[int]:
  """Returns four evenly spaced indices below `count`; fewer if it is small."""
  return sorted({(2 * i + 1) * count // 8 for i in range(4)})
