"""What the runs themselves say: their arms, side by side and in sentences."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import pandas as pd

from dpn import errors
from dpn.scripts.results import aggregate, runs, table_specs, tables
from dpn.scripts.results import arms as arms_lib

NAME = "runs"  # of the table in scripts.tables
LABELS = {
  runs.BASE: "ViT",
  runs.DPN: "Dual PatchNorm",
  "normformer": "NormFormer",
  "sub_ln": "Sub-LN",
}
_MOST_METRICS = 4  # side by side
_DIGITS = 4  # of what is no fraction
# What scripts.results.classes shows, gradients, and seeds of a probe.
_APART = re.compile(r"grad_norm.*|(.*/)?iou/.*|.*-seed-\d+")


@dataclasses.dataclass(frozen=True)
class Comparison:
  """An arm against the baseline of its model.

  Attributes:
    model: title of the runs.
    metric: that is compared.
    arm: the one that is looked at.
    baseline: the one that is subtracted.
    gain: arm − baseline, fractions in points.
    apart: fields of the config in which they differ, too.
  """

  model: str
  metric: str
  arm: str
  baseline: str
  gain: aggregate.Estimate
  apart: Sequence[str] = ()

  def __str__(self) -> str:
    gain = self.gain
    unit = " points" if aggregate.is_fraction(self.metric) else ""
    if gain.pair:
      numbers = " and ".join(map(gain.number, gain.pair))
      verdict = f"{numbers} by seed, too few for an interval"
    elif not gain.has_interval:
      verdict = "no interval without more seeds"
    else:
      low, high = (gain.number(gain.mean + side * gain.ci) for side in (-1, 1))
      contains = "does not contain" if gain.side else "contains"
      verdict = f"95% interval {low} to {high}, {contains} 0"
    seeds = f"{gain.n} seed{'s' * (gain.n > 1)}, {gain.note}"
    too = f" The arms also differ in: {some_of(self.apart)}."
    return (
      f"{self.arm} − {self.baseline} ({self.model}, {self.metric}): "
      f"{gain.number(gain.mean)}{unit}; {verdict} ({seeds})."
    ) + (too if self.apart else "")


@dataclasses.dataclass(frozen=True)
class Model:
  """The runs of a title, which differ in arm and seed, and `apart`.

  Attributes:
    title: recipe, size and what else tells them from others.
    headline: the metrics that are its result.
    others: whatever else its evaluators measured.
    arms: the runs of each arm by metric, the baseline's first.
    baseline: what arms are compared with; None for a single arm.
    apart: by arm, the other fields of the config in which it is unlike the
      baseline: each arm's best learning rate, for example.
  """

  title: str
  headline: tuple[str, ...]
  others: tuple[str, ...]
  arms: Mapping[str, Mapping[str, aggregate.Arm]]
  baseline: str | None
  apart: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)

  def gain(self, arm: str, metric: str) -> aggregate.Estimate | str:
    """Returns arm − baseline, or why there is none; "" for the baseline."""
    if self.baseline in (None, arm):
      return ""
    new, old = (self.arms[a].get(metric) for a in (arm, self.baseline))
    if new is None or old is None:
      return tables.NOT_PUBLISHED
    return _rounded(aggregate.gain(new, old), metric)

  def result(self, arm: str, metric: str) -> aggregate.Estimate | str:
    """Returns the mean of an arm, or why there is none."""
    found = self.arms[arm].get(metric)
    if found is None:
      return tables.NOT_PUBLISHED
    return _rounded(aggregate.cell(found), metric)

  def comparisons(self) -> list[Comparison]:
    gains = {
      (metric, arm): self.gain(arm, metric)
      for metric in self.headline[:_MOST_METRICS]
      for arm in self.arms
    }
    return [
      Comparison(
        *(self.title, metric, arm, self.baseline, gain),
        self.apart.get(arm, ()),
      )
      for (metric, arm), gain in gains.items()
      if isinstance(gain, aggregate.Estimate)
    ]


def arm_name(given: str) -> str:
  """Returns the name in tables of an arm that a command was given."""
  return runs.BASE if given == "none" else given


def in_order(arms: Sequence[str]) -> list[str]:
  """Returns arms each once: a plain ViT, Dual PatchNorm, the others by name."""
  first = {runs.BASE: 0, runs.DPN: 1}
  return sorted(set(arms), key=lambda arm: (first.get(arm, 2), arm))


def of_arms(
  frame: pd.DataFrame, arms: Sequence[str], baseline: str | None = None
) -> pd.DataFrame:
  """Returns the runs of some arms and of the baseline; all if `arms` is empty.

  Raises:
    ValueError: no run is of one of the arms.
  """
  for arm in arms:
    errors.check_known("arm", arm, in_order(frame.arm))
  return frame[frame.arm.isin([*arms, baseline])] if arms else frame


def models(
  frame: pd.DataFrame, baseline: str | None = None, metric: str | None = None
) -> tuple[list[Model], list[str]]:
  """Returns the models that were trained, and what is wrong with others.

  Args:
    frame: of the runs, see `runs.frame`; those of two steps are left out.
    baseline: the arm to compare with; by default the first `in_order`.
    metric: to read instead of the runs' own.

  Raises:
    ValueError: no run is of that baseline, or has that metric.
  """
  found, wrong = [], []
  frame = frame[~frame.trial]
  if baseline is not None:
    errors.check_known("baseline", baseline, in_order(frame.arm))
  if metric is not None:
    finals = {name for run in frame.run for name in run.finals}
    errors.check_known("final metric", metric, finals)
  for title, group in sorted(
    frame.groupby("title"), key=lambda item: _natural(item[0])
  ):
    try:
      found.append(_model(title, group, baseline, metric))
    except ValueError as e:
      wrong.append(f"{title}: {e}")
  return found, wrong


def _natural(title):
  """Returns a key that puts numbers in a title in order: 195 before 1560."""
  parts = re.split(r"(\d+(?:\.\d+)?)", title)
  return [float(x) if i % 2 else x for i, x in enumerate(parts)]


def _model(title, group, baseline, metric):
  done = [run for run in group.run if run.complete]
  headline = (metric,) if metric else (done or [*group.run])[0].headline
  measured = dict.fromkeys(m for run in done for m in run.finals if "/" in m)
  others = tuple(
    m for m in measured if m not in headline and not _APART.fullmatch(m)
  )
  order = in_order(group.arm)
  if baseline in order:
    order = [baseline, *(arm for arm in order if arm != baseline)]
  arms = {}
  for arm in order:
    repetitions = group[group.arm == arm]
    arms[arm] = {
      metric: aggregate.arm(repetitions, (metric,))
      for metric in (*headline, *others)
      if _is_measured(metric, repetitions, needed=metric == headline[0])
    }
  return Model(
    *(title, headline, others, arms),
    order[0] if len(order) > 1 else None,
    _apart(order, group, arms, headline[0]),
  )


def _apart(order, group, arms, metric):
  """Returns `Model.apart` of the runs whose results are compared."""
  counted = {
    arm: [
      run.config
      for run in group.run[group.arm == arm]
      if run.path in getattr(arms[arm].get(metric), "paths", ())
    ]
    for arm in order
  }
  first, *others = order
  found = {
    arm: [*arms_lib.differing(counted[first] + counted[arm], arms=True)]
    for arm in others
    if counted[first] and counted[arm]
  }
  told = lambda arm, name: f"{name.removeprefix('model.')}=" in arm
  found = {
    arm: [name for name in names if not told(arm, name)]
    for arm, names in found.items()
  }
  return {arm: names for arm, names in found.items() if names}


def some_of(names: Sequence[str]) -> str:
  """Returns the first six names, and how many more there are."""
  more = f" and {len(names) - 6} more" if len(names) > 6 else ""
  return ", ".join(names[:6]) + more


def _is_measured(metric, repetitions, needed):
  """Returns whether an arm's complete runs have a metric, all of them.

  Or any, if it is needed: then those that lack it are an error.
  """
  has = [metric in run.finals for run in repetitions.run if run.complete]
  return (not has or any(has)) if needed else bool(has) and all(has)


def side_by_side(
  found: Sequence[Model], interval: str = "ci95"
) -> list[tables.Table]:
  """Returns tables of arms × metrics; models measured alike share one."""
  alike = {}
  for model in found:
    shown = model.headline[:_MOST_METRICS]
    alike.setdefault((shown, model.baseline), []).append(model)
  return [
    tables.measured(_rows(metrics, baseline, of), interval)
    for (metrics, baseline), of in alike.items()
  ]


def _rows(metrics, baseline, found):
  rows = [
    (model.title, _label(arm), *_cells(model, arm, metrics))
    for model in found
    for arm in model.arms
  ]
  header = ["model", "arm"]
  for metric in metrics:
    minus = f"minus {baseline}" if len(metrics) == 1 else f"… − {baseline}"
    header += [_with_unit(metric), minus] if baseline else [_with_unit(metric)]
  frame = pd.DataFrame(rows, columns=header, dtype=object)
  title, keys = "Results", 2
  if len(found) == 1:  # then its name need not stand in every row
    frame, title, keys = frame.drop(columns="model"), found[0].title, 1
  notes = [f"{', '.join(metrics)}: at the last step, means over n runs."]
  if baseline:
    notes += [
      f"Differences from {baseline} are {aggregate.PAIRING}. Marked are those "
      "whose 95% interval does not contain 0. Of two runs both numbers are "
      "shown."
    ]
  notes += [
    f"{arm} and {of.baseline} of {of.title} also differ in: {some_of(names)}."
    for of in found
    for arm, names in of.apart.items()
  ]
  notes += aggregate.extensions(
    of.arms[arm][metric]
    for of in found
    for arm in of.arms
    for metric in metrics
    if metric in of.arms[arm]
  )
  if more := dict.fromkeys(m for of in found for m in _more(of)):
    listed = ", ".join([*more][:3]) + (", …" if len(more) > 3 else "")
    notes.append(f"Measured, too: {listed}; --table {NAME} shows all.")
  return tables.Table(NAME, title, frame, keys, notes)


def _cells(model, arm, metrics):
  """Returns an arm's results, each followed by its difference if there is one.

  A difference is marked, whichever way it goes: of a loss less is better.
  """
  cells = []
  for metric in metrics:
    cells.append(model.result(arm, metric))
    if model.baseline:
      gain = model.gain(arm, metric)
      if isinstance(gain, aggregate.Estimate):
        gain = dataclasses.replace(gain, best=bool(gain.side))
      cells.append(gain)
  return cells


def everything(
  found: Sequence[Model], interval: str = "ci95"
) -> list[tables.Table]:
  """Returns what was measured besides: metrics × arms, by model.

  After each, if there is a baseline, the arms' differences from it.
  """
  made = []
  for model in (model for model in found if _more(model)):
    title, others = f"All metrics of {model.title}", [*model.arms][1:]
    made.append(_by_metric(title, model, [*model.arms], model.result))
    if others:
      title += f": differences from {model.baseline}"
      made.append(_by_metric(title, model, others, model.gain))
  return [tables.measured(table, interval) for table in made]


def _by_metric(title, model, arms, cell):
  rows = [
    (_with_unit(metric), *(cell(arm, metric) for arm in arms))
    for metric in (*model.headline, *model.others)
  ]
  frame = pd.DataFrame(rows, columns=["metric", *arms], dtype=object)
  return tables.Table(NAME, title, frame, 1, [])


def _more(model):
  """Returns the metrics that `side_by_side` does not show."""
  return (*model.headline[_MOST_METRICS:], *model.others)


def _rounded(cell, metric):
  """Returns a cell with enough digits for what is no fraction: a loss."""
  if isinstance(cell, str) or aggregate.is_fraction(metric):
    return cell
  return dataclasses.replace(cell, digits=_DIGITS)


def _label(arm):
  return f"{arm} ({LABELS[arm]})" if arm in LABELS else arm


def _with_unit(metric):
  return f"{metric} [%]" if aggregate.is_fraction(metric) else metric


def in_words(found: Sequence[Model]) -> list[str]:
  """Returns a sentence on each comparison, and one on all of them together."""
  comparisons = [c for model in found for c in model.comparisons()]
  sentences = [str(comparison) for comparison in comparisons]
  tested = [c.gain for c in comparisons if c.gain.has_interval]
  if len(tested) > 1:
    apart = sum(bool(gain.side) for gain in tested)
    p_values = [gain.p_value for gain in tested]
    still = int((aggregate.holm(p_values) < 0.05).sum())
    sentences.append(
      f"Intervals without 0: {apart} of {len(tested)}; after correction for "
      f"their number (Holm, 5%): {still}."
    )
  return sentences


def trials(frame: pd.DataFrame) -> list[str]:
  """Returns a sentence that names the finished runs of two steps, if any."""
  paths = list(frame.path[frame.trial & frame.complete])
  return [tables.left_out({"of two steps (runlocal)": paths})] if paths else []


def at_scale(frame: pd.DataFrame) -> list[str]:
  """Returns what the paper gains, for accuracies of no scale of the paper's."""
  recipes = {table_specs.family(recipe)[0] for recipe in frame.recipe}
  if (
    recipes & table_specs.RECIPES
    or not {runs.BASE, runs.DPN} <= {*frame.arm}
    or not any(run.headline[0] in runs.ACCURACIES for run in frame.run)
  ):
    return []
  gains = [
    row["dpn"] - row["base"] for row in table_specs.PUBLISHED["1_left"]["rows"]
  ]
  return [
    "At scale, on ImageNet-1k, the paper reports "
    f"{min(gains):+.1f} to {max(gains):+.1f} points for {len(gains)} models: "
    "its Table 1 (left)."
  ]
