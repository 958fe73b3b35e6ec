"""What the runs themselves say: their arms, side by side and in sentences."""

import argparse
import dataclasses
import re
from collections.abc import Mapping, Sequence

import pandas as pd

from dpn import errors, stems
from dpn.scripts.results import aggregate, runs, tables
from dpn.scripts.results import arms as arms_lib

NAME = "runs"  # of the table in scripts.tables
LABELS = {
  runs.BASE: "ViT",
  runs.DPN: "Dual PatchNorm",
  "dpn+patch_stats": "Dual PatchNorm + patch_stats",
  "normformer": "NormFormer",
  "sub_ln": "Sub-LN",
}
_MOST_METRICS = 4  # side by side
_DIGITS = 4  # of losses and other numbers that are not percentages
# Gradients, seeds of a probe, and what scripts.results.classes shows.
_ELSEWHERE = re.compile(r"grad_norm.*|(.*/)?iou/.*|.*-seed-\d+")


@dataclasses.dataclass(frozen=True)
class Model:
  """The runs of a title, which differ in arm and seed.

  Attributes:
    title: recipe, size and what else tells them from others.
    headline: the metrics that are its result.
    others: whatever else its evaluators measured.
    arms: the runs of each arm by metric, the baseline's first.
    baseline: what arms are compared with; None for a single arm.
    also: by arm, further fields of the config in which it differs from the
      baseline: each arm's best learning rate, for example.
  """

  title: str
  headline: tuple[str, ...]
  others: tuple[str, ...]
  arms: Mapping[str, Mapping[str, aggregate.Arm]]
  baseline: str | None
  also: Mapping[str, Sequence[str]]

  def gain(self, arm: str, metric: str) -> aggregate.Estimate | str:
    """Returns arm − baseline, or why there is none; "" for the baseline."""
    if self.baseline in (None, arm):
      return ""
    new, old = (self.arms[a].get(metric) for a in (arm, self.baseline))
    if new is None or old is None:
      return tables.NOT_PUBLISHED
    return rounded(aggregate.gain(new, old), metric)

  def result(self, arm: str, metric: str) -> aggregate.Estimate | str:
    """Returns the mean of an arm, or why there is none."""
    found = self.arms[arm].get(metric)
    if found is None:
      return tables.NOT_PUBLISHED
    return rounded(aggregate.cell(found), metric)

  @property
  def shown(self) -> tuple[str, ...]:
    """The metrics that stand side by side."""
    return self.headline[:_MOST_METRICS]

  @property
  def more(self) -> tuple[str, ...]:
    return (*self.headline[_MOST_METRICS:], *self.others)

  @property
  def gains(self) -> dict[tuple[str, str], aggregate.Estimate]:
    """The differences from the baseline by (arm, metric)."""
    every = {(a, m): self.gain(a, m) for m in self.shown for a in self.arms}
    return {k: x for k, x in every.items() if isinstance(x, aggregate.Estimate)}

  def in_words(self, arm: str, metric: str) -> str:
    """Returns a sentence on a difference: its interval, what else differs."""
    gain = self.gain(arm, metric)
    unit = " points" if aggregate.is_fraction(metric) else ""
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
    also = self.also.get(arm, ())
    return (
      f"{arm} − {self.baseline} ({self.title}, {metric}): "
      f"{gain.number(gain.mean)}{unit}; {verdict} ({seeds})."
    ) + (f" The arms also differ in: {errors.some_of(also)}." if also else "")


def arm_name(given: str) -> str:
  """Returns what tables call an arm that a command was given.

  It may be given as configs call it: "none", or one of `stems.WORDS`.
  """
  word = stems.WORDS.get(given)
  named = arms_lib.model_name(word) if word else given
  return runs.BASE if named == "none" else named


def in_order(arms: Sequence[str]) -> list[str]:
  """Returns arms each once: a plain ViT, Dual PatchNorm, the others by name."""
  first = {runs.BASE: 0, runs.DPN: 1}
  return sorted(set(arms), key=lambda arm: (first.get(arm, 2), arm))


