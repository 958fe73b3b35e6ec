"""Checks of claims: each takes runs and returns what they say.

A claim that a table decides is judged twice by the same function: by the
numbers that the paper prints, and by runs.
"""

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
import scipy.stats

from dpn.scripts.results import (
  aggregate,
  figures,
  measures,
  runs,
  table_specs,
  tables,
)
from dpn.scripts.results import arms as arms_lib

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
NOT_RUN = aggregate.NOT_RUN
Gains = Mapping[str, aggregate.Estimate]  # row → difference
Check = Callable[["Evidence"], "Finding"]
Judge = Callable[[Gains, int], tuple[str, str]]  # of so many → verdict, text


@dataclasses.dataclass(frozen=True)
class Finding:
  """What the runs say of a claim.

  Attributes:
    verdict: one of the words above.
    ours: the numbers behind it.
    paths: of the runs that were looked at.
    printed: the same of the numbers that the paper prints, "" if none.
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
    self.frame = self.done = frame
    if len(frame):
      done = frame.complete & ~frame.trial & frame.candidate.isna()
      self.done = frame[done]
    self.arms = functools.cache(
      lambda table: tables.sort_runs(table, frame).arms
    )


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
  spec = table_specs.SPECS[table]
  places = [(arch,) for arch in spec.archs] or dict.fromkeys(
    place for place, _ in table_specs.paper(table)
  )
  wanted = lambda place: all(
    place[spec.keys.index(key)] in values for key, values in rows.items()
  )
  return [place for place in places if wanted(place)]


def _published(table, places, new, old) -> Gains:
  """Returns the paper's differences; Table 6 has them already, from dpn."""
  paper = table_specs.paper(table)
  if table == "6":
    zero = table_specs.number(0.0)
    paper |= {(place, runs.DPN): zero for place in places}
  return {
    " ".join(place): aggregate.Estimate(
      paper[place, new].mean - paper[place, old].mean, sign="+"
    )
    for place in places
    if {(place, new), (place, old)} <= paper.keys()
  }


def compare(
  judge: Judge,
  table: str,
  new: Sequence[str] = (runs.DPN,),
  old: str = runs.BASE,
  **rows: Sequence[str],
) -> Check:
  """Returns the check of a claim about differences in a table.

  Args:
    judge: (differences, how many there would be) → (verdict, numbers).
    table: its name.
    new: arms, each compared with `old`.
    old: the arm they are compared with.
    **rows: values of the table's keys, to take only some of the paper's rows.
  """

  def check(evidence):
    places = _rows(table, rows)
    arms, gains, printed, paths = evidence.arms(table), {}, {}, []
    for arm in new:
      name = "{}" if arm == runs.DPN else f"{arm} {{}}"
      for place in places:
        pair = [arms.get((place, a)) for a in (arm, old)]
        gain = aggregate.gain(*pair)
        if isinstance(gain, aggregate.Estimate):
          gains[name.format(" ".join(place))] = gain
        for of in filter(None, pair):
          paths += [*of.paths, *of.copies, *of.unchosen]
      for row, gain in _published(table, places, arm, old).items():
        printed[name.format(row)] = gain
    total = len(places) * len(new)
    verdict, ours = judge(gains, total) if gains else (NOT_RUN, "")
    if gains and len(gains) < total:
      ours += f"; {len(gains)} of {total} comparisons run"
    in_print = judge(printed, len(printed))[1] if printed else ""
    return Finding(verdict, ours, paths, in_print)

  return check


def mean_gain(gains: Gains, total: int) -> tuple[str, str]:
  """Judges whether the mean of those differences that there are is above 0.

  The mean's variance is that of independent rows.
  """
  mean = float(np.mean([gain.mean for gain in gains.values()]))
  variance = np.array([gain.sem**2 for gain in gains.values()])
  df = np.array([gain.df for gain in gains.values()])
  sem, ci = math.sqrt(variance.sum()) / len(gains), math.nan
  if sem == 0:
    ci = 0.0
  elif sem > 0:  # Welch and Satterthwaite
    df = variance.sum() ** 2 / (variance**2 / df).sum()
    ci = aggregate.t_95(df) * sem
  found = aggregate.Estimate(mean, ci, sign="+")
  verdict = {1: HOLDS, -1: FAILS, 0: UNDECIDED}[found.side]
  rows = f" over {len(gains)} rows" if len(gains) > 1 else ""
  return verdict, f"{found}{rows}"


def _side(gain):
  """Returns the side of 0 on which a difference lies, by sign if single."""
  if math.isnan(gain.ci):
    return int(np.sign(round(gain.mean, 3)))
  return gain.side


def better(least: int) -> Judge:
  """Returns a judge: whether at least so many differences lie above 0."""

  def judge(gains, total):
    sides = [_side(gain) for gain in gains.values()]
    above, below = sides.count(1), sides.count(-1)
    verdict = UNDECIDED
    if above >= least:
      verdict = HOLDS
    elif total - below < least:
      verdict = FAILS
    single = any(math.isnan(gain.ci) for gain in gains.values())
    rule = ", by sign" if single else ""
    equal = len(sides) - above - below
    return verdict, f"{above} better, {equal} equal, {below} worse{rule}"

  return judge


