"""What runs of segmentation found for each class."""

import pandas as pd

from dpn.scripts.results import aggregate, runs, tables

NAME = "classes"
PICTURE = "predictions.png"  # of scripts.show_predictions, in a run's folder
_WHOLE = {"miou": "mean", "pixel_acc": "pixel accuracy"}


def per_class(
  frame: pd.DataFrame, interval: str = "ci95"
) -> list[tables.Table]:
  """Returns, for each model, a row for each class and a column for each arm.

  They are of the evaluator that `config.table.metric` names, with the
  difference of each arm from a plain ViT.

  Raises:
    ValueError: see `aggregate.arm`.
  """
  return [
    tables.measured(table, interval)
    for title, group in frame[~frame.trial].groupby("title")
    if (table := _of_model(title, group)) is not None
  ]


def _of_model(title, group):
  done = [run for run in group.run if run.complete]
  metric = done[0].table.get("metric", "") if done else ""
  prefix = metric.removesuffix("miou")
  if not metric.endswith("miou") or metric not in done[0].finals:
    return None
  start = f"{prefix}iou/"
  found = dict.fromkeys(
    m for r in done for m in r.finals if m.startswith(start)
  )
  names = {prefix + key: name for key, name in _WHOLE.items()}
  names |= {metric: metric.removeprefix(start) for metric in found}
  by_arm = dict(list(group.groupby("arm")))
  order = sorted(by_arm, key=lambda arm: (arm != runs.BASE, arm))
  others = order[1:] if runs.BASE in order else []
  rows = []
  for metric, name in names.items():
    # A class that some image sets lack has no number in their runs.
    arms = {}
    for arm in order:
      group = _having(by_arm[arm], metric)
      arms[arm] = aggregate.arm(group, (metric,)) if len(group) else None
    rows.append([
      name,
      *(aggregate.cell(arms[arm]) for arm in order),
      *(aggregate.gain(arms[arm], arms.get(runs.BASE)) for arm in others),
    ])  # fmt: skip
  header = ["IoU [%]", *order, *(f"{arm} − {runs.BASE}" for arm in others)]
  return tables.Table(
    NAME,
    f"{title}: {prefix.removesuffix('/')}, class by class",
    pd.DataFrame(rows, columns=header, dtype=object),
    1,
    [],
  )


def _having(group, metric):
  lacks = group.complete & group.run.map(lambda r: metric not in r.finals)
  return group[~lacks]
