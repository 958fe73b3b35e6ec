"""Writes one page that needs no other: results, tables, figures, configs.

  python -m scripts.report runs/table1 runs/table6 -o report.html

Shows whatever the runs in these folders give, and lists what they do not.
"""

import argparse
import dataclasses
import functools
import math
import os
import sys
from collections.abc import Sequence

import pandas as pd

from dpn.scripts.results import (
  aggregate,
  claims,
  classes,
  configs,
  figures,
  output,
  render,
  run_pictures,
  runs,
  table_specs,
  tables,
)

CAPTIONS = {
  "figure_1": "Gain of each placement of LayerNorms in the block, of "
  "NormFormer, Sub-LN and Dual PatchNorm, over a ViT with LayerNorm "
  "before attention and MLP. Bars without a whisker are single runs.",
  "figure_2_left": "Norm of the loss's gradient in the patch embedding (E) and "
  "in each block. In the paper's Figure 2, Dual PatchNorm lowers that of the "
  "embedding. {lines}",
  "figure_2_right": "Norm of the loss's gradient in the patch embedding, by "
  "step. {lines}",
  "figure_3": "What the first LayerNorm of Dual PatchNorm multiplies each "
  "pixel of a patch with, by colour channel; training begins at 1 (white). In "
  "the paper's Figure 3 the scales grow at the centre and the corners.",
  "figure_4": "As Figure 2 (left), of the models of Appendix H. {lines}",
  "table_6": "Stems relative to Dual PatchNorm. Diamonds: the paper's Table 6, "
  "where it has the model.",
  "curves_loss": "Loss of single training batches. {lines}",
  "curves_accuracy": "Accuracy on images not trained on. {lines}",
  "curves_result": "What the evaluator measures. {lines}",
}
_LINES = (
  "Lines are means over seeds, bands their 95% confidence intervals "
  "(Student's t) from three runs on."
)
_BARS = {"1": "figure_1", "6": "6"}  # figure → the table that it shows


def report(
  found: Sequence[runs.Run],
  title: str,
  notes: Sequence[str] = (),
  interval: str = "ci95",
) -> tuple[str, tables.Table | None, list[str]]:
  """Returns the page, its table of results, and why others are missing."""
  frame = runs.frame(found)
  others = set(frame.arm) - {runs.BASE, runs.DPN}
  built, wrong = _tables(frame, others, interval)
  filled = [table for table in built if table.filled]
  results = next((table for table in filled if table.name == "results"), None)
  empty = [table_specs.short_title(t.name) for t in built if not t.filled]
  missing = [f"Without any result here: {', '.join(empty)}."] if empty else []
  missing += [f"Left out: {reason}" for reason in wrong]
  content = render.page(
    title,
    *map(render.paragraph, (*notes, _summary(frame, interval))),
    *map(_section, filled),
    *map(render.paragraph, missing),
    *_claims(frame),
    *_segmentation(frame, interval),
    *_predictions(frame),
    *_figures(frame, others),
    *_speed(frame),
    *_differences(frame),
    *_runs(frame),
  )
  return content, results, wrong


def _summary(frame, interval):
  others = "" if frame.complete.all() else " Means leave the others out."
  return (
    f"{len(frame)} runs, {frame.complete.sum()} of them complete.{others} ± is "
    f"{tables.WORDS[interval]} over n runs that differ in their seed. What was "
    "not run says so; nothing is filled in from the paper."
  )


def _tables(frame, others, interval):
  """Returns the tables, and what is wrong with those that cannot be made."""
  makers = {"Results": tables.results}
  for name, spec in table_specs.SPECS.items():
    if not spec.reference or others & set(spec.arms):  # else see Table 1 (left)
      title = table_specs.short_title(name)
      makers[title] = functools.partial(tables.build, name)
  built, wrong = [], []
  for title, make in makers.items():
    try:
      built.append(make(frame, interval=interval))
    except ValueError as e:
      wrong.append(f"{title}: {e}")
  return [table for table in built if table], wrong


def _section(table):
  if table.name != "results":
    return render.html(tables.condensed(table))
  words = map(render.paragraph, table.notes)
  cells = render.html_cells(table)
  return "\n".join([render.heading(table.title), *words, cells])


def _claims(frame):
  """Returns what the runs say of the paper's sentences, if of any."""
  table = claims.build(frame)
  said = table.frame[table.frame.ours != ""]
  if said.empty:
    return []
  note = f"{len(table.frame) - len(said)} claims have no runs here."
  shown = dataclasses.replace(table, frame=said, notes=[*table.notes, note])
  return [render.html(shown)]


def _figures(frame, others):
  names = [
    name
    for name in figures.FIGURES
    if name not in _BARS or others & {*table_specs.SPECS[_BARS[name]].arms}
  ]
  drawn, missing = figures.draw_all(frame, names)
  captioned = [
    (
      shown.figure,
      " ".join(
        (
          CAPTIONS[name].format(lines=_LINES),
          tables.left_out(shown.left_out),
        )
      ).strip(),
    )
    for name, shown in drawn.items()
  ]
  titles = {"6": "Table 6 as bars", "curves": "curves"}
  reasons = [
    f"Not drawn, {titles.get(name, f'Figure {name}')}: {why}"
    for name, why in missing.items()
  ]
  pictures = render.pictures(captioned)
  return [render.heading("Figures"), pictures, *map(render.paragraph, reasons)]


