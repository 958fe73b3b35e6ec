"""Draws the paper's figures from runs, as PNG and PDF.

  python -m scripts.figures runs/figure1 --figure 1 -o figures
  python -m scripts.figures W/params.safetensors --figure 3 -o figures
  python -m scripts.figures runs --figure all -o figures

1: gain of each LayerNorm placement; 2: gradient norm against depth; 3: scale of
the first LayerNorm of Dual PatchNorm, also of a parameter file; 4: gradient
norm of the patch embedding against the step; 6: Table 6 as bars; curves:
training loss and accuracy. 2 and 4 need runs with `config.log_grad_depth`.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from dpn import errors
from dpn.weights import files as parameter_files
from scripts.results import figures, output, runs

_DPI = 300
_FILES = tuple(parameter_files.READERS)


def save(drawn: figures.Drawn, folder: str):
  """Writes each figure as <name>.png and <name>.pdf."""
  with output.made(folder):
    for name, fig in drawn.items():
      for suffix in ("png", "pdf"):
        path = os.path.join(folder, f"{name}.{suffix}")
        fig.savefig(path, dpi=_DPI)
        output.say(f"Wrote {path}")


def _parse(argv):
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument(
    "runs", nargs="+", help="folders that hold runs; for 3 also parameter files"
  )
  parser.add_argument("--figure", nargs="+", default=["all"], metavar="NAME")
  parser.add_argument("-o", "--output", required=True, metavar="FOLDER")
  parser.add_argument(
    "--arms", nargs="+", default=(), metavar="ARM",
    help="for 2, 4 and curves: base dpn pre …; base and dpn without it",
  )  # fmt: skip
  parser.add_argument("--metric", help="for 1, 6 and curves")
  parser.add_argument(
    "--last_steps", type=int, help="of Figure 2; 1,000, of short runs a tenth"
  )
  args = parser.parse_args(argv)
  for name in args.figure:
    if name not in (*figures.FIGURES, "all"):
      raise ValueError(
        errors.unknown("figure", name, [*figures.FIGURES, "all"])
      )
  if args.last_steps is not None and args.last_steps < 1:
    raise ValueError(f"--last_steps={args.last_steps}: expected 1 or more.")
  args.files = [path for path in args.runs if path.endswith(_FILES)]
  return args


def main(argv: Sequence[str] | None = None):
  with output.errors_in_a_line():
    args = _parse(argv)
    found = runs.find([path for path in args.runs if path not in args.files])
    if not found and {*args.figure} - {"3", "all"}:
      raise ValueError(
        "Only Figure 3 is drawn from parameter files: give folders of runs."
      )
    if "all" in args.figure:
      drawn, missing = figures.draw_all(found, args=args)
      for name, why in missing.items():
        output.say(f"Not drawn: {name}. {why}", sys.stderr)
      if not drawn:
        raise ValueError("No figure could be drawn; see above.")
    else:
      drawn = {}
      for name in args.figure:
        drawn |= figures.FIGURES[name](found, args)
    save(drawn, args.output)


if __name__ == "__main__":
  main()
