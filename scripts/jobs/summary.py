"""Tabulates the results of a sweep's arms."""

from collections.abc import Sequence

import pandas as pd

from dpn.scripts.jobs import arms as arms_lib
from dpn.scripts.results import aggregate, own_runs, render, run_files, runs


def table(arms: Sequence[arms_lib.Arm]) -> str:
  """Returns a line per arm: its metric and the mean over its finished seeds.

  The metric is the run's headline, see `runs.Run`, or if that is not measured,
  as `test/prec@1` before `select_best --test`, an accuracy that is; fractions
  are in percent.
  `aggregate.Estimate` explains n and ±. The table is empty if no run is
  finished. If runs differ in more than the seed, as when the config was edited
  between them, their line says so instead of a mean.
  """
  found = {}
  for arm in arms:
    run = run_files.read(arm.workdir) if arm.done else None
    names = [*run.headline[:1], *runs.ACCURACIES] if run else ()
    if metric := next((name for name in names if name in run.finals), None):
      found.setdefault((arm.title, metric), []).append(run)
  rows = []
  for (name, metric), of in found.items():
    mean = aggregate.estimate([aggregate.percent(run, metric) for run in of])
    text = aggregate.unlike(runs.frame(of)) or own_runs.rounded(mean, metric)
    rows.append((name, own_runs.unit(metric), str(text)))
  header = ["arm", "metric", "mean of n seeds ± its 95% interval"]
  frame = pd.DataFrame(rows, columns=header)
  return render.grid(frame, keys=3) if rows else ""