def _segmentation(frame, interval):
  """Returns results by class."""
  return [render.html(table) for table in classes.per_class(frame, interval)]


def _predictions(frame):
  """Returns the pictures of predictions that the runs have."""
  parts = []
  for path, command in run_pictures.find(frame.path):
    with open(path, "rb") as file:
      parts.append(
        render.png_image(file.read(), f"{path}, by {command}.", 1150)
      )
  return parts


def _speed(frame):
  """Returns throughput and cost by model."""
  models = frame.groupby(["recipe", "arch", "device"])
  mean, total = models.mean(numeric_only=True), models.core_hours
  speed = pd.DataFrame(
    {
      "runs": models.size(),
      "images/s": _texts(mean.images_per_sec, "{:,.0f}"),
      "MFU": _texts(mean.mfu, "{:.0%}"),
      "core hours": _texts(total.sum(min_count=1), "{:.2f}"),
    }
  ).reset_index()
  speed.insert(len(speed.columns) - 1, "device", speed.pop("device"))
  return (
    render.heading("Throughput and cost"),
    render.html_table(speed.rename(columns={"arch": "model"}), keys=2),
    render.paragraph(
      "Images per second and model FLOPs utilization (MFU): of each run's "
      "median while training, the mean over the runs. Core hours: devices "
      "times hours, of all runs together."
    ),
  )


def _texts(numbers, form):
  known = lambda n: runs.UNKNOWN if math.isnan(n) else form.format(n)
  return numbers.map(known)


def _differences(frame):
  """Returns how the configs of a recipe differ from its most common one."""
  parts = [
    render.heading("How the configs differ"),
    render.paragraph(
      "Compared field by field with the recipe's most common value; seeds, "
      "evaluations, logging and the places of files are left out."
    ),
  ]
  for recipe, group in frame.groupby("recipe"):
    fields = configs.fields(run.config for run in group.run)
    common = fields.apply(lambda field: field.value_counts().index[0])
    lines = fields.apply(lambda f: f.name.replace("/", ".") + " = " + f)
    common = lines.mode().iloc[0]
    compared = [name for name in fields if not configs.is_free(name)]
    differing = lines[compared].where(lines[compared] != common[compared])
    texts = differing.apply(lambda run: "; ".join(run.dropna()), axis=1)
    names = pd.Series(_short(group.path)).groupby(texts).agg(_listed)
    table = names.rename_axis("differs in").rename(recipe).reset_index()
    table = table[[recipe, "differs in"]].replace("", "as most are")
    parts.append(render.html_table(table, keys=2))
    summary = f"The most common value of every field in {recipe}"
    parts.append(render.details(summary, "\n".join(common)))
  return parts


def _listed(names):
  more = f" and {len(names) - 6} more" if len(names) > 6 else ""
  return ", ".join(names[:6]) + more


def _short(paths):
  """Returns the paths of runs from the folder that holds them all."""
  paths = [os.path.abspath(path) for path in paths]
  top = os.path.commonpath(map(os.path.dirname, paths))
  return [os.path.relpath(path, top) for path in paths]


def _runs(frame):
  """Returns a list of the runs for each model."""
  short = r"^(.{7})[^+]*(\+?).*"
  commit = frame.commit.str.replace(short, r"\1\2", regex=True)
  shown = pd.DataFrame(
    {
      "run": _short(frame.path),
      "arm": frame.arm,
      "seed": frame.seed,
      "status": frame.status,
      "result": frame.run.map(_result),
      "steps": _texts(frame.step, "{:,}"),
      "time": _texts(frame.seconds, "{:,.0f} s"),
      "images/s": _texts(frame.images_per_sec, "{:,.0f}"),
      "commit": commit,
      "config": frame.config_hash,
    }
  )
  parts = [render.heading("Runs")]
  for title, rows in shown.groupby(frame.title):
    parts += [render.paragraph(title), render.html_table(rows, keys=2)]
  if commit.str.endswith("+").any():
    note = "A commit with + had changes that were not in it."
    parts.append(render.paragraph(note, "note"))
  return parts


def _result(run):
  """Returns the run's results by name, "–" for an incomplete run."""
  shown = [
    f"{m} {run.finals[m]:{'.2%' if aggregate.is_fraction(m) else '.4g'}}"
    for m in run.headline
    if m in run.finals
  ]
  return ", ".join(shown) or "–"


def main(argv: Sequence[str] | None = None):
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("runs", nargs="+", help="folders that hold runs")
  parser.add_argument("-o", "--output", default="report.html", metavar="FILE")
  parser.add_argument(
    "--interval", default="ci95", choices=aggregate.MEASURES, help="after ±"
  )
  parser.add_argument("--title", default="Dual PatchNorm: results")
  parser.add_argument(
    "--note", action="append", default=[], help="a paragraph at the top"
  )
  args = parser.parse_args(argv)
  with output.errors_in_a_line():
    found = runs.find(args.runs)
    content, results, wrong = report(
      found, args.title, args.note, args.interval
    )
    if results:
      output.say(render.text(results))
    output.write(os.path.abspath(args.output), content)
  if wrong:
    reasons = "\n".join(f"Error: left out: {reason}" for reason in wrong)
    sys.exit(output.printable(reasons))


if __name__ == "__main__":
  main()
