"""What arXiv 2302.01327 says in prose, beside what runs say.

paper_claims.json has a row for each claim: where it stands, what it says, the
check that decides it and that check's arguments. A claim that a table decides
is judged twice by the same function: from the numbers that the paper prints,
and from runs. Other checks look at what runs logged, see `measures`.
"""

import dataclasses
import functools
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import scipy

from dpn.scripts.results import (
  aggregate,
  arms,
  figures,
  measures,
  paper,
  runs,
  tables,
)

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
NOT_RUN = aggregate.NOT_RUN
CLAIMS = json.loads(
  pathlib.Path(__file__).with_name("paper_claims.json").read_text("utf-8")
)
Gains = Mapping[str, aggregate.Estimate]  # row → difference

_NOTES = (
  "Means are ± half a 95% interval (Student's t), and a claim of a gain holds "
  "where the interval lies above 0, whatever its size. Counts: better and "
  "worse are differences whose intervals do not contain 0 or, of one or two "
  "runs and of the paper's numbers, all that are not 0. Where many comparisons "
  "make one claim they are tested at 5% with Holm's correction for their "
  "number.",
  f"Spikes: rows whose loss exceeds the median of the {measures.ROWS_BEFORE} "
  f"before by more than {measures.DEVIATIONS} standard deviations of their "
  "noise (scripts/results/measures.py). A "
  "claim on all models holds if it does for each. Gradients are those before "
  "clipping.",
)


@dataclasses.dataclass(frozen=True)
class Finding:
  """What the runs say of a claim.

  Attributes:
    verdict: one of the words above.
    ours: the numbers behind it.
    paths: of the runs that were looked at.
    printed: the same for the numbers that the paper prints, "" if none.
  """

  verdict: str = NOT_RUN
  ours: str = ""
  paths: Sequence[str] = ()
  printed: str = ""


class Evidence:
  """Runs, sorted into tables when a claim asks for one.

  Attributes:
    frame: all runs, see `runs.frame`.
    done: the complete ones, without trials and candidates of a selection.
  """

  def __init__(self, frame: pd.DataFrame):
    self.frame = frame
    self.done = frame[frame.complete & ~frame.trial & frame.candidate.isna()]
    self.sorted = functools.cache(lambda table: tables.sort_runs(table, frame))

  def arms(self, table: str) -> tables.Arms:
    """Returns what fills a table; ValueError if a cell cannot be averaged."""
    found = self.sorted(table)
    if found.wrong:
      raise ValueError(found.wrong[0])
    return found.arms


def _repetitions(done, arm):
  """Returns the runs of an arm, one for each seed.

  Raises:
    ValueError: they differ in more than the seed.
  """
  of_arm = done[done.arm == arm]
  aggregate.check_alike(of_arm)
  return list(of_arm.drop_duplicates("seed").run)


def _rows(table, rows):
  """Returns the places of the paper's rows that are asked for."""
  spec = paper.TABLES[table]
  places = [(arch,) for arch in spec.archs] or dict.fromkeys(
    place for place, _ in paper.printed(table)
  )
  wanted = lambda place: all(
    place[spec.keys.index(key)] in values for key, values in rows.items()
  )
  return [place for place in places if wanted(place)]


def _published(table, places, new, old) -> Gains:
  """Returns the paper's differences; Table 6 already prints those from dpn."""
  printed = dict(paper.printed(table))
  if table == "6":
    printed |= {(place, runs.DPN): paper.number(0.0) for place in places}
  return {
    " ".join(place): aggregate.Estimate(
      printed[place, new].mean - printed[place, old].mean, sign="+"
    )
    for place in places
    if {(place, new), (place, old)} <= printed.keys()
  }


def _compared(
  judge, evidence, table, new=(runs.DPN,), old=runs.BASE, rows=None, **how
):
  """Returns what a judge says of differences in a table.

  Args:
    judge: (differences, how many there would be, how) → (verdict, numbers).
    evidence: the runs.
    table: its name.
    new: arms, each compared with `old`.
    old: the arm they are compared with.
    rows: values of the table's keys, to take only some of the paper's rows.
    **how: options of the judge.
  """
  places, of_table = _rows(table, rows or {}), evidence.arms(table)
  gains, printed, paths = {}, {}, []
  for arm in new:
    name = "{}" if arm == runs.DPN else f"{arm} {{}}"
    for place in places:
      pair = [of_table.get((place, a)) for a in (arm, old)]
      gain = aggregate.gain(*pair)
      if isinstance(gain, aggregate.Estimate):
        gains[name.format(" ".join(place))] = gain
      for of in filter(None, pair):
        paths += [*of.paths, *of.copies, *of.unchosen]
    for row, gain in _published(table, places, arm, old).items():
      printed[name.format(row)] = gain
  total = len(places) * len(new)
  verdict, ours = judge(gains, total, **how) if gains else (NOT_RUN, "")
  if gains and len(gains) < total:
    ours += f"; {len(gains)} of {total} comparisons run"
  in_print = judge(printed, len(printed), **how)[1] if printed else ""
  return Finding(verdict, ours, paths, in_print)


