"""Averages the runs of each table cell: means, intervals, differences."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import scipy

from dpn import errors
from dpn.scripts.results import arms as arms_lib
from dpn.scripts.results import runs

NOT_RUN = "not run"
# Metrics that are fractions here and percentages in the paper.
_FRACTION = re.compile(
  r"(.*/)?(iou/.*|[^/]*((prec|recall)@\d+|\d+shot|(acc|miou|IoU)[^/]*))"
)


# What `difference` does, in the notes of tables.
PAIRING = (
  "paired seed by seed, over the seeds of the arm that has fewer (three or "
  "more) if the other has them too, else Welch's"
)
# What ± may stand for, by its name in `--interval`.
MEASURES = {"ci95": "95% CI", "sem": "SEM"}


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A mean with its 95% confidence interval; its text is a table's cell.

  Attributes:
    mean: NaN for no numbers at all.
    ci: half the interval's length; NaN for fewer than two numbers.
    n: how many runs were averaged; None for a number from the paper.
    note: how it was compared, what is missing.
    sign: "+" for differences.
    digits: decimals of the mean; what follows ± has two or more.
    df: degrees of freedom of the interval.
    interval: what ± shows, a key of `MEASURES`.
    best: whether to mark it.
    pair: the numbers themselves if there are just two. They are shown instead
      of an interval, which with one degree of freedom says next to nothing.
  """

  mean: float
  ci: float = math.nan
  n: int | None = None
  note: str = ""
  sign: str = ""
  digits: int = 2
  df: float = math.nan
  interval: str = "ci95"
  best: bool = False
  pair: tuple[float, ...] = ()

  @property
  def has_interval(self) -> bool:
    """Whether ± is shown."""
    return not (math.isnan(self.ci) or self.pair)

  @property
  def sem(self) -> float:
    """The standard error of the mean."""
    return self.ci / t_95(self.df)

  @property
  def spread(self) -> float:
    """What ± shows: half the 95% interval or the standard error."""
    return self.sem if self.interval == "sem" else self.ci

  @property
  def p_value(self) -> float:
    """Of the hypothesis that the mean is 0, two-sided; NaN without interval."""
    if self.ci == 0:
      return float(self.mean == 0)
    return float(2 * scipy.stats.t.sf(abs(self.mean) / self.sem, self.df))

  @property
  def side(self) -> int:
    """On which side of 0 the 95% interval lies: 1 or -1; 0 if it contains 0.

    Also 0 without an interval.
    """
    if not self.has_interval:
      return 0
    return int(abs(self.mean) > self.ci) * (1 if self.mean > 0 else -1)

  def __str__(self) -> str:
    text = self.number(self.mean)
    if self.has_interval:
      text += f" ± {self.spread:.{max(self.digits, 2)}f}"
    notes = [f"n={self.n}"] if self.n else []
    if self.pair:
      notes = [f"n=2: {', '.join(map(self.number, self.pair))}"]
    notes += [self.note] if self.note else []
    return f"{text} ({', '.join(notes)})" if notes else text

  def number(self, value: float) -> str:
    """Returns a number as the mean is written, with its sign and digits."""
    if not round(float(value), self.digits):
      return f"{0:.{self.digits}f}"  # not "+0.00", nor "−0.00"
    return f"{value:{self.sign}.{self.digits}f}".replace("-", "−")


def t_95(df: float) -> float:
  """Returns half the width of a 95% interval, in standard errors."""
  return float(scipy.stats.t.ppf(0.975, df))


def half_width(values: np.ndarray) -> np.ndarray:
  """Returns half the 95% interval of the mean over the first axis.

  That is t(0.975, n - 1) · s / √n, s² being the unbiased variance: right for
  independent, normally distributed values. NaN for n < 2.
  """
  n = len(values)
  if n < 2:
    return np.full(np.shape(values)[1:], np.nan)
  return t_95(n - 1) * scipy.stats.sem(values)


def estimate(values: Sequence[float]) -> Estimate:
  """Returns the mean of some numbers and its interval."""
  n, ci = len(values), half_width(np.asarray(values))
  pair = tuple(map(float, values)) if n == 2 else ()
  return Estimate(float(np.mean(values)), float(ci), n, df=n - 1, pair=pair)


def difference(new: pd.Series, old: pd.Series) -> Estimate:
  """Returns the mean of new − old, two series by seed.

  Its note: "paired" if both have the same seeds, or one has three or more and
  the other has these too (its further seeds are left out), for the mean of the
  differences by seed and its interval; else "Welch", for the interval of two
  means of unequal variances, or "unpaired" if a single run leaves no interval.
  """
  common = new.index.intersection(old.index)
  if len(common) == min(len(new), len(old)) >= 3:
    new, old = new[common], old[common]
  if set(new.index) == set(old.index):
    return dataclasses.replace(estimate(new - old), note="paired", sign="+")
  return welch(new, old)


