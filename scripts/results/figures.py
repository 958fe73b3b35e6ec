"""Chooses what the paper's figures show of some runs, and draws it."""

import argparse
import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import pandas as pd
from matplotlib import figure

from dpn import errors
from dpn.scripts.results import (
  aggregate,
  measures,
  own_runs,
  paper,
  plots,
  run_files,
  runs,
  studies,
  tables,
  zoo,
)
from dpn.trainers import update

# Appendix H shows these models, Figure 2 shows B/16 and, here, all others.
APPENDIX_H = ("B/32", "S/32", "S/16")
DEFAULTS = argparse.Namespace(
  arms=(), metric=None, baseline=None, linear=False, clipped=False, files=()
)
Reasons = dict[str, list[str]]  # why → paths of runs


@dataclasses.dataclass(frozen=True)
class Drawn:
  """A figure, and why it shows no more of the runs than it does.

  Attributes:
    figure: to be saved.
    left_out: paths of finished runs that are not in it, by the reason.
    title: what it shows.
  """

  figure: figure.Figure
  left_out: Reasons
  title: str


def panels(
  frame: pd.DataFrame,
  metric: str,
  arms: Sequence[str] = (),
  archs: Callable[[str], bool] = lambda arch: True,
  needed: str = "",
) -> tuple[plots.Panels, Reasons]:
  """Returns complete runs that logged a metric, by model and by arm.

  Also the paths of all other complete runs, by the reason.

  Args:
    frame: of the runs; trials and candidates of a selection are left out.
    metric: key in metrics.jsonl.
    arms: which to take; all if empty.
    archs: which models to take.
    needed: the start of further metrics, of which a run must have one.

  Raises:
    ValueError: there is no such run.
  """
  arms = list(arms) or own_runs.in_order(frame.arm[~frame.trial])
  done = frame[frame.complete].sort_values("seed", kind="stable")
  why = done.run.map(lambda run: _why_not(run, metric, arms, archs, needed))
  why = why.astype(object)
  for _, same in done[why == ""].groupby(["title", "arm"]):
    why[same.index] = aggregate.unlike(same)
  again = done[why == ""].duplicated(["title", "arm", "seed"])
  why[again.index[again]] = "repetitions of a seed"
  usable, rest = done[why == ""], done[why != ""]
  reasons = {k: list(v.path) for k, v in rest.groupby(why, sort=False)}
  if usable.empty:
    if not frame.arm.isin(arms).any():
      raise ValueError(errors.unknown("arm", ", ".join(arms), set(frame.arm)))
    if metric not in (logged := _logged(frame)):
      why = " Runs log it with config.log_grad_depth." * ("grad_norm" in metric)
      raise ValueError(errors.unknown("metric", metric, logged) + why)
    raise ValueError(
      f"No complete run of the arms {', '.join(arms)} can be shown. "
      + tables.left_out(reasons)
    )
  return {
    title: {
      own_runs.LABELS.get(arm, arm): list(model.run[model.arm == arm])
      for arm in arms
      if arm in set(model.arm)
    }
    for title, model in usable.groupby("title")
  }, reasons


def _why_not(run, metric, arms, archs, needed):
  """Returns the first reason why `panels` does not show a run, "" for none."""
  reasons = {
    "of two steps (runlocal)": run.trial,
    "candidates of a selection": "candidate" in run.table,
    "of a model that another figure shows": not archs(run.cell["arch"]),
    "of other arms, see --arms": run.cell["arm"] not in arms,
    f"without {metric}": metric not in run.logged,
    f"without {needed}…, which no archive has": not any(
      name.startswith(needed) for name in run.logged
    ),
  }
  return next((reason for reason, holds in reasons.items() if holds), "")


def _order(frame):
  """Returns the labels of all arms, so that figures agree on their colours."""
  arms = own_runs.in_order(frame.arm[~frame.trial])
  return [own_runs.LABELS.get(arm, arm) for arm in arms]


def _logged(frame):
  """Returns the metrics that any run logged."""
  return {name for run in frame.run for name in run.logged}


def _norm(args, mean=""):
  """Returns the family of gradient norms to draw, and words on clipping."""
  when, clipped = ("after", "_clipped") if args.clipped else ("before", "")
  return f"grad_norm{clipped}{mean}", f"{when} clipping"


def depth(name, archs, frame, args) -> dict[str, Drawn]:
  """Returns gradient norms by depth, of some models."""
  family, clipping = _norm(args, "_mean")
  grouped, left_out = panels(
    frame, f"{family}/embedding", args.arms, archs, needed=f"{family}/block"
  )
  shown = itertools.chain(*(of for a in grouped.values() for of in a.values()))
  steps = " or ".join(f"{n:,}" for n in sorted({*map(mean_steps, shown)}))
  fig = _lines(
    grouped,
    lambda repetitions: measures.norms_by_depth(repetitions, family),
    "patch embedding (E) and blocks",
    f"gradient norm {clipping},\nmean of the last {steps} steps",
    log=not args.linear,
    depth=True,
    order=_order(frame),
  )
  return {name: Drawn(fig, left_out, "Gradient norm by depth")}


