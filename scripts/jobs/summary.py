"""What the arms of a sweep have reached."""

from collections.abc import Sequence

import pandas as pd

from dpn.scripts.jobs import arms as arms_lib
from dpn.scripts.results import aggregate, own_runs, render, run_files


def table(arms: Sequence[arms_lib.Arm]) -> str:
  """Returns a line per arm: its metric and the mean over its finished seeds.

  The metric is the run's headline, see `runs.Run`; fractions are in percent.
  What n is and ± stands for, see `aggregate.Estimate`. Empty if no run is
  finished.
  """
  found = {}
  for arm in arms:
    run = run_files.read(arm.workdir) if arm.done else None
    if run and (metric := run.headline[0]) in run.finals:
      value = aggregate.percent(run, metric)
      found.setdefault((arm.title, metric), []).append(value)
  rows = []
  for (name, metric), values in found.items():
    mean = own_runs.rounded(aggregate.estimate(values), metric)
    rows.append((name, own_runs.unit(metric), str(mean)))
  header = ["arm", "metric", "mean of n seeds ± its 95% interval"]
  frame = pd.DataFrame(rows, columns=header)
  return render.grid(frame, keys=3) if rows else ""