def welch(new: pd.Series, old: pd.Series) -> Estimate:
  """Returns the mean of new − old, two independent samples, after Welch (1947).

  Its note is "Welch", or "unpaired" where a single run leaves no interval.
  """
  gain, n = float(new.mean() - old.mean()), min(len(new), len(old))
  if n < 2:
    return Estimate(gain, math.nan, n, "unpaired", "+")
  variances = np.array([x.var(skipna=False) / len(x) for x in (new, old)])
  ci, df = of_sum(variances, np.array([len(new) - 1, len(old) - 1]))
  return Estimate(gain, ci, n, "Welch", "+", df=df)


def of_sum(variances: np.ndarray, dfs: np.ndarray) -> tuple[float, float]:
  """Returns half the 95% interval of a sum of independent estimates, and df.

  The degrees of freedom are those of Welch (1947) and Satterthwaite (1946).

  Args:
    variances: squared standard errors, (estimates,).
    dfs: their degrees of freedom, (estimates,).
  """
  if not variances.any():
    return 0.0, float(dfs.min())
  df = float(variances.sum() ** 2 / (variances**2 / dfs).sum())
  return t_95(df) * math.sqrt(variances.sum()), df


def holm(p_values: Sequence[float]) -> np.ndarray:
  """Returns p-values adjusted for their number, after Holm (1979).

  The k-th smallest of n is multiplied by n + 1 - k, and is no less than those
  before it: the chance of any false alarm stays that of a single test.
  """
  p = np.asarray(p_values, float)
  order = np.argsort(p, kind="stable")
  scaled = p[order] * np.arange(len(p), 0, -1)
  adjusted = np.empty_like(p)
  adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
  return adjusted


@dataclasses.dataclass(frozen=True)
class Arm:
  """The runs of one table cell.

  Attributes:
    metric: what was read from the complete runs; "" if there is none.
    values: of the metric by seed, fractions in percent; if there is a single
      run whose probe was fitted with several seeds, by the probe's seeds.
    n: how many complete runs there are.
    open: paths of incomplete runs.
    copies: paths of runs that repeat another one's seed and result.
    unchosen: paths of complete candidates that a selection did not choose.
    paths: of the other complete runs.
    waiting: what candidates of a selection wait for, "" if for nothing.
    extended: those of `paths` that were trained further after they had been
      done, and when that was: their schedule is not that of a single training.
  """

  metric: str = ""
  values: pd.Series = dataclasses.field(default_factory=pd.Series)
  n: int = 0
  open: Sequence[str] = ()
  copies: Sequence[str] = ()
  unchosen: Sequence[str] = ()
  paths: Sequence[str] = ()
  waiting: str = ""
  extended: Sequence[str] = ()

  @property
  def probes(self) -> bool:
    """Whether `values` are by the seeds of a probe."""
    return len(self.values) > self.n


def cell(arm: Arm | None) -> Estimate | str:
  """Returns the mean of an arm, or why it has none."""
  if arm is None:
    return NOT_RUN
  if arm.waiting:
    return arm.waiting
  if not arm.metric:
    count = len(arm.open)
    return f"incomplete ({count} run{'s' * (count > 1)})"
  notes = [f"± of {len(arm.values)} probes"] if arm.probes else []
  notes += [f"{len(arm.open)} incomplete"] if arm.open else []
  mean = estimate(arm.values)
  if arm.probes:
    mean = dataclasses.replace(mean, pair=())
  return dataclasses.replace(mean, n=arm.n, note=", ".join(notes))


def gain(new: Arm | None, old: Arm | None) -> Estimate | str:
  """Returns new − old of two arms, or why there is none."""
  if not (new and new.metric and old and old.metric):
    lacking = any(arm and not arm.metric for arm in (new, old))
    return "incomplete" if lacking else NOT_RUN
  if new.metric != old.metric:
    return f"{new.metric} and {old.metric} do not compare"
  if new.probes and old.probes:
    found = difference(new.values, old.values)
    note = f"± of {found.n} probes, {found.note}"
    return dataclasses.replace(found, n=1, note=note, pair=())
  # Seeds of a probe are not seeds of runs: a probed run counts by its mean.
  new, old = (
    pd.Series({"probes": arm.values.mean()}) if arm.probes else arm.values
    for arm in (new, old)
  )
  return difference(new, old)


