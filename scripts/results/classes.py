"""Results of segmentation runs for each class."""

import pandas as pd

from dpn.scripts.results import aggregate, runs, tables

NAME = "classes"  # of the table in scripts.tables
_NONE = tables.NOT_PUBLISHED
_NOTE = "Classes without a pixel, true or predicted, have no IoU (–)."
_WHOLE_IMAGE = {"miou": "mean", "pixel_acc": "pixel accuracy"}


def per_class(frame: pd.DataFrame) -> tuple[list[tables.Table], list[str]]:
  """Returns, for each model of segmentation, a table of classes × arms.

  The numbers are from the evaluator that `config.table.metric` names, with the
  difference of each arm from a plain ViT. Also returns which arms are left out
  and why, as `own_runs.models` does.
  """
  found, wrong = [], []
  for title, group in frame[~frame.trial].groupby("title"):
    table = _of_model(title, group, wrong)
    found += [table] if table else []
  return found, wrong


def _of_model(title, group, wrong):
  done = [run for run in group.run if run.complete]
  # Of runs that lack theirs, `aggregate.arm` says so.
  named = ((run.table.get("metric", ""), run.finals) for run in done)
  metric = next((m for m, finals in named if m in finals), "")
  prefix = metric.removesuffix("miou")
  if not metric.endswith("miou"):
    return None
  start = f"{prefix}iou/"
  names = {prefix + key: name for key, name in _WHOLE_IMAGE.items()}
  finals = dict.fromkeys(m for run in done for m in run.finals)
  names |= {m: m.removeprefix(start) for m in finals if m.startswith(start)}
  order = []
  for arm in sorted(set(group.arm), key=lambda arm: (arm != runs.BASE, arm)):
    try:
      aggregate.arm(group[group.arm == arm], (metric,))
      order.append(arm)
    except ValueError as e:
      wrong.append(f"{title}: {arm}: {e}")
  others = order[1:] if runs.BASE in order else []
  rows = []
  for metric, name in names.items():
    # A class that no test image shows has no number in a run.
    has = [metric in run.finals or not run.complete for run in group.run]
    shown = group[has].query("arm in @order")
    arms = {
      arm: aggregate.arm(of, (metric,)) for arm, of in shown.groupby("arm")
    }
    cells = [aggregate.cell(arms.get(arm)) for arm in order]
    base = arms.get(runs.BASE)
    cells += [aggregate.gain(arms.get(arm), base) for arm in others]
    # All of `order` were run, just none of an arm's runs has this class.
    cells = [_NONE if cell == aggregate.NOT_RUN else cell for cell in cells]
    rows.append([name, *cells])
  header = ["IoU [%]", *order, *(f"{arm} − {runs.BASE}" for arm in others)]
  title = f"{title}: {prefix.removesuffix('/')}, class by class"
  frame = pd.DataFrame(rows, columns=header, dtype=object)
  none = frame.eq(_NONE).any(axis=None)
  return tables.Table(NAME, title, frame, 1, [_NOTE] if none else [])