def add_arms(parser: argparse.ArgumentParser, arms: str | None = None):
  """Adds --baseline and, if `arms` says what for, --arms."""
  kw = {"type": arm_name, "metavar": "ARM"}
  help_ = "arm that the others are compared with (base, if there is one)"
  parser.add_argument("--baseline", help=help_, **kw)
  if arms:
    more = {"nargs": "+", "action": "extend", "default": [], **kw}
    parser.add_argument("--arms", help=arms, **more)


def of_arms(
  frame: pd.DataFrame, arms: Sequence[str], baseline: str | None = None
) -> pd.DataFrame:
  """Returns the runs of some arms and of the baseline; all if `arms` is empty.

  Raises:
    ValueError: no run is of one of the arms, or of the baseline.
  """
  for arm in [*arms, *filter(None, [baseline])]:
    errors.check_known("arm", arm, in_order(frame.arm))
  return frame[frame.arm.isin([*arms, baseline])] if arms else frame


def models(
  frame: pd.DataFrame, baseline: str | None = None, metric: str | None = None
) -> tuple[list[Model], list[str]]:
  """Returns the models that were trained, and which arms are left out and why.

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
  titles = frame.groupby("title")
  for title, group in sorted(titles, key=lambda item: _natural(item[0])):
    model = _model(title, group, baseline, metric, wrong)
    found += [model] if model.arms else []
  return found, wrong


def _natural(title):
  """Returns a key that puts numbers in a title in order: 195 before 1560."""
  parts = re.split(r"(\d+(?:\.\d+)?)", title)
  return [float(x) if i % 2 else x for i, x in enumerate(parts)]


def _model(title, group, baseline, metric, wrong):
  """Returns the model of a title; adds to `wrong` why arms are left out."""
  done = [run for run in group.run if run.complete]
  headline = (metric,) if metric else _headline(done or group.run)
  measured = dict.fromkeys(m for run in done for m in run.finals if "/" in m)
  others = tuple(
    m for m in measured if m not in headline and not _ELSEWHERE.fullmatch(m)
  )
  arms, order = {}, sorted(in_order(group.arm), key=lambda arm: arm != baseline)
  for arm in order:
    repetitions = group[group.arm == arm]
    of_arm = [run.finals for run in repetitions.run if run.complete]
    first, *more = headline
    known = [m for m in (*more, *others) if all(m in run for run in of_arm)]
    known = known if of_arm else []
    if not of_arm or any(first in run for run in of_arm):
      known.insert(0, first)  # which all must have
    try:
      arms[arm] = {m: aggregate.arm(repetitions, (m,)) for m in known}
    except ValueError as e:
      wrong.append(f"{title}: {arm}: {e}")
  # Without that baseline nothing is compared: another would be a surprise.
  first = order[0] if baseline is None else baseline
  first = first if first in arms and len(arms) > 1 else None
  also = _also_different(first, group, arms, headline[0])
  return Model(title, headline, others, arms, first, also)


def _headline(found):
  """Returns the best of runs' headlines: accuracies in order, a loss last."""
  known = (*runs.ACCURACIES, "")
  rank = lambda name: known.index(name if name in known else "")
  every = [run.headline for run in found]
  return min(every, key=lambda names: (names == ("loss",), rank(names[0])))


def _also_different(first, group, arms, metric):
  """Returns `Model.also` of the runs whose results are compared."""
  configs, found = {}, {}
  for arm, of in arms.items():
    counted = group.path.isin(getattr(of.get(metric), "paths", ()))
    runs_ = group.run[counted & (group.arm == arm)]
    configs[arm] = [run.config for run in runs_]
  for arm in arms:
    if first not in (None, arm) and configs[first] and configs[arm]:
      differing = arms_lib.differing(configs[first] + configs[arm], arms=True)
      unsaid = [
        n for n in differing if f"{n.removeprefix('model.')}=" not in arm
      ]
      found |= {arm: unsaid} if unsaid else {}
  return found