def _mean_gain(gains, total):
  """Judges whether the mean of the differences is above 0, once all are run.

  The variance of the mean takes the rows to be independent.
  """
  mean = float(np.mean([gain.mean for gain in gains.values()]))
  variances = np.array([gain.sem**2 for gain in gains.values()])
  dfs = np.array([gain.df for gain in gains.values()])
  ci = aggregate.of_sum(variances, dfs)[0] / len(gains)
  found = aggregate.Estimate(mean, ci, sign="+")
  side = found.side if len(gains) == total else 0
  verdict = {1: HOLDS, -1: FAILS, 0: UNDECIDED}[side]
  rows = f" over {len(gains)} rows" if len(gains) > 1 else ""
  return verdict, f"{found}{rows}"


def _side(gain):
  """Returns the side of 0 of a difference, by sign if it has no interval."""
  if not gain.has_interval:
    return int(np.sign(round(gain.mean, 3)))
  return gain.side


def _better(gains, total, least):
  """Judges whether at least so many differences lie above 0."""
  sides = [_side(gain) for gain in gains.values()]
  above, below = sides.count(1), sides.count(-1)
  verdict = HOLDS if above >= least else UNDECIDED
  if total - below < least:
    verdict = FAILS
  by_sign = not all(gain.has_interval for gain in gains.values())
  rule = ", by sign" if by_sign else ""
  equal = len(sides) - above - below
  return verdict, f"{above} better, {equal} equal, {below} worse{rule}"


def tested(gains: Gains, total: int, every: bool) -> tuple[str, str]:
  """Judges whether every difference, or none, is above 0.

  All are tested by Student's t at 5%, with Holm's correction for their number.
  While some are not run, the claim may be refuted but does not hold yet.
  """
  p = {row: gain.p_value for row, gain in gains.items()}
  p = {row: value for row, value in p.items() if not math.isnan(value)}
  if not p:
    above = sum(gain.mean > 0 for gain in gains.values())
    return UNDECIDED, f"{above} of {len(gains)} above 0"
  adjusted = dict(zip(p, aggregate.holm([*p.values()]), strict=True))
  won = [row for row in p if adjusted[row] < 0.05 and gains[row].mean > 0]
  lost = [row for row in gains if row not in won]
  if every:
    verdict = UNDECIDED if lost else HOLDS
    if any(gains[row].side < 0 for row in lost):
      verdict = FAILS
    named = f" (not {', '.join(lost)})" if lost else ""
  else:
    verdict = FAILS if won else HOLDS
    named = f" ({', '.join(won)})" if won else ""
  if verdict == HOLDS and len(p) < total:
    verdict = UNDECIDED
  numbers = f"{len(won)} of {len(p)} significantly better{named}"
  return verdict, f"{numbers}, least p {min(adjusted.values()):.2g}"


def _unstable(evidence, arm, arch):
  """Checks that AugReg training of an arm is less stable than DPN's.

  It is less stable if its runs have more loss spikes each, or if their results
  have a larger variance over seeds (F test, 5%).
  """
  model = evidence.done.query("recipe == 'AugReg' and arch == @arch")
  found = {name: _repetitions(model, name) for name in (arm, runs.DPN)}
  paths = [run.path for of in found.values() for run in of]
  if not all(found.values()):
    there = [name for name, of in found.items() if of]
    ours = f"only {there[0]} was run" if there else ""
    return Finding(ours=ours, paths=paths)
  if any(run.averaged for of in found.values() for run in of):
    ours = "an archive has no single steps: give the runs' folders"
    return Finding(ours=ours, paths=paths)
  spikes, texts, finals = [], [], []
  for name, repetitions in found.items():
    mine = [measures.spikes(run.series("loss")) for run in repetitions]
    peak = max(measures.gradient_peak(run) for run in repetitions)
    values = [aggregate.percent(run, run.headline[0]) for run in repetitions]
    spread = f"{np.std(values, ddof=1):.2f}" if len(values) > 1 else "–"
    spikes.append(float(np.mean(mine)))
    finals.append(values)
    texts.append(
      f"{name}: {spikes[-1]:.3g} spikes a run, largest gradient {peak:.3g} "
      f"medians, standard deviation over seeds {spread}"
    )
  more = spikes[0] > spikes[1] or _wider(*finals)
  return Finding(HOLDS if more else FAILS, "; ".join(texts), paths)


def _wider(values, reference):
  """Returns whether a variance is larger than another: F test, 5%."""
  with np.errstate(divide="ignore", invalid="ignore"):  # NaN of single runs
    ratio = pd.Series(values).var() / np.float64(pd.Series(reference).var())
  df = len(values) - 1, len(reference) - 1
  return scipy.stats.f.sf(ratio, *df) < 0.05


