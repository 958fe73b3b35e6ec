"""Writes one self-contained page: your runs, and the paper beside them.

  python -m scripts.report runs/digits -o report.html
  python -m scripts.report runs/table1 runs/table6 --baseline dpn

First comes what the runs say about their arms: a sentence and an interval for
each comparison, tables, curves, gradients. Then the paper's tables of which a
run fills a cell, and last the runs, their cost and how their configs differ.
"""

import argparse
import dataclasses
import itertools
import os
import pathlib
import sys
from collections.abc import Sequence

from dpn import errors
from dpn.scripts.results import (
  aggregate,
  claims,
  classes,
  figures,
  output,
  own_runs,
  plots,
  render,
  run_files,
  run_lists,
  runs,
  tables,
)
from dpn.scripts.show import command

_LINES = (
  "Lines are means over seeds, bands their 95% confidence intervals (Student's "
  "t) from three runs on; of two, thin lines are the runs."
)
_MULTIPLES = f"More than {len(plots.COLOURS)} arms: grey is the first of them."
_DOTS = (
  "Dots are means over n runs, bars their 95% intervals (Student's t) from "
  "three runs on; of two, ticks are the runs."
)
CAPTIONS = {
  "differences": _DOTS,
  "curves": "",
  "2_left": "Norm of the loss's gradient in the patch embedding (E) and in "
  "each block, as in the paper's Figure 2, where Dual PatchNorm lowers that of "
  "the embedding.",
  "2_right": "Norm of the loss's gradient in the patch embedding, by step.",
  "4": "Norm of the loss's gradient in the patch embedding (E) and in each "
  "block, as in the paper's Figure 4.",
  "3": "What the first LayerNorm of Dual PatchNorm multiplies each pixel of a "
  "patch with, by colour channel; training begins at 1 (white). In the paper's "
  "Figure 3 the scales grow at the centre and the corners.",
  "1": "Gain of each placement of LayerNorms in the block, of NormFormer, "
  "Sub-LN and Dual PatchNorm, over a ViT with LayerNorm before attention and "
  f"MLP. {_DOTS}",
  "6": "Stems relative to Dual PatchNorm. Diamonds: the paper's Table 6. "
  + _DOTS,
}
_GRADIENTS = "Gradients, and what the first LayerNorm learned"
_DRAWN = {"figure_1": "1", "6": "6"}  # table → the figure that shows it


def report(
  found: Sequence[runs.Run],
  title: str,
  notes: Sequence[str] = (),
  interval: str = "ci95",
  baseline: str | None = None,
) -> tuple[str, list[tables.Table], list[str]]:
  """Returns the page, its tables of results, and why others are missing."""
  frame = runs.frame(found)
  models, wrong = own_runs.models(frame, baseline)
  results = tables.measured(own_runs.side_by_side(models), interval)
  every = tables.measured(own_runs.everything(models), interval)
  papers, more = tables.filled(frame, interval)
  papers = tables.measured(papers, interval)
  args = argparse.Namespace(**{**vars(figures.DEFAULTS), "baseline": baseline})
  by_class, without = classes.per_class(frame)
  by_class = tables.measured(by_class, interval)
  missing = []
  parts = [
    *_results(frame, models, results, every, args),
    *([render.heading("Class by class")] if by_class else []),
    *(render.html(table, level=3) for table in by_class),
    *_predictions(frame),
    *_figures(frame, "Curves", ["curves"], args, missing),
    *_figures(
      frame, _GRADIENTS, ["2_left", "4", "2_right", "3"], args, missing
    ),
    *_beside_the_paper(frame, papers, args),
    *run_lists.listed(frame),
    *run_lists.speed(frame),
    *run_lists.config_differences(frame),
  ]
  if missing:
    parts.append(render.folded("Figures that could not be drawn", *missing))
  wrong = list(dict.fromkeys(wrong + without + more))
  intro = [*notes, _summary(frame, interval)]
  intro += [f"Left out: {reason}" for reason in wrong]
  intro = render.group(*map(render.paragraph, intro), style="intro")
  content = render.page(title, intro, *parts, numbered=True)
  return content, results, wrong