def side_by_side(found: Sequence[Model]) -> list[tables.Table]:
  """Returns tables of arms × metrics; models measured alike share one."""
  alike = {}
  for model in found:
    alike.setdefault((model.shown, model.baseline), []).append(model)
  return [_rows(*shared, of) for shared, of in alike.items()]


def _rows(metrics, baseline, found):
  rows = [
    (model.title, _label(arm), *_cells(model, arm, metrics))
    for model in found
    for arm in model.arms
  ]
  header = ["model", "arm"]
  for metric in metrics:
    minus = f"minus {baseline}" if len(metrics) == 1 else f"… − {baseline}"
    header += [unit(metric), minus] if baseline else [unit(metric)]
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
  also = {}
  for of in found:
    for arm, names in of.also.items():
      also.setdefault((of.title, *names), []).append(arm)
  notes += [
    f"{title}: {baseline} also differs from {', '.join(arms)} in: "
    f"{errors.some_of(names)}."
    for (title, *names), arms in also.items()
  ]
  arms = [arm for of in found for arm in of.arms.values()]
  counted = [arm.get(metric) for arm in arms for metric in metrics]
  notes += aggregate.extensions(filter(None, counted))
  if more := list(dict.fromkeys(m for of in found for m in of.more)):
    listed = ", ".join(more[:3]) + (", …" if len(more) > 3 else "")
    notes.append(f"Measured, too: {listed}; --table {NAME} shows all.")
  return tables.Table(NAME, title, frame, keys, notes)


def _cells(model, arm, metrics):
  """Returns an arm's results, each followed by its difference if there is one.

  Differences are marked whichever way they go, as less is better for a loss.
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


def everything(found: Sequence[Model]) -> list[tables.Table]:
  """Returns tables of all metrics × arms, for models with more than `shown`.

  If there is a baseline, each is followed by the arms' differences from it.
  """
  made = []
  for model in (model for model in found if model.more):
    title, arms = f"All metrics of {model.title}", [*model.arms]
    made.append(_by_metric(title, model, arms, model.result))
    if model.baseline and (others := arms[1:]):
      title += f": differences from {model.baseline}"
      made.append(_by_metric(title, model, others, model.gain))
  return made


def _by_metric(title, model, arms, cell):
  rows = [
    (unit(metric), *(cell(arm, metric) for arm in arms))
    for metric in (*model.headline, *model.others)
  ]
  frame = pd.DataFrame(rows, columns=["metric", *arms], dtype=object)
  return tables.Table(NAME, title, frame, 1, [])


def rounded(
  cell: aggregate.Estimate | str, metric: str
) -> aggregate.Estimate | str:
  """Returns a cell with more digits if it is not a percentage."""
  if isinstance(cell, str) or aggregate.is_fraction(metric):
    return cell
  return dataclasses.replace(cell, digits=_DIGITS)


def _label(arm):
  return f"{arm} ({LABELS[arm]})" if arm in LABELS else arm


def unit(metric: str) -> str:
  """Returns a metric's name, with "[%]" if it is shown in percent."""
  return f"{metric} [%]" if aggregate.is_fraction(metric) else metric


def in_words(found: Sequence[Model]) -> list[str]:
  """Returns a sentence on each comparison, and one on all of them together.

  Those whose interval does not contain 0 come first.
  """
  every = [(gain, of, key) for of in found for key, gain in of.gains.items()]
  every.sort(key=lambda each: not each[0].side)
  sentences = [model.in_words(*key) for _, model, key in every]
  tested = [gain for gain, *_ in every if gain.has_interval]
  if len(tested) > 1:
    without_0 = sum(bool(gain.side) for gain in tested)
    p_values = [gain.p_value for gain in tested]
    still = int((aggregate.holm(p_values) < 0.05).sum())
    sentences.append(
      f"Intervals without 0: {without_0} of {len(tested)}; after correction "
      f"for their number (Holm, 5%): {still}."
    )
  return sentences


def trials(frame: pd.DataFrame) -> list[str]:
  """Returns a sentence that names the finished runs of two steps, if any."""
  paths = list(frame.path[frame.trial & frame.complete])
  return [tables.left_out({"of two steps (runlocal)": paths})] if paths else []
