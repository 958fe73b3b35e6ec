"""Chooses what the paper's figures show of some runs, and draws it."""

import argparse
import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
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
_EMBEDDING = "grad_norm/embedding"
_SCALE = "stem/ln0/scale"
Drawn = dict[str, figure.Figure]  # name of the file → figure
DEFAULTS = argparse.Namespace(arms=(), metric=None, last_steps=None, files=())


def panels(
  frame: pd.DataFrame, metric: str, arms: Sequence[str] = ()
) -> plots.Panels:
  """Returns complete runs that logged a metric, by model and by arm.

  Args:
    frame: of the runs; trials and candidates of a selection are left out.
    metric: key in metrics.jsonl.
    arms: which to take; base and dpn without it.

  Raises:
    ValueError: there is none.
  """
  arms = list(arms or (runs.BASE, runs.DPN))
  logged = frame.run.map(lambda run: metric in run.logged)
  usable = frame[
    frame.complete & ~frame.trial & frame.candidate.isna() & logged
  ]
  usable = usable[usable.arm.isin(arms)].sort_values("seed", kind="stable")
  if usable.empty:
    if not frame.arm.isin(arms).any():
      raise ValueError(errors.unknown("arm", ", ".join(arms), set(frame.arm)))
    if not logged.any():
      raise ValueError(errors.unknown("metric", metric, _logged(frame)))
    raise ValueError(
      f"No complete run of the arms {', '.join(arms)} logged {metric!r}."
    )
  return {
    title: {
      LABELS.get(arm, arm): list(model.run[model.arm == arm])
      for arm in arms
      if arm in set(model.arm)
    }
    for title, model in usable.groupby("title")
  }


def _logged(frame):
  """Returns the metrics that any run logged."""
  return {name for run in frame.run for name in run.logged}


def depth(frame, args) -> Drawn:
  """Returns Figure 2."""
  grouped = panels(frame, _EMBEDDING, args.arms)
  last_steps = args.last_steps or default_last_steps(frame)
  return {"figure_2": plots.gradient_depth(grouped, last_steps=last_steps)}


def default_last_steps(frame: pd.DataFrame) -> int:
  """Returns the paper's 1,000 steps, of short runs the last tenth."""
  with_depth = frame.run.map(lambda run: _EMBEDDING in run.logged)
  longest = frame.step[with_depth].max() if with_depth.any() else 1
  return 1000 if longest >= 10_000 else math.ceil(longest / 10)


def embedding(frame, args) -> Drawn:
  """Returns Figure 4."""
  label = "L2 norm of embedding gradient"
  grouped = panels(frame, _EMBEDDING, args.arms)
  return {"figure_4": plots.curves(grouped, _EMBEDDING, label, log=True)}


def training(frame, args) -> Drawn:
  """Returns the curves of loss and accuracy, or of `args.metric`."""
  shown = {"curves": args.metric}
  if not args.metric:
    shown = {"curves_loss": "loss"}
    headlines = (metric for run in frame.run for metric in run.headline)
    results = [*runs.ACCURACIES, *headlines]
    logged = _logged(frame) - {"loss"}
    if result := next((m for m in results if m in logged), None):
      kind = "accuracy" if aggregate.is_fraction(result) else "result"
      shown[f"curves_{kind}"] = result
  drawn = {}
  for name, metric in shown.items():
    fraction = aggregate.is_fraction(metric)
    label = f"{metric} [%]" if fraction else metric
    label = "training loss" if metric == "loss" else label
    grouped = panels(frame, metric, args.arms)
    scale = 100 if fraction else 1
    drawn[name] = plots.curves(grouped, metric, label, scale=scale)
  return drawn


def gains(name, frame, args) -> Drawn:
  """Returns bars of the arms of a table of differences that were run."""
  spec = table_specs.SPECS[name]
  arms = tables.sort_runs(name, frame, args.metric).arms
  shown = [arm for arm in spec.arms if arm != spec.reference]
  published, ours, paper = table_specs.paper(name), {}, {}
  for arch in tables.archs(name, arms):
    reference = arms.get(((arch,), spec.reference))
    cells = {
      _label(arm): aggregate.gain(arms.get(((arch,), arm)), reference)
      for arm in shown
    }
    if any(isinstance(cell, aggregate.Estimate) for cell in cells.values()):
      ours[arch] = cells
      paper[arch] = {
        _label(arm): value
        for (place, arm), value in published.items()
        if place == (arch,)
      }
  if not ours:
    raise ValueError(
      f"None of the {len(frame)} runs can be compared with {spec.reference} of "
      f"the same model, which {table_specs.short_title(name)} is about. Train "
      "it, or give its folder as well."
    )
  label = f"top-1 relative to {LABELS[spec.reference]} [points]"
  file = name if name.startswith("figure") else f"table_{name}"
  return {file: plots.gains(ours, paper, label, LABELS[runs.DPN])}


def _label(arm):
  name, *options = arm.split(",")
  words = {"sa": "SA", "mlp": "MLP", "post": "on the", "mlp_ln": "MLP's LN"}
  if name.startswith("sa="):
    name, options = "", [name, *options]
  pairs = (option.split("=") for option in options)
  parts = [f"{words.get(k, k.replace('_', ' '))} {v}" for k, v in pairs]
  return ", ".join([*([LABELS.get(name, name)] if name else []), *parts])


def scales(frame, args) -> Drawn:
  """Returns Figure 3: of each model the run with the least seed, and files."""
  paths = {os.path.basename(path): path for path in args.files}
  if len(frame):
    mine = frame[frame.complete & (frame.arm == runs.DPN)]
    mine = mine[mine.candidate.isna()].sort_values("seed", kind="stable")
    for run in mine.run:
      file = os.path.join(run.path, "params.safetensors")
      paths.setdefault(run.title, file)
  if not paths:
    raise ValueError(
      f"None of the {len(frame)} runs is a complete one of Dual PatchNorm "
      "(stem_ln=dpn), whose scale Figure 3 shows."
    )
  there = {title: p for title, p in paths.items() if os.path.exists(p)}
  read = {title: read_scale(p) for title, p in (there or paths).items()}
  return {"figure_3": plots.scale_maps(read)}


def read_scale(path: str) -> np.ndarray:
  """Returns the scale of ln0 in a parameter file, (rows, cols, channels).

  Raises:
    FileNotFoundError, ValueError: there is no such file, or no such scale.
  """
  params = parameter_files.read(path)
  if _SCALE not in params:
    raise ValueError(
      f"{path} has no {_SCALE!r}: expected the parameters of a model with a "
      "LayerNorm before the patch embedding (stem_ln=dpn or pre)."
    )
  scale = params[_SCALE].astype("float32")
  kernel = params.get("embedding/kernel")
  side = math.isqrt(scale.size // 3)
  shape = (side, side, 3) if kernel is None else kernel.shape[:3]
  if scale.size != math.prod(shape):
    raise ValueError(
      f"{path}: {_SCALE!r} has {scale.size} numbers, expected those of patches "
      f"of shape {shape} (rows, cols, channels)."
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
  frame: pd.DataFrame,
  names: Iterable[str] = tuple(FIGURES),
  args: argparse.Namespace = DEFAULTS,
) -> tuple[Drawn, dict[str, str]]:
  """Returns the figures that can be drawn, and why the others cannot."""
  drawn, missing = {}, {}
  for name in names:
    try:
      drawn |= FIGURES[name](frame, args)
    except (ValueError, OSError) as e:
      missing[name] = str(e)
  return drawn, missing