def _summary(frame, interval):
  count, complete = len(frame), frame.complete.sum()
  if complete < count:
    state = f"{complete} of them complete; means leave the others out"
  else:
    state = "all of them complete"
  return (
    f"{count} run{'s' * (count > 1)}, {state}. ± is {tables.WORDS[interval]} "
    "over n runs that differ in their seed."
  )


def _results(frame, models, results, every, args):
  """Returns the results in words, as a figure, as tables, and all metrics."""
  words = own_runs.in_words(models)
  parts = [render.heading("Results"), render.listed(words)]
  parts += _pictures(frame, ("differences",), args, missing=[])
  for table in results:
    notes = [render.paragraph(note, "note") for note in table.notes]
    titled = [render.heading(table.title, 3)] if len(results) > 1 else []
    parts.append(render.group(*titled, render.cells(table), *notes))
  parts += [render.paragraph(note, "note") for note in own_runs.trials(frame)]
  if every:
    shown = [render.html(table, level=4) for table in every]
    parts.append(render.folded("All metrics that were measured", *shown))
  return parts


def _pictures(frame, names, args, missing):
  """Returns a grid of `FIGURES`; adds to `missing` why some cannot be drawn."""
  shown = []
  for name in names:
    drawn, why = figures.draw_all(frame, [name], args)
    missing += [render.paragraph(f"{name}: {text}") for text in why.values()]
    for of in drawn.values():
      caption = f"{CAPTIONS[name]} {tables.left_out(of.left_out)}".strip()
      shown.append(render.Picture(of.figure, caption, of.title))
  return [render.pictures(shown)] if shown else []


def _figures(frame, section, names, args, missing):
  """Returns a section of figures, if there is any."""
  shown = _pictures(frame, names, args, missing)
  if not shown:
    return []
  many = frame.arm[~frame.trial].nunique() > len(plots.COLOURS)
  note = f"{_LINES} {_MULTIPLES}" if many else _LINES
  return [render.heading(section), render.paragraph(note, "note"), *shown]


def _predictions(frame):
  """Returns the pictures of predictions that the runs have."""
  shown = []
  folders = filter(None, (run.folder for run in frame.run))
  pairs = itertools.product(folders, command.PICTURES.items())
  for folder, (name, by) in pairs:
    path = os.path.join(folder, name)
    if os.path.exists(path):
      caption, picture = f"{path}, by {by}.", pathlib.Path(path).read_bytes()
      shown.append(render.Picture(picture, caption, width=1150))
  return [render.heading("Predictions"), render.pictures(shown)] * bool(shown)


def _beside_the_paper(frame, papers, args):
  """Returns the paper's tables that runs fill, with figures, and its claims."""
  parts = []
  for table in papers:
    parts.append(render.html(tables.reduced(table), level=3))
    if name := _DRAWN.get(table.name):
      parts += _pictures(frame, (name,), args, missing=[])
  table = claims.build(frame)
  said = table.frame[table.frame.ours != ""]
  if len(said):
    note = f"{len(table.frame) - len(said)} claims have no runs here."
    shown = dataclasses.replace(table, frame=said, notes=[*table.notes, note])
    parts.append(render.html(shown, level=3))
  return [render.heading("Beside the paper"), *parts] if parts else []


def main(argv: Sequence[str] | None = None):
  parser = output.parser(__doc__)
  add = parser.add_argument
  add("runs", nargs="+", help=run_files.HELP)
  add("-o", "--output", default="report.html", metavar="FILE", help="page")
  own_runs.add_arms(parser)
  add("--interval", default="ci95", choices=aggregate.MEASURES, help="after ±")
  add("--title", default="Results")
  add("--note", action="append", default=[], help="paragraph at the top")
  args = parser.parse_args(argv)
  with output.errors_in_a_line():
    found = run_files.find(args.runs)
    content, results, wrong = report(
      found, args.title, args.note, args.interval, args.baseline
    )
    for table in results:
      output.say(render.text(table))
    output.write(os.path.abspath(args.output), content)
  if wrong:
    reasons = "\n".join(f"Error: left out: {reason}" for reason in wrong)
    sys.exit(errors.printable(reasons))


if __name__ == "__main__":
  main()
