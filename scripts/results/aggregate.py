"""Collects the results of runs by cell of the paper's tables."""

import collections
import dataclasses
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

from scripts.results import cells, runs, stats

# Metrics that are fractions here and percentages in the paper.
_FRACTION = re.compile(r"(.*/)?(.*prec@\d+|.*\d+shot|.*acc.*|.*miou.*|.*IoU.*)")


@dataclasses.dataclass(frozen=True)
class Arm:
  """The runs of one cell.

  Attributes:
    done: complete runs, one a seed, by seed.
    open: incomplete runs.
    copies: complete runs that repeat one of `done`, number for number.
    metric: what was read from the complete runs.
    values: of the metric by seed, fractions in percent; where there is a
      single run with a probe that has seeds of its own, by those.
    probes: whether `values` are by probe seed.
    waiting: what candidates of a selection wait for, "" if for nothing.
  """

  done: Sequence[runs.Run] = ()
  open: Sequence[runs.Run] = ()
  copies: Sequence[runs.Run] = ()
  metric: str = ""
  values: Mapping[str, float] = dataclasses.field(default_factory=dict)
  probes: bool = False
  waiting: str = ""

  @property
  def mean(self) -> stats.Mean:
    return stats.mean(list(self.values.values()))

  def note(self) -> str:
    """Returns what is to be said of the arm's mean, "" if nothing."""
    parts = []
    if self.probes:
      parts.append(f"CI of {len(self.values)} probes")
    if self.open:
      parts.append(f"{len(self.open)} incomplete")
    return ", ".join(parts)


def collect(
  found: Iterable[runs.Run],
  place: Callable[[cells.Cell], tuple[Hashable, Sequence[str]] | None],
) -> dict[Hashable, Arm]:
  """Returns the arms that the runs make up, by their place.

  Args:
    found: the runs; trial runs of `runlocal` are left out.
    place: cell → (where its runs count, the metrics to look for, of which the
      first that all runs of a place have is read); None to leave it out.

  Raises:
    ValueError: two runs of a place share a seed and not their result, or differ
      in more than the seed; or a complete run lacks the metric.
  """
  grouped, metrics = collections.defaultdict(list), {}
  for run in found:
    cell = cells.of(run)
    placed = cell and place(cell)
    if placed:
      grouped[placed[0]].append(run)
      metrics[placed[0]] = placed[1]
  return {
    where: _arm(repetitions, metrics[where])
    for where, repetitions in grouped.items()
  }


def _arm(repetitions, metrics):
  candidates = [run for run in repetitions if cells.is_candidate(run)]
  if candidates and candidates == repetitions:
    repetitions, waiting = _selected(candidates, metrics)
    if waiting:
      return Arm(waiting=waiting)
  done = [run for run in repetitions if run.complete]
  still = [run for run in repetitions if not run.complete]
  if not done:
    return Arm(open=still)
  _check_alike(done)
  metric = _choose(done, metrics)
  one_a_seed, copies = _one_a_seed(done, metric)
  values, probes = _values(one_a_seed, metric)
  return Arm(one_a_seed, still, copies, metric, values, probes)


def _selected(candidates, metrics):
  """Returns the candidates that count, or what they wait for."""

  def tested(chosen):
    return any(m in run.finals for m in metrics for run in chosen)

  chosen = [run for run in candidates if run.chosen]
  if chosen:
    return chosen, "" if tested(chosen) else "selected, not tested yet"
  count = len({run.config["table"]["candidate"] for run in candidates})
  complete = [run for run in candidates if run.complete]
  never_chosen = all(run.chosen is None for run in candidates)
  if count == 1 and never_chosen and tested(complete):
    return candidates, ""  # there is nothing to choose between
  what = f"{count} candidates" if count > 1 else "1 candidate"
  return [], f"{what}, none selected yet"


def _check_alike(done):
  """Raises if runs differ in what may not differ within a cell."""
  different = cells.differences(done)
  if different:
    listed = "; ".join(
      f"{name}: {', '.join(dict.fromkeys(values))}"
      for name, values in list(different.items())[:3]
    )
    raise ValueError(
      f"{_paths(done)} fill the same cell and differ in more than the seed "
      f"({listed}). A mean over them would mean nothing: give the folders of "
      "one setting only."
    )


def _one_a_seed(done, metric):
  """Returns (runs by seed, copies); raises on two results for a seed."""
  by_seed, copies = {}, []
  for run in done:
    first = by_seed.setdefault(run.seed, run)
    if first is run:
      continue
    if first.final(metric) != run.final(metric):
      raise ValueError(
        f"{first.path} and {run.path} have the same seed ({run.seed}), fill "
        f"the same cell and differ in {metric}: {first.final(metric):g} and "
        f"{run.final(metric):g}. Give one of the two only, or train one with "
        "another seed."
      )
    copies.append(run)
  return [by_seed[seed] for seed in sorted(by_seed)], copies


def _choose(done, metrics):
  """Returns the first metric that all runs have; raises if there is none."""
  for metric in metrics:
    if all(metric in run.finals for run in done):
      return metric
  lacking = next(run for run in done if metrics[0] not in run.finals)
  lacking.final(metrics[0])  # raises, with what is there


def _values(done, metric):
  """Returns values by seed, and whether they are of the probe's seeds."""
  values = {f"{run.seed}": scaled(run, metric) for run in done}
  if len(done) == 1:
    prefix = f"{metric}-seed-"
    probes = {k for k in done[0].finals if k.startswith(prefix)}
    if len(probes) > 1:
      return {
        f"probe {k.removeprefix(prefix)}": scaled(done[0], k)
        for k in sorted(probes)
      }, True
  return values, False


def is_fraction(metric: str) -> bool:
  """Returns whether a metric is in [0, 1] and shown in percent."""
  return bool(_FRACTION.fullmatch(re.sub(r"-seed-\d+$", "", metric)))


def scaled(run: runs.Run, metric: str) -> float:
  """Returns a complete run's metric, fractions in percent.

  Raises:
    ValueError: the metric is missing, or a fraction that is none.
  """
  value = run.final(metric)
  if not is_fraction(metric):
    return value
  if not (math.isfinite(value) and 0 <= value <= 1):
    raise ValueError(
      f"In {run.path}: {metric} is {value:g}, expected a fraction in [0, 1]. "
      "Check what wrote done.json there."
    )
  return 100 * value


def _paths(found):
  shown = ", ".join(run.path for run in found[:3])
  return shown + (f" and {len(found) - 3} more" if len(found) > 3 else "")
