"""Draws the paper's figures from runs, as PNG and PDF.

  python -m scripts.figures runs/figure1 --figure 1 -o figures
  python -m scripts.figures W/params.safetensors --figure 3 -o figures
  python -m scripts.figures runs --figure all -o figures

1: gain of each LayerNorm placement; 2: gradient norm against depth (left), and
that of the patch embedding against the step (right); 3: scale of Dual
PatchNorm's first LayerNorm, also from a parameter file; 4: gradient norm
against depth for B/32, S/32 and S/16 (Appendix H); 6: Table 6; curves: training
loss and results by step; differences: of each arm from the baseline; zoo: of
each method of configs/norm_zoo.py from a plain ViT; studies: gains of the
published ones, by what diagnose measures. 2 and 4 need runs with
`config.log_grad_depth`. More than eight arms get a small panel each.
"""

import functools
import os
import sys
from collections.abc import Sequence

from dpn.scripts.results import (
  figures,
  output,
  own_runs,
  run_files,
  runs,
  tables,
)
from dpn.weights import files as parameter_files

_DPI = 300
GROUPS = {"2": ("2_left", "2_right"), "all": figures.ALL}


def _parse(argv):
  parser = output.parser(__doc__)
  help_ = f"{run_files.HELP}; for 3 also parameter files"
  parser.add_argument("runs", nargs="+", help=help_)
  known = [*figures.FIGURES, *GROUPS]
  kw = {"choices": known, "metavar": "NAME", "help": ", ".join(known)}
  parser.add_argument("--figure", nargs="+", action="extend", **kw)
  help_ = "folder to write to"
  parser.add_argument("-o", "--output", required=True, help=help_)
  own_runs.add_arms(parser, "arms to draw, not of 3, zoo and studies (all)")
  help_ = "metric to draw in 1, 6, curves and differences"
  parser.add_argument("--metric", help=help_)
  flag = functools.partial(parser.add_argument, action="store_true")
  flag("--linear", help="linear axes in 2 and 4, as in the paper")
  flag("--clipped", help="in 2 and 4 the gradient after clipping")
  args = parser.parse_args(argv)
  suffixes = tuple(parameter_files.READERS)
  args.figure = args.figure or ["all"]
  args.files = [path for path in args.runs if path.endswith(suffixes)]
  return args


def main(argv: Sequence[str] | None = None):
  args = _parse(argv)
  with output.errors_in_a_line():
    folders = [path for path in args.runs if path not in args.files]
    frame = runs.frame(run_files.find(folders))
    names = [n for name in args.figure for n in GROUPS.get(name, (name,))]
    if frame.empty:
      names = [name for name in names if name == "3"]
      if not names:
        raise ValueError(
          "Only Figure 3 is drawn from parameter files: give folders of runs."
        )
    drawn, missing = figures.draw_all(frame, names, args)
    for name, shown in drawn.items():
      for suffix in ("png", "pdf"):
        path = os.path.join(args.output, f"{name}.{suffix}")
        output.save(shown.figure, path, dpi=_DPI)
      if shown.left_out:
        output.say(f"  {tables.left_out(shown.left_out)}")
    reasons = [f"Not drawn: {name}. {why}" for name, why in missing.items()]
    if not drawn or missing.keys() & set(args.figure):
      raise ValueError("\n".join(reasons))
    for reason in reasons:
      output.say(reason, sys.stderr)


if __name__ == "__main__":
  main()
