"""What the arms of a sweep have reached."""

from collections.abc import Sequence

import numpy as np

from dpn.scripts.jobs import arms as arms_lib
from dpn.scripts.results import aggregate, runs


def table(arms: Sequence[arms_lib.Arm]) -> str:
  """Returns a line per arm: its metric and the mean over its finished seeds.

  The metric is the run's headline, see `runs.Run`; fractions are in percent.
  Two seeds are both shown, as two numbers make no useful interval. Empty if no
  run is finished.
  """
  found = {}
  for arm in arms:
    run = runs.read(arm.workdir) if arm.done else None
    if run and (metric := run.headline[0]) in run.finals:
      value = aggregate.percent(run, metric)
      found.setdefault((arm.name, metric), []).append(value)
  rows = [("arm", "metric", "finished runs (± is the mean's 95% interval)")]
  for (name, metric), values in found.items():
    unit = " (%)" if aggregate.is_fraction(metric) else ""
    rows.append((name, metric + unit, _text(values, unit)))
  widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))]
  return "\n".join(
    "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows if found
  )


def _text(values, unit):
  """Returns one or two values, or the mean of more with its interval."""
  show = ("{:.2f}" if unit else "{:.4g}").format
  if len(values) < 3:
    return ", ".join(map(show, values))
  half = float(aggregate.half_width(np.asarray(values)))
  return f"{show(np.mean(values))} ± {show(half)} (n={len(values)})"
