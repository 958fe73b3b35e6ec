"""Writes one page that needs no other: tables, figures, runs, their configs.

  python -m scripts.report runs/table1 runs/table6 -o report.html

Shows whatever the runs in these folders give, and lists what they do not.
"""

import argparse
import collections
import os
import sys
from collections.abc import Sequence

from scripts import figures
from scripts.results import (
  aggregate,
  cells,
  configs_diff,
  entries,
  output,
  page,
  render,
  runs,
  stats,
  table_specs,
)

RUN = (
  "arm", "seed", "status", "result", "steps", "time", "images/s", "commit",
  "config",
)  # fmt: skip
SPEED = ("recipe", "model", "runs", "images/s", "MFU", "core hours", "device")
CAPTIONS = {
  "figure_1": "Gain of each placement of LayerNorms in the block, of "
  "NormFormer, Sub-LN and Dual PatchNorm, over a ViT with LayerNorm "
  "before attention and MLP. Bars without a whisker are single runs.",
  "figure_2": "Norm of the loss's gradient in the patch embedding (E) and in "
  "each block, mean over the last {last} steps.",
  "figure_3": "What the first LayerNorm of Dual PatchNorm multiplies each "
  "pixel of a patch with, by colour channel; training begins at 1 (white).",
  "figure_4": "Norm of the loss's gradient in the patch embedding.",
  "table_6": "Stems relative to Dual PatchNorm. Diamonds: the paper's Table 6, "
  "where it has the model.",
  "curves_loss": "Loss of single training batches.",
  "curves_accuracy": "Accuracy on images not trained on.",
}
_LINES = (
  " Lines are means over seeds, bands their 95% confidence intervals "
  "(Student's t) from three runs on."
)


def report(
  found: Sequence[runs.Run], title: str, note: str = ""
) -> tuple[str, list[str]]:
  """Returns the page, and why tables are missing from it."""
  tables, wrong = _tables(found)
  content = page.page(
    title,
    *([page.paragraph(note)] if note else []),
    page.paragraph(_summary(found)),
    *tables,
    *_figures(found),
    *_speed(found),
    *_differences(found),
    *_runs(found),
  )
  return content, wrong


def _summary(found):
  done = sum(run.complete for run in found)
  text = f"{len(found)} runs, {done} of them complete."
  if done < len(found):
    text += " The others are left out of all means."
  return text + (
    " ± is a 95% confidence interval (Student's t) over n runs that differ in "
    "their seed. What was not run says so; nothing is filled in from the paper."
  )


def _tables(found):
  """Returns the tables that hold something, and what is wrong with others."""
  built, wrong = [], []
  for name in table_specs.LAYOUTS:
    try:
      built.append(table_specs.build(name, found))
    except ValueError as e:
      wrong.append(f"{table_specs.title(name).partition(':')[0]}: {e}")
  filled = [table for table in built if table.filled]
  empty = [t.title.partition(":")[0] for t in built if not t.filled]
  parts = [render.html(entries.condensed(table)) for table in filled]
  if empty:
    text = f"Without any result here: {', '.join(empty)}."
    parts.append(page.paragraph(text))
  parts += [page.paragraph(f"Left out: {reason}") for reason in wrong]
  return parts, wrong


def _figures(found):
  drawn, missing = figures.draw_all(found, figures.options())
  captions = dict(CAPTIONS)
  last = figures.default_last_steps(found)
  captions["figure_2"] = CAPTIONS["figure_2"].format(last=last)
  for name in ("figure_2", "figure_4", "curves_loss", "curves_accuracy"):
    captions[name] += _LINES
  parts = [page.heading("Figures")]
  parts.append(
    page.row(
      *(page.picture(fig, captions[name]) for name, fig in drawn.items())
    )
  )
  parts += [
    page.paragraph(f"Not drawn, {_figure(name)}: {why}")
    for name, why in missing.items()
  ]
  return parts


def _figure(name):
  return (
    f"Figure {name}"
    if name.isdigit() and name != "6"
    else {"6": "Table 6 as bars"}.get(name, name)
  )