def tested(every: bool) -> Judge:
  """Returns a judge: whether every difference, or none, is above 0.

  Tested together: by Student's t at 5%, with Holm's correction for how many.
  While some are not run, it may be refuted but does not hold yet.
  """

  def judge(gains, total):
    p = {row: gain.p_value for row, gain in gains.items()}
    p = {row: value for row, value in p.items() if not math.isnan(value)}
    if not p:
      above = sum(gain.mean > 0 for gain in gains.values())
      return UNDECIDED, f"{above} of {len(gains)} above 0"
    adjusted = dict(zip(p, aggregate.holm([*p.values()]), strict=True))
    won = [row for row in p if adjusted[row] < 0.05 and gains[row].mean > 0]
    numbers = f"{len(won)} of {len(p)} significantly better"
    if every:
      lacking = [row for row in gains if row not in won]
      verdict = UNDECIDED if lacking else HOLDS
      if any(_side(gains[row]) < 0 for row in lacking):
        verdict = FAILS
      named = f" (not {', '.join(lacking)})" if lacking else ""
    else:
      verdict = FAILS if won else HOLDS
      named = f" ({', '.join(won)})" if won else ""
    if verdict == HOLDS and len(p) < total:
      verdict = UNDECIDED
    return verdict, f"{numbers}{named}, least p {min(adjusted.values()):.2g}"

  return judge


def unstable(arm: str, arch: str) -> Check:
  """Returns the check that AugReg training of an arm is less stable than DPN's.

  It is if its runs have more spikes of the loss each, or if their results have
  a larger variance over seeds (F test, 5%).
  """

  def check(evidence):
    done, found = evidence.done, dict.fromkeys((arm, runs.DPN), ())
    if len(done):
      model = done[(done.recipe == "AugReg") & (done.arch == arch)]
      found = {name: _repetitions(model, name) for name in found}
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

  return check


def _wider(values, reference):
  """Returns whether a variance is larger than another: F test, 5%."""
  df = len(values) - 1, len(reference) - 1
  if min(df) < 1:
    return False
  variances = np.var(values, ddof=1), np.var(reference, ddof=1)
  if variances[1] == 0:
    return variances[0] > 0
  return scipy.stats.f.sf(variances[0] / variances[1], *df) < 0.05


def by_model(
  judge: Callable[[list[runs.Run], list[runs.Run]], tuple[bool, str]],
  metric: str | None = None,
  recipes: Sequence[str] = (),
) -> Check:
  """Returns the check of a claim about a plain ViT and DPN of every model.

  `judge` takes the runs of both, which have logged `metric`, and returns
  whether it holds, with the numbers. It must hold for every model; `recipes`
  limits it to some.
  """

  def check(evidence):
    held, texts, paths = [], [], []
    done = evidence.done
    if recipes and len(done):
      done = done[done.recipe.isin(recipes)]
    for title, model in done.groupby("title") if len(done) else ():
      usable = model
      if metric:
        usable = model[
          [metric in run.logged and not run.averaged for run in model.run]
        ]
      pair = [_repetitions(usable, arm) for arm in (runs.BASE, runs.DPN)]
      if all(pair):
        holds, text = judge(*pair)
        held.append(holds)
        texts.append(f"{title}: {text}" + ("" if holds else " (not so)"))
        paths += [run.path for of in pair for run in of]
    if not held:
      return Finding()
    return Finding(HOLDS if all(held) else FAILS, "; ".join(texts), paths)

  return check


def stands_out(base, dpn):
  """Judges whether the embedding's gradient is at least twice the blocks'.

  Their median, at the end; and above every block in most rows.
  """
  over = measures.embedding_over_blocks(base)
  above = measures.embedding_above_all(base)
  text = f"{over:.3g} × the median block; above every block in {above:.0%} of"
  return over >= 2 and above > 0.5, f"{text} the rows"


def scaled_down(base, dpn):
  """Judges whether DPN's embedding has a smaller gradient, at the end."""
  norms = [
    run.series("grad_norm_mean/embedding").iloc[-1] for run in (*base, *dpn)
  ]
  ratio = np.mean(norms[len(base) :]) / np.mean(norms[: len(base)])
  return ratio < 1, f"{ratio:.3g} × that of the plain ViT"


def throughout(base, dpn):
  """Judges whether it is smaller in 95% of the rows that were logged."""
  ratio = measures.embedding_ratio(dpn, base)
  lower = float((ratio < 1).mean())
  return lower >= 0.95, f"lower in {lower:.0%} of the rows"


def same_settings(base, dpn):
  """Judges whether the configs of both differ in the stem alone."""
  both = (run.config for run in (*base, *dpn))
  differ = arms_lib.differing(both, arms=True)
  text = f"{', '.join(differ)} differ" if differ else "the stem alone differs"
  return not differ, text


def repeated(base, dpn):
  """Judges whether there are three seeds of each."""
  least = min(len({r.config.get("seed") for r in of}) for of in (base, dpn))
  return least >= 3, f"{least} seeds"


def centre_and_corners(evidence: Evidence) -> Finding:
  """Checks where in the patch the first LayerNorm of DPN scales up."""
  held, texts, paths = [], [], []
  for title, file in figures.scale_files(evidence.frame)[0].items():
    means = measures.regions(figures.read_scale(file))
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