def _lines(grouped, read, *labels, **options):
  """Returns the plot of what `read` takes from the runs of each arm."""
  values = {
    title: {arm: read(repetitions) for arm, repetitions in arms.items()}
    for title, arms in grouped.items()
  }
  return plots.lines(values, *labels, **options)


def mean_steps(run: runs.Run) -> int:
  """Returns how many steps a run's last mean gradient norms average."""
  steps = update.grad_depth_steps(run.config.get("log_grad_depth"))
  return min(steps, int(run.logged.index[-1]))


def _by_step(frame, args, metric, label, title, log=False):
  """Returns a metric of all arms against the step; fractions in percent."""
  grouped, left_out = panels(frame, metric, args.arms)
  scale = 100 if aggregate.is_fraction(metric) else 1
  fig = _lines(
    grouped,
    lambda repetitions: scale * measures.by_step(repetitions, metric),
    "training step",
    label,
    log=log,
    order=_order(frame),
  )
  return Drawn(fig, left_out, title)


def embedding(frame, args) -> dict[str, Drawn]:
  """Returns Figure 2 (right): the norm of the embedding's gradient by step."""
  family, clipping = _norm(args)
  label = f"norm of the embedding's\ngradient {clipping}"
  title = "Gradient norm of the patch embedding"
  return {
    "figure_2_right": _by_step(
      frame, args, f"{family}/embedding", label, title, log=not args.linear
    )
  }


def training(frame, args) -> dict[str, Drawn]:
  """Returns the curves of the loss and of each result, or of `args.metric`."""
  shown = {"curves": args.metric}
  if not args.metric:
    done = frame[frame.complete & ~frame.trial & frame.candidate.isna()]
    results = dict.fromkeys(run.headline[0] for run in done.run)
    logged = _logged(done)
    metrics = [metric for metric in ("loss", *results) if metric in logged]
    metrics = metrics or ["loss"]  # whose absence is then reported
    shown = {_file("curves", metric): metric for metric in metrics}
  words = {"loss": ("training loss", "Training loss")}
  return {
    name: _by_step(
      frame, args, metric, *words.get(metric, (own_runs.unit(metric), metric))
    )
    for name, metric in shown.items()
  }


def _file(*words):
  """Returns the name of a figure's file."""
  return "_".join(re.sub(r"\W+", "_", word) for word in words)


def differences(frame, args) -> dict[str, Drawn]:
  """Returns each arm's difference from its model's baseline, with interval.

  There is a figure for each metric, first those with an interval that does not
  contain 0. A panel shows a model or, if there is just one arm, all models.
  """
  frame = own_runs.of_arms(frame, args.arms, args.baseline)
  models, wrong = own_runs.models(frame, args.baseline, args.metric)
  reasons = {why: [of] for of, why in (text.split(": ", 1) for text in wrong)}
  alike = {}
  for of in (model for model in models if model.baseline):
    others = [arm for arm in of.arms if arm != of.baseline]
    for metric in of.shown:
      gains = {arm: of.gain(arm, metric) for arm in others}
      if any(isinstance(gain, aggregate.Estimate) for gain in gains.values()):
        plain = of.baseline == runs.BASE
        level = of.result(of.baseline, metric) if plain else ""
        title = studies.heading(of.title, level)
        alike.setdefault((metric, of.baseline), {})[title] = gains
  if not alike:
    raise ValueError(
      "No arm was run that can be compared with another. --arms takes the "
      f"baseline, too: --arms none dpn. {' '.join(wrong)}".strip()
    )
  drawn = {}
  for (metric, baseline), ours in sorted(alike.items(), key=_without_side):
    names = _as_told({name for gains in ours.values() for name in gains})
    ours = {
      title: {_label(n): gains.get(n, aggregate.NOT_RUN) for n in names}
      for title, gains in ours.items()
    }
    if len(names) == 1 < len(ours):  # then models are rows of one panel
      name = _label(names[0])
      ours = {name: {title: gains[name] for title, gains in ours.items()}}
    unit = " [points]" if aggregate.is_fraction(metric) else ""
    label = f"{metric}: difference from {_label(baseline)}{unit}"
    fig = plots.gains(ours, {}, label)
    title = f"Differences from {_label(baseline)} in {metric}"
    drawn[_file("differences", metric, baseline)] = Drawn(fig, reasons, title)
  return drawn


def _without_side(item):
  """Returns whether all intervals of some differences contain 0."""
  gains = (gain for arms in item[1].values() for gain in arms.values())
  return not any(getattr(gain, "side", 0) for gain in gains)


def _as_told(arms):
  """Returns arms in the order of the paper's Table 6, then others by name."""
  known = paper.TABLES["6"].arms
  place = {arm: i for i, arm in enumerate(known)}
  return sorted(arms, key=lambda arm: (place.get(arm, len(known)), arm))


