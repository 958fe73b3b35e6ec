"""The methods of configs/norm_zoo.py side by side: what they cost and gain."""

import math
from collections.abc import Sequence

import ml_collections
import numpy as np
import pandas as pd
from matplotlib import figure

import dpn.tasks
from dpn import registry
from dpn.configs import mini
from dpn.input_pipeline import sources
from dpn.scripts import count
from dpn.scripts.results import aggregate, plots, runs, tables

NAME = "zoo"  # of the table in scripts.tables
_RECIPE = "Norm zoo, "


def build(frame: pd.DataFrame) -> list[tables.Table]:
  """Returns a table of methods for each data set of the zoo.

  Parameters and FLOPs are counted from the configs. For each optimizer it has
  the accuracy on the test images, the difference from the plain ViT, the chosen
  learning rate, and what the rates next to it lose.

  Args:
    frame: from `runs.frame`, with runs of both pieces of the sweep.

  Raises:
    ValueError: there is no run of the zoo; see also `aggregate.arm`.
  """
  return [
    _of_data(f"{_RECIPE}{data}", group)
    for data, group in _of_zoo(frame).groupby("data")
  ]


def draw(frame: pd.DataFrame) -> figure.Figure:
  """Draws each method's difference from the plain ViT, a panel per optimizer.

  The methods of all panels are in the order of their gains in the first.

  Raises:
    ValueError: as `build`.
  """
  ours = {}
  confirmed = _of_zoo(frame)[lambda of: of.rate.isna()]
  for names, group in confirmed.groupby(["data", "optimizer"]):
    found = _confirmed(group)
    base = found.pop(runs.BASE, None)
    gains = {arm: aggregate.gain(of, base) for arm, of in found.items()}
    ours[", ".join(names)] = gains
  if not any(ours.values()):
    raise ValueError("No method of the zoo was run with its best rate.")
  mean = lambda gain: -getattr(gain, "mean", -math.inf)
  order = {}
  for gains in ours.values():
    order |= dict.fromkeys(sorted(gains, key=lambda arm: mean(gains[arm])))
  ours = {
    title: {arm: gains.get(arm, aggregate.NOT_RUN) for arm in order}
    for title, gains in ours.items()
  }
  label = "accuracy on the test images: difference from pre-LN [points]"
  return plots.gains(ours, {}, label)


def _of_zoo(frame):
  """Returns the zoo's runs, with data, optimizer, rate and name of the method.

  The rate is NaN for runs that do not try rates.
  """
  of_zoo = frame[~frame.trial & frame.recipe.str.startswith(_RECIPE)]
  if of_zoo.empty:
    raise ValueError("The zoo is of runs of configs/norm_zoo.py: none given.")
  # "Norm zoo, CIFAR-10, muon, lr 0.001": the last only where rates are tried.
  parts = [recipe.split(", ") for recipe in of_zoo.recipe]
  return of_zoo.assign(
    data=[part[1] for part in parts],
    optimizer=[part[2] for part in parts],
    rate=[float(part[3][3:]) if part[3:] else math.nan for part in parts],
    # By the names in the configs, not by what the models change.
    arm=[run.table["arm"] for run in of_zoo.run],
  )


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
  tried, gains = group[group.rate.notna()], []
  for optimizer in optimizers:
    found = _confirmed(group[group.optimizer == optimizer])
    cells = [aggregate.cell(found.get(arm)) for arm in order]
    columns[f"{optimizer} [%]"] = cells
    base = found.get(runs.BASE)
    columns[f"{optimizer} − base"] = [
      "" if arm == runs.BASE else aggregate.gain(found.get(arm), base)
      for arm in order
    ]
    gains += columns[f"{optimizer} − base"]
    mine = tried[tried.optimizer == optimizer]
    rates = [_rates(mine[mine.arm == arm]) for arm in order]
    columns[f"{optimizer} rate"] = [best for best, _ in rates]
    columns[f"{optimizer} sensitivity"] = [loss for _, loss in rates]
  keys = 5  # columns of text
  return tables.Table(
    NAME, title, pd.DataFrame(columns, dtype=object), keys, _notes(gains)
  )


def _confirmed(group) -> dict[str, aggregate.Arm]:
  """Returns the arms of runs that are evaluated on the test images."""
  arms = group[group.rate.isna()].groupby("arm")
  return {arm: aggregate.arm(rows, ("test/prec@1",)) for arm, rows in arms}


def _count(config) -> tuple[int, int]:
  """Returns a config's parameters, and FLOPs per image."""
  registry.check_names("a run of the zoo", config, sources.KINDS)
  config = ml_collections.ConfigDict(config)
  # All images of the zoo have this shape, so the data need not be here.
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
  """Returns the best rate, and what its two neighbours lose to it in points."""
  done = rows[rows.complete]
  if done.empty:
    return aggregate.NOT_RUN, aggregate.NOT_RUN
  found = pd.Series(
    [aggregate.percent(run, run.headline[0]) for run in done.run],
    index=done.rate.to_numpy(),
  )
  found = found.groupby(level=0).mean()  # over seeds; sorted by rate
  best = int(found.argmax())
  neighbours = found.shift(1).iloc[best], found.shift(-1).iloc[best]
  lost = (found.iloc[best] - accuracy for accuracy in neighbours)
  texts = ("–" if math.isnan(points) else f"{points:.1f}" for points in lost)
  return f"{found.index[best]:g}", " / ".join(texts)


def _notes(gains: Sequence[aggregate.Estimate | str]) -> list[str]:
  tested = [x.p_value for x in gains if getattr(x, "has_interval", False)]
  left = int((aggregate.holm(tested) < 0.05).sum())
  return [
    "At the last step, means over n runs on the test images; differences are "
    f"{aggregate.PAIRING}.",
    "Parameters and FLOPs of a forward pass, multiply and add apart, are "
    "counted from the configs; speed and memory of the process are ratios of "
    "medians over all runs, which other work on the machine disturbs: "
    "python -m benchmarks.norms measures steps in turn.",
    "Rate: the best on validation images. Sensitivity: points "
    "that the next lower and the next higher rate lose there.",
    f"Differences: {len(tested)}. After correction for their number (Holm, 5%) "
    f"{left} of them remain.",
  ]
