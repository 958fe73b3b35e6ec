"""Chooses what the paper's figures show of some runs, and draws it."""

import argparse
import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from matplotlib import figure

from dpn import errors
from dpn.weights import files as parameter_files
from scripts.results import aggregate, plots, runs, table_specs, tables

LABELS = {
  runs.BASE: "ViT",
  runs.DPN: "Dual PatchNorm",
  "normformer": "NormFormer",
  "sub_ln": "Sub-LN",
}
_NONE = aggregate.Estimate(math.nan)
EMBEDDING = "grad_norm/embedding"
_SCALE = "stem/ln0/scale"
Drawn = dict[str, figure.Figure]  # name of the file → figure
DEFAULTS = argparse.Namespace(arms=(), metric=None, last_steps=None, files=())


def panels(
  found: Sequence[runs.Run], metric: str, arms: Sequence[str] = ()
) -> plots.Panels:
  """Returns complete runs that logged a metric, by model and by arm.

  Args:
    found: the runs; trial runs and candidates of a selection are left out.
    metric: key in metrics.jsonl.
    arms: which to take; base and dpn without it.

  Raises:
    ValueError: there is none.
  """
  arms = arms or (runs.BASE, runs.DPN)
  usable = [
    run
    for run in found
    if run.complete and not (run.trial or run.candidate)
    if metric in run.logged and run.cell["arm"] in arms
  ]
  if not usable:
    raise ValueError(_why_none(found, metric, arms))
  return {
    title: {
      LABELS.get(arm, arm): list(group.sort_values("seed").run)
      for arm in arms
      if len(group := model[model.arm == arm])
    }
    for title, model in runs.frame(usable).groupby("title")
  }


def _why_none(found, metric, arms):
  """Returns why no run can be drawn: its arm, its metric, or incomplete."""
  known = {run.cell["arm"] for run in found}
  if not known & set(arms):
    return errors.unknown("arm", ", ".join(arms), known)
  logged = {name for run in found for name in run.logged}
  if metric not in logged:
    return errors.unknown("metric", metric, logged)
  return f"No complete run of the arms {', '.join(arms)} logged {metric!r}."


def depth(found, args) -> Drawn:
  """Returns Figure 2."""
  grouped = panels(found, EMBEDDING, args.arms)
  return {
    "figure_2": plots.gradient_depth(
      grouped, last_steps=args.last_steps or default_last_steps(found)
    )
  }


def default_last_steps(found: Sequence[runs.Run]) -> int:
  """Returns the paper's 1,000 steps, of short runs the last tenth.

  Args:
    found: the runs, of which those count that logged gradients by depth.
  """
  longest = max((r.step for r in found if EMBEDDING in r.logged), default=1)
  return 1000 if longest >= 10_000 else math.ceil(longest / 10)


def embedding(found, args) -> Drawn:
  """Returns Figure 4."""
  label = "L2 norm of embedding gradient"
  grouped = panels(found, EMBEDDING, args.arms)
  return {"figure_4": plots.curves(grouped, EMBEDDING, label, log=True)}


def training(found, args) -> Drawn:
  """Returns the curves of loss and accuracy, or of `args.metric`."""
  if args.metric:
    grouped = panels(found, args.metric, args.arms)
    return {"curves": _curves(grouped, args.metric)}
  drawn = {"curves_loss": _curves(panels(found, "loss", args.arms), "loss")}
  results = [*runs.ACCURACIES, *(m for run in found for m in run.headline)]
  logged = {name for run in found for name in run.logged} - {"loss"}
  if metric := next((m for m in results if m in logged), None):
    kind = "accuracy" if aggregate.is_fraction(metric) else "result"
    drawn[f"curves_{kind}"] = _curves(panels(found, metric, args.arms), metric)
  return drawn


def _curves(grouped, metric):
  fraction = aggregate.is_fraction(metric)
  label = f"{metric} [%]" if fraction else metric
  label = "training loss" if metric == "loss" else label
  return plots.curves(grouped, metric, label, scale=100 if fraction else 1)


