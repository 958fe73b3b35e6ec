"""The methods of configs/norm_zoo.py side by side: what they cost and gain."""

import math
from collections.abc import Sequence

import ml_collections
import numpy as np
import pandas as pd

import dpn.tasks
from dpn.configs import mini
from dpn.scripts import count
from dpn.scripts.results import aggregate, runs, tables

NAME = "zoo"  # of the table in scripts.tables
_RECIPE = "Norm zoo, "


def build(frame: pd.DataFrame, interval: str = "ci95") -> list[tables.Table]:
  """Returns a table of methods for each data set of the zoo.

  Parameters and FLOPs are counted from the configs. Of each optimizer it has
  the accuracy on the test images, the difference from the plain ViT, the rate
  that was chosen, and what the tried rates lose on average to the best of them.

  Args:
    frame: of `runs.frame`, runs of both pieces.
    interval: what stands after ±.

  Raises:
    ValueError: there is no run of the zoo; see also `aggregate.arm`.
  """
  of_zoo = frame[~frame.trial & frame.recipe.str.startswith(_RECIPE)]
  if of_zoo.empty:
    raise ValueError("Table zoo is of runs of configs/norm_zoo.py: none given.")
  # "Norm zoo, CIFAR-10, muon, lr 0.001": the last only where rates are tried.
  parts = [recipe.split(", ") for recipe in of_zoo.recipe]
  of_zoo = of_zoo.assign(
    data=[part[1] for part in parts],
    optimizer=[part[2] for part in parts],
    rate=[float(part[3][3:]) if part[3:] else math.nan for part in parts],
    # By the names in the configs, not by what the models change.
    arm=[run.table["arm"] for run in of_zoo.run],
  )
  return [
    tables.measured(_of_data(f"{_RECIPE}{data}", group), interval)
    for data, group in of_zoo.groupby("data")
  ]


def _of_data(title, group):
  order = sorted(set(group.arm), key=lambda arm: (arm != runs.BASE, arm))
  optimizers = sorted(set(group.optimizer))
  columns = {"method": order}
  one = {arm: next(iter(group.run[group.arm == arm])) for arm in order}
  totals = [_count(run.config) for run in one.values()]
  columns["parameters"] = [f"{n:,}" for n, _ in totals]
  columns["MFLOP"] = [f"{n / 1e6:.1f}" for _, n in totals]
  columns["images/s"] = _ratios(group, order, "images_per_sec")
  columns["memory"] = _ratios(group, order, "peak_memory_gb")
  tried = group.rate.notna()
  for optimizer in optimizers:
    mine = group.optimizer == optimizer
    found = {
      arm: _arm(group[mine & ~tried & (group.arm == arm)]) for arm in order
    }
    base = found.get(runs.BASE)
    columns[f"{optimizer} [%]"] = [aggregate.cell(found[arm]) for arm in order]
    columns[f"{optimizer} − base"] = [
      "" if arm == runs.BASE else aggregate.gain(found[arm], base)
      for arm in order
    ]
    rates = [_rates(group[mine & tried & (group.arm == arm)]) for arm in order]
    columns[f"{optimizer} rate"] = [best for best, _ in rates]
    columns[f"{optimizer} sensitivity"] = [loss for _, loss in rates]
  keys = 5  # columns of text
  return tables.Table(
    NAME, title, pd.DataFrame(columns, dtype=object), keys, _notes(order)
  )


def _arm(rows):
  return aggregate.arm(rows, ("test/prec@1",)) if len(rows) else None


def _count(config) -> tuple[int, int]:
  """Returns a config's parameters, and FLOPs per image."""
  config = ml_collections.ConfigDict(config)
  # As all of the zoo's images are, so that the data need not be here.
  spec = {
    "image": ((1, mini.SIDE, mini.SIDE, 3), np.float32),
    "labels": ((1, config.num_classes), np.float32),
  }
  rows = count.count(dpn.tasks.make(config), spec)
  return tuple(int(rows[name].sum()) for name in ("parameters", "FLOPs"))


def _ratios(group, order, column):
  """Returns medians over all runs as ratios to that of the plain ViT."""
  medians = group.groupby("arm")[column].median()
  ratios = medians / medians.get(runs.BASE, float("nan"))
  known = ratios.dropna()
  return [f"{known[arm]:.2f}" if arm in known else "–" for arm in order]


def _rates(rows) -> tuple[str, str]:
  """Returns the best rate, and the points that tried rates lose to it."""
  done = rows[rows.complete]
  if done.empty:
    return aggregate.NOT_RUN, aggregate.NOT_RUN
  found = pd.Series(
    [aggregate.percent(run, run.headline[0]) for run in done.run],
    index=done.rate.to_numpy(),
  )
  lost = (found.max() - found).mean()
  return f"{found.idxmax():g}", f"{lost:.1f} of {len(found)}"


def _notes(order: Sequence[str]) -> list[str]:
  return [
    "At the last step, means over n runs on the test images; differences are "
    f"{aggregate.PAIRING}.",
    "Parameters and FLOPs of a forward pass, multiply and add apart, are "
    "counted from the configs; speed and memory of the process are ratios of "
    "medians over all runs, which other work on the machine disturbs: "
    "python -m benchmarks.norms measures steps in turn.",
    "Rate: the best on validation images, with one seed. Sensitivity: points "
    "that the tried rates lose to the best on average, of so many.",
    f"{len(order) - 1} methods are compared with one: of twenty equal ones, one"
    " would be marked.",
  ]
