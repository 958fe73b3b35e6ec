"""Lists runs on a page: results, cost, code, and how their configs differ."""

import math

import pandas as pd

from dpn import errors
from dpn.scripts.results import aggregate, arms, render, run_files, runs


def listed(frame: pd.DataFrame) -> list[render.Part]:
  """Returns a list of the runs for each model."""
  short = r"^(.{7})[^+]*(\+?).*"
  shown = pd.DataFrame(
    {
      "run": run_files.from_common(frame.path),
      "arm": frame.arm,
      "seed": frame.seed,
      "status": frame.status,
      "result": frame.run.map(_result),
      "steps": _texts(frame.step, "{:,}"),
      "time": _texts(frame.seconds, "{:,.0f} s"),
      "images/s": _texts(frame.images_per_sec, "{:,.0f}"),
      "commit": frame.commit.str.replace(short, r"\1\2", regex=True),
      "config": frame.config_hash,
    }
  )
  parts = [render.heading("Runs")]
  for title, rows in shown.groupby(frame.title):
    parts += [render.paragraph(title), render.html_table(rows, keys=2)]
  if shown.commit.str.endswith("+").any():
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


def speed(frame: pd.DataFrame) -> list[render.Part]:
  """Returns throughput and cost by model; copies of a run count once."""
  same = ["title", "arm", "candidate", "seed", "config_hash", "step"]
  # An archive lacks the cost of incomplete runs, so it comes after the folder.
  frame = frame.sort_values("core_hours").drop_duplicates(same)
  models = frame.groupby(["recipe", "arch", "device"])
  mean, hours = models.mean(numeric_only=True), models.core_hours
  table = pd.DataFrame(
    {
      "runs": models.size(),
      "images/s": _texts(mean.images_per_sec, "{:,.0f}"),
      "MFU": _texts(mean.mfu, "{:.0%}"),
      "core hours": _texts(hours.sum(min_count=1), "{:.2f}"),
      "device": models.device.first(),
    }
  ).rename_axis(["recipe", "model", None])
  return [
    render.heading("Throughput and cost", 3),
    render.html_table(table.droplevel(2).reset_index(), keys=2),
    render.paragraph(
      "Images per second and model FLOPs utilization (MFU): of each run's "
      "median while training, the mean over the runs. Core hours: devices "
      "times hours, of all runs together."
    ),
  ]


def _texts(numbers, form):
  known = lambda n: runs.UNKNOWN if math.isnan(n) else form.format(n)
  return numbers.map(known)


def config_differences(frame: pd.DataFrame) -> list[render.Part]:
  """Returns how the configs of a recipe differ from its most common one."""
  parts = [
    render.heading("How the configs differ"),
    render.paragraph(
      "Compared field by field with the recipe's most common value; seeds, "
      "evaluations, logging and the places of files are left out."
    ),
  ]
  for recipe, group in frame.groupby("recipe"):
    fields = arms.fields(run.config for run in group.run)
    values = fields.apply(lambda f: f.name.replace("/", ".") + " = " + f)
    common = values.mode().iloc[0]
    values = values[[name for name in fields if not arms.is_free(name)]]
    differing = values.where(values != common[values.columns])
    texts = differing.apply(lambda run: "; ".join(run.dropna()), axis=1)
    paths = pd.Series(run_files.from_common(group.path))
    names = paths.groupby(texts).agg(errors.some_of)
    table = names.rename_axis("differs in").rename(recipe).reset_index()
    table = table[[recipe, "differs in"]].replace("", "as most are")
    summary = f"The most common value of every field in {recipe}"
    parts += [
      render.html_table(table, keys=2),
      render.folded(summary, render.lines("\n".join(common))),
    ]
  return parts