def gains(name, found, args) -> Drawn:
  """Returns bars of the arms of a table of differences that were run."""
  spec = table_specs.SPECS[name]
  arms = tables.arms_of(name, runs.frame(found), args.metric)
  shown = [arm for arm in spec.arms if arm != spec.reference]
  ours, paper = {}, {}
  for arch in tables.archs(name, arms):
    reference = arms.get(((arch,), spec.reference))
    cells = {
      a: aggregate.gain(arms.get(((arch,), a)), reference) for a in shown
    }
    if any(isinstance(cell, aggregate.Estimate) for cell in cells.values()):
      ours[arch] = _estimates(cells)
      if spec.printed:
        paper[arch] = _estimates(
          {arm: table_specs.printed(arm, arch) for arm in shown}
        )
  if not ours:
    raise ValueError(
      f"None of the {len(found)} runs can be compared with {spec.reference} of "
      f"the same model, which {table_specs.short_title(name)} is about. Train "
      "it, or give its folder as well."
    )
  label = f"top-1 relative to {LABELS[spec.reference]} [points]"
  file = name if name.startswith("figure") else f"table_{name}"
  return {file: plots.gains(ours, paper, label, LABELS[runs.DPN])}


def _estimates(cells):
  """Returns table cells by label, NaN for words."""
  return {
    _label(arm): cell if isinstance(cell, aggregate.Estimate) else _NONE
    for arm, cell in cells.items()
  }


def _label(arm):
  return LABELS.get(arm, arm.replace("sa=", "SA ").replace(",mlp=", ", MLP "))


def scales(found, args) -> Drawn:
  """Returns Figure 3: of each model the run with the least seed, and files."""
  files = {os.path.basename(path): path for path in args.files}
  for run in sorted(found, key=lambda run: run.seed):
    if run.complete and run.cell["arm"] == runs.DPN and not run.candidate:
      path = os.path.join(run.path, "params.safetensors")
      files.setdefault(run.title, path)
  if not files:
    raise ValueError(
      f"None of the {len(found)} runs is a complete one of Dual PatchNorm "
      "(stem_ln=dpn), whose scale Figure 3 shows."
    )
  there = {title: p for title, p in files.items() if os.path.exists(p)}
  read = {title: read_scale(p) for title, p in (there or files).items()}
  return {"figure_3": plots.scale_maps(read)}


def read_scale(path: str) -> np.ndarray:
  """Returns the scale of ln0 in a parameter file, (rows, cols, channels).

  Raises:
    FileNotFoundError, ValueError: there is no such file, or no such scale.
  """
  params = parameter_files.read(path)
  if _SCALE not in params:
    raise ValueError(
      f"{path} has no {_SCALE!r}, so its model has no LayerNorm with a scale "
      "before the patch embedding (stem_ln=dpn or pre). It has: "
      f"{', '.join(sorted(params)[:5])}, …"
    )
  scale = params[_SCALE].astype("float32")
  kernel = params.get("embedding/kernel")
  side = math.isqrt(scale.size // 3)
  shape = (side, side, 3) if kernel is None else kernel.shape[:3]
  if scale.shape != (math.prod(shape),):
    raise ValueError(
      f"{path}: {_SCALE!r} has the shape {scale.shape}; expected "
      f"({math.prod(shape)},), for patches of {shape[0]}×{shape[1]} pixels, "
      f"{shape[2]} channels. Is it of another model?"
    )
  return scale.reshape(shape)


FIGURES: Mapping[str, Callable] = {
  "1": functools.partial(gains, "figure_1"),
  "2": depth,
  "3": scales,
  "4": embedding,
  "6": functools.partial(gains, "6"),
  "curves": training,
}


def draw_all(
  found: Sequence[runs.Run],
  names: Iterable[str] = tuple(FIGURES),
  args: argparse.Namespace = DEFAULTS,
) -> tuple[Drawn, dict[str, str]]:
  """Returns the figures that can be drawn, and why the others cannot."""
  drawn, missing = {}, {}
  for name in names:
    try:
      drawn |= FIGURES[name](found, args)
    except (ValueError, OSError) as e:
      missing[name] = str(e)
  return drawn, missing