def arm(group: pd.DataFrame, metrics: Sequence[str]) -> Arm:
  """Returns the runs of one cell, rows of `runs.frame`, as an arm.

  The first of `metrics` that all complete runs have is read.

  Raises:
    ValueError: two runs share a seed but not their result, or differ in more
      than the seed; or a complete run lacks the metric.
  """
  unchosen = []
  if group.candidate.notna().all():
    every = group.path[group.complete]
    group, waiting = _selected(group, metrics)
    unchosen = list(every[~every.isin(group.path)])
    if waiting:
      paths = list(group.path[group.complete])
      return Arm(unchosen=unchosen, paths=paths, waiting=waiting)
  done = group[group.complete].sort_values("seed", kind="stable")
  still = group[~group.complete & ~group.seed.isin(done.seed)]
  still = list(still.drop_duplicates("seed").path)
  if done.empty:
    return Arm(open=still, unchosen=unchosen)
  check_alike(done)
  shared = [m for m in metrics if all(m in run.finals for run in done.run)]
  metric = (shared or metrics)[0]
  values = pd.Series([percent(run, metric) for run in done.run], done.seed)
  repeated = done.seed.duplicated().to_numpy()
  for seed, results in values[repeated].items():
    if (values[[seed]] != results).any():
      raise ValueError(
        f"{' and '.join(done.path[done.seed == seed])} have the same seed "
        f"({seed}), fill the same cell and differ in {metric}: "
        f"{', '.join(f'{v:g}' for v in values[[seed]])}. Give only one."
      )
  copies, values = list(done.path[repeated]), values[~repeated]
  n = len(values)
  if len(done) == 1:  # a probe may have been fitted with several seeds
    run = done.run.iloc[0]
    names = sorted(m for m in run.finals if m.startswith(f"{metric}-seed-"))
    if len(names) > 1:
      values = pd.Series({name: percent(run, name) for name in names})
  paths = list(done.path[~repeated])
  extended = [
    f"{run.path} (done at step {', '.join(f'{end:,}' for end in ends)})"
    for run in done.run[~repeated]
    if (ends := run.done.get("extended_at"))
  ]
  return Arm(
    metric, values, n, still, copies, unchosen, paths, extended=extended
  )


def extensions(arms: Iterable[Arm]) -> list[str]:
  """Returns a note that names the runs that were trained further, if any."""
  named = dict.fromkeys(path for arm in arms for path in arm.extended)
  if not named:
    return []
  return [
    "Trained further after they had been done, so not with the schedule of as "
    f"many steps at once: {', '.join(named)}."
  ]


def _selected(candidates, metrics):
  """Returns the candidates that count, and what they wait for."""
  complete = candidates[candidates.complete]
  tested = [any(m in run.finals for m in metrics) for run in complete.run]
  chosen = [bool(run.chosen) for run in candidates.run]
  if any(chosen):
    waits = not any(run.chosen for run in complete.run[tested])
    return candidates[chosen], "selected, not tested yet" if waits else ""
  count = candidates.candidate.nunique()
  if count == 1 and candidates.run.iloc[0].chosen is None and any(tested):
    return candidates, ""  # there is nothing to choose between
  return candidates, f"{count} candidate{'s' * (count > 1)}, none selected yet"


def check_alike(done: pd.DataFrame):
  """Raises ValueError if complete runs differ in more than the seed."""
  if why := unlike(done):
    raise ValueError(
      f"{errors.some_of(done.path, 3)} {why}. Give the folders of one "
      "setting only."
    )


def unlike(done: pd.DataFrame) -> str:
  """Returns why complete runs, rows of `runs.frame`, may not share a cell."""
  if len(done) < 2:
    return ""
  found = arms_lib.differing(run.config for run in done.run)
  different = [f"{name}: {', '.join(values)}" for name, values in found.items()]
  if not different:
    return ""
  return (
    "fill the same cell and differ in more than the seed "
    f"({'; '.join(different[:3])})"
  )


@functools.cache
def is_fraction(metric: str) -> bool:
  """Returns whether a metric is in [0, 1] and shown in percent."""
  return bool(_FRACTION.fullmatch(re.sub(r"-seed-\d+$", "", metric)))


def percent(run: runs.Run, metric: str) -> float:
  """Returns a complete run's metric, fractions in percent.

  Raises:
    ValueError: the metric is missing, or a fraction outside of [0, 1].
  """
  value = run.final(metric)
  if not is_fraction(metric):
    return value
  if not 0 <= value <= 1:  # also if it is NaN
    raise ValueError(
      f"In {run.path}: {metric} is {value:g}, expected a fraction in [0, 1]."
    )
  return 100 * value