def _speed(found):
  """Returns throughput and cost by model."""
  grouped = collections.defaultdict(list)
  for run in found:
    cell = cells.of(run)
    model = (cell.recipe, cell.get("arch")) if cell else ("runlocal", "")
    grouped[model, run.device].append(run)
  rows = []
  for (model, device), group in sorted(grouped.items()):
    speed = stats.mean(_known(group, "images_per_sec", "images_per_sec"))
    mfu = stats.mean(_known(group, "mfu", "mfu"))
    hours = _known(group, "core_hours", "core_hours", last=True)
    rows.append((
      *model,
      str(len(group)),
      f"{speed.value:,.0f}" if speed.n else runs.UNKNOWN,
      f"{mfu.value:.0%}" if mfu.n else runs.UNKNOWN,
      f"{sum(hours):.2f}" if hours else runs.UNKNOWN,
      device,
    ))  # fmt: skip
  return (
    page.heading("Throughput and cost"),
    page.table(SPEED, rows, keys=2),
    page.paragraph(
      "Images per second: of each run's median, while training, the mean over "
      "the runs. Core hours: devices times hours, of all runs together."
    ),
  )


def _known(group, done_key, timing_key, last=False):
  values = (run.timed(done_key, timing_key, last) for run in group)
  return [value for value in values if value is not None]


def _differences(found):
  """Returns how the configs in each folder differ from its most common one."""
  folders = collections.defaultdict(list)
  for run in found:
    folders[os.path.dirname(_short(run.path, found))].append(run)
  parts = [
    page.heading("How the configs differ"),
    page.paragraph(
      "Compared field by field with the most common value in the same folder; "
      "seeds, evaluations, logging and the places of files are left out."
    ),
  ]
  for folder, inside in folders.items():
    common, groups = configs_diff.groups(inside)
    name = folder or "runs"
    rows = [(_listed(group), text or "as most are") for text, group in groups]
    parts.append(page.table((name, "differs in"), rows, keys=2))
    summary = f"The most common value of every field in {name}"
    parts.append(page.details(summary, common))
  return parts


def _listed(group):
  names = [os.path.basename(os.path.abspath(run.path)) for run in group]
  shown = ", ".join(names[:6])
  return shown + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _short(path, found):
  """Returns a run's path from where all runs are."""
  paths = [os.path.dirname(os.path.abspath(run.path)) for run in found]
  return os.path.relpath(os.path.abspath(path), os.path.commonpath(paths))


def _runs(found):
  """Returns a list of the runs for each model."""
  by_model = collections.defaultdict(list)
  for run in found:
    cell = cells.of(run)
    model = f"{cell.recipe} {cell.get('arch')}" if cell else "trial runs"
    by_model[model].append(_run(run, cell, found))
  parts = [page.heading("Runs")]
  for model, rows in by_model.items():
    parts.append(page.table((model, *RUN), rows, keys=2))
  if any(run.commit.endswith("+changes") for run in found):
    parts.append(page.note("A commit with + had changes that were not in it."))
  return parts


def _run(run, cell, found):
  speed = run.timed("images_per_sec", "images_per_sec")
  seconds = (run.done or {}).get("seconds")
  return (
    _short(run.path, found),
    cell.arm if cell else "",
    str(run.seed),
    run.status,
    _result(run, cell),
    f"{run.step:,}",
    runs.UNKNOWN if seconds is None else f"{seconds:,.0f} s",
    runs.UNKNOWN if speed is None else f"{speed:,.0f}",
    run.commit[:7] + "+" * run.commit.endswith("+changes"),
    run.config_hash,
  )


def _result(run, cell):
  """Returns the run's result by name, "–" for an incomplete run."""
  if not run.complete:
    return "–"
  named = (cell.metric if cell else "", *table_specs.GUEST_METRICS)
  for metric in named:
    if metric in run.finals:
      value = run.final(metric)
      text = (
        f"{100 * value:.2f}%" if aggregate.is_fraction(metric) else f"{value:g}"
      )
      return f"{metric} {text}"
  return f"loss {run.finals['loss']:.4g}" if "loss" in run.finals else "–"


def main(argv: Sequence[str] | None = None):
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("runs", nargs="+", help="folders that hold runs")
  parser.add_argument("-o", "--output", default="report.html", metavar="FILE")
  parser.add_argument("--title", default="Dual PatchNorm: results")
  parser.add_argument("--note", default="", help="a paragraph at the top")
  args = parser.parse_args(argv)
  try:
    content, wrong = report(runs.find(args.runs), args.title, args.note)
    output.write(args.output, content)
  except (ValueError, OSError) as e:
    sys.exit(f"Error: {e}")
  print(f"Report: {os.path.abspath(args.output)}")
  if wrong:
    sys.exit("\n".join(f"Error: left out: {reason}" for reason in wrong))


if __name__ == "__main__":
  main()