def _by_model(judge, evidence, metric=None, recipes=()):
  """Returns what a judge says of a plain ViT and DPN of every model.

  The judge takes the runs of both, which have logged `metric`, and returns
  whether the claim holds, with the numbers. It must hold for every model, or
  for those of `recipes`.
  """
  held, texts, paths = [], [], []
  done = evidence.done
  if recipes:
    done = done[done.recipe.isin(recipes)]
  if metric:
    logs = lambda run: metric in run.logged and not run.averaged
    done = done[done.run.map(logs).astype(bool)]
  for title, model in done.groupby("title"):
    pair = [_repetitions(model, arm) for arm in (runs.BASE, runs.DPN)]
    if all(pair):
      holds, text = judge(*pair)
      held.append(holds)
      texts.append(f"{title}: {text}" + ("" if holds else " (not so)"))
      paths += [run.path for of in pair for run in of]
  if not held:
    return Finding()
  return Finding(HOLDS if all(held) else FAILS, "; ".join(texts), paths)


def _same_settings(base, dpn):
  """Judges whether the configs of both differ in the stem alone."""
  differ = arms.differing((run.config for run in (*base, *dpn)), arms=True)
  text = f"{', '.join(differ)} differ" if differ else "the stem alone differs"
  return not differ, text


def _repeated(base, dpn):
  """Judges whether there are three seeds of each."""
  least = min(len({r.config.get("seed") for r in of}) for of in (base, dpn))
  return least >= 3, f"{least} seeds"


def _centre_and_corners(evidence):
  """Checks where in the patch the first LayerNorm of DPN scales up."""
  held, texts, paths = [], [], []
  for title, file in figures.scale_files(evidence.frame)[0].items():
    means = measures.regions(measures.read_scale(file))
    held.append(
      means[["centre", "corners"]].gt(means.edges, axis=0).all(axis=None)
    )
    by = ("red", "green", "blue") if len(means) == 3 else means.index
    numbers = ", ".join(
      f"{colour} {row.centre:.2f}/{row.corners:.2f}/{row.edges:.2f}"
      for colour, row in zip(by, means.itertuples(), strict=True)
    )
    texts.append(f"{title}: {numbers}" + ("" if held[-1] else " (not so)"))
    paths.append(os.path.dirname(file))
  if not held:
    return Finding()
  text = f"centre/corners/edges: {'; '.join(texts)}"
  return Finding(HOLDS if all(held) else FAILS, text, paths)


CHECKS: Mapping[str, Callable[..., Finding]] = {
  "mean_gain": functools.partial(_compared, _mean_gain),
  "better": functools.partial(_compared, _better),
  "every_better": functools.partial(_compared, tested, every=True),
  "none_better": functools.partial(_compared, tested, every=False),
  "unstable": _unstable,
  "stands_out": functools.partial(_by_model, measures.stands_out),
  "scaled_down": functools.partial(_by_model, measures.scaled_down),
  "throughout": functools.partial(_by_model, measures.throughout),
  "same_settings": functools.partial(_by_model, _same_settings),
  "repeated": functools.partial(_by_model, _repeated),
  "centre_and_corners": _centre_and_corners,
}


def decide(claim: Mapping, evidence: Evidence) -> Finding:
  """Returns what runs say of a row of paper_claims.json."""
  stated = {"where", "says", "check"}
  arguments = {k: v for k, v in claim.items() if k not in stated}
  return CHECKS[claim["check"]](evidence, **arguments)


def check(frame: pd.DataFrame) -> tuple[list[Finding], figures.Reasons]:
  """Returns what runs say of each claim, and which runs no claim is about."""
  evidence, found = Evidence(frame), []
  for claim in CLAIMS:
    try:
      found.append(decide(claim, evidence))
    except ValueError as e:
      found.append(Finding("cannot be checked", str(e)))
  seen = {path for finding in found for path in finding.paths}
  rest = frame[frame.complete & ~frame.path.isin(seen)]
  return found, {
    f"no claim is about {recipe}, {arm}": list(group.path)
    for (recipe, arm), group in rest.groupby(["recipe", "arm"])
  }


def build(frame: pd.DataFrame) -> tables.Table:
  """Returns the claims and what runs say of each as a table."""
  found, left_out = check(frame)
  rows = [
    (claim["where"], claim["says"], of.printed, of.ours, of.verdict)
    for claim, of in zip(CLAIMS, found, strict=True)
  ]
  names = ("where", "the paper says", "its numbers", "ours", "verdict")
  return tables.Table(
    name="claims",
    title="What the paper says, and what these runs say of it",
    frame=pd.DataFrame(rows, columns=names, dtype=object),
    keys=4,
    notes=[*_NOTES, *filter(None, [tables.left_out(left_out)])],
  )