def gains(name, frame, args) -> dict[str, Drawn]:
  """Returns a table of differences as a figure, of the arms that were run."""
  spec, found = paper.TABLES[name], tables.sort_runs(name, frame, args.metric)
  if found.wrong:
    raise ValueError(found.wrong[0])
  arms, published, ours, theirs = found.arms, paper.printed(name), {}, {}
  run = {arm for (_, arm), of in arms.items() if of.metric}
  for arm in args.arms:
    errors.check_known("arm", arm, {*frame.arm})
  run &= set(args.arms or run)
  shown = [arm for arm in spec.arms if arm != spec.reference and arm in run]
  for arch in tables.archs(name, arms):
    reference = arms.get(((arch,), spec.reference))
    cells = {
      _label(arm): aggregate.gain(arms.get(((arch,), arm)), reference)
      for arm in shown
    }
    if any(isinstance(cell, aggregate.Estimate) for cell in cells.values()):
      ours[arch] = cells
      theirs[arch] = {
        _label(arm): value
        for (place, arm), value in published.items()
        if place == (arch,)
      }
  if not ours:
    raise ValueError(
      f"None of the {len(frame)} runs can be compared with {spec.reference} of "
      f"the same model, which {spec.number} is about. Train "
      "it, or give its folder as well."
    )
  label = f"top-1: difference from {_label(spec.reference)} [points]"
  file = name if name.startswith("figure") else f"table_{name}"
  fig = plots.gains(ours, theirs, label)
  return {file: Drawn(fig, found.left_out, f"{spec.number}, drawn")}


def _label(arm):
  name, *options = arm.split(",")
  words = {"sa": "SA", "mlp": "MLP", "post": "on the", "mlp_ln": "MLP's LN"}
  if name.startswith("sa="):
    name, options = "", [name, *options]
  pairs = [option.split("=") for option in options]
  if any(len(pair) != 2 for pair in pairs):
    return arm  # the value of a field, with commas in it
  parts = [f"{words.get(k, k.replace('_', ' '))} {v}" for k, v in pairs]
  called = [own_runs.LABELS.get(name, name)] if name else []
  return ", ".join([*called, *parts])


def scale_files(frame: pd.DataFrame) -> tuple[dict[str, str], Reasons]:
  """Returns the parameters of one run of DPN for each model, by title.

  Also the paths of other finished runs, by the reason why they are left out.
  """
  chosen, reasons = {}, {}
  for run in frame[frame.complete].sort_values("seed").run:
    file = os.path.join(run.folder or "", "params.safetensors")
    why = {
      "without Dual PatchNorm": run.cell["arm"] != runs.DPN,
      "candidates of a selection": "candidate" in run.table,
      "from an archive, which has no parameters": run.folder is None,
      f"without {os.path.basename(file)}": not os.path.exists(file),
      "repetitions of what is shown": run.title in chosen,
    }
    if reason := next((reason for reason, holds in why.items() if holds), ""):
      reasons.setdefault(reason, []).append(run.path)
    else:
      chosen[run.title] = file
  return chosen, reasons


def scales(frame, args) -> dict[str, Drawn]:
  """Returns Figure 3 of each model's run with the least seed, and of files."""
  chosen, reasons = scale_files(frame)
  names = run_files.from_common(args.files)
  paths = dict(zip(names, args.files, strict=True)) | chosen
  if not paths:
    raise ValueError(
      f"None of the {len(frame)} runs is a complete one of Dual PatchNorm "
      "(stem_ln=dpn), whose scale Figure 3 shows. " + tables.left_out(reasons)
    )
  read = {title: measures.read_scale(path) for title, path in paths.items()}
  title = "Learned scale of ln0"
  return {"figure_3": Drawn(plots.scale_maps(read), reasons, title)}


FIGURES: Mapping[str, Callable] = {
  "1": functools.partial(gains, "figure_1"),
  "2_left": functools.partial(
    depth, "figure_2_left", lambda arch: arch not in APPENDIX_H
  ),
  "2_right": embedding,
  "3": scales,
  "4": functools.partial(depth, "figure_4", APPENDIX_H.__contains__),
  "6": functools.partial(gains, "6"),
  "curves": training,
  "differences": differences,
  "studies": lambda frame, _: {
    "studies": Drawn(studies.draw(frame), {}, "Gain against effective rank")
  },
  "zoo": lambda frame, _: {"zoo": Drawn(zoo.draw(frame), {}, "Norm zoo")},
}
ALL = tuple(n for n in FIGURES if n not in ("studies", "zoo"))  # of any runs


def draw_all(
  frame: pd.DataFrame,
  names: Iterable[str] = ALL,
  args: argparse.Namespace = DEFAULTS,
) -> tuple[dict[str, Drawn], dict[str, str]]:
  """Returns the figures that can be drawn, and why the others cannot."""
  drawn, missing = {}, {}
  for name in names:
    try:
      drawn |= FIGURES[name](frame, args)
    except (ValueError, OSError) as e:
      missing[name] = str(e)
  return drawn, missing
