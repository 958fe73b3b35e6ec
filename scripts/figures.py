"""Draws the paper's figures from runs, as PNG and PDF.

  python -m scripts.figures runs/figure1 --figure 1 -o figures
  python -m scripts.figures W/params.safetensors --figure 3 -o figures
  python -m scripts.figures runs --figure all -o figures

1: gain of each LayerNorm placement; 2: gradient norm against depth; 3: scale of
the first LayerNorm of Dual PatchNorm, also of a parameter file; 4: gradient
norm of the patch embedding against the step; 6: Table 6 as bars; curves:
training loss and accuracy. 2 and 4 need runs with `config.log_grad_depth`.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib import figure

from dpn import errors
from dpn.weights import files as parameter_files
from scripts.results import aggregate, output, plots, runs, table_specs, tables

LABELS = {
  runs.BASE: "ViT",
  runs.DPN: "Dual PatchNorm",
  "normformer": "NormFormer",
  "sub_ln": "Sub-LN",
}
_NONE = aggregate.Estimate(math.nan)
EMBEDDING = "grad_norm/embedding"
_SCALE = "stem/ln0/scale"
_DPI = 300
_FILES = tuple(parameter_files.READERS)
Drawn = dict[str, figure.Figure]  # name of the file → figure


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


def placements(found, args) -> Drawn:
  """Returns Figure 1."""
  return {"figure_1": _gains("figure_1", found, args.metric)}


def ablations(found, args) -> Drawn:
  """Returns Table 6 as bars."""
  return {"table_6": _gains("6", found, args.metric)}


def _gains(name, found, metric):
  """Returns bars of the arms of a table of differences that were run."""
  spec = table_specs.SPECS[name]
  arms = tables.arms_of(name, runs.frame(found), metric)
  shown = [arm for arm in spec.arms if arm != spec.reference]
  ours, paper = {}, {}
  for arch in tables.archs(name, arms):
    reference = arms.get(((arch,), spec.reference))
    gains = {
      a: aggregate.gain(arms.get(((arch,), a)), reference) for a in shown
    }
    if any(isinstance(g, aggregate.Estimate) for g in gains.values()):
      ours[arch] = _estimates(gains)
      if spec.printed:
        paper[arch] = _estimates(
          {arm: table_specs.printed(arm, arch) for arm in shown}
        )
  if not ours:
    raise ValueError(
      f"None of the {len(found)} runs can be compared with {spec.reference} of "
      "the same model, which "
      f"{table_specs.short_title(name)} is about. Train it, or "
      "give its folder as well."
    )
  label = f"top-1 relative to {LABELS[spec.reference]} [points]"
  return plots.gains(ours, paper, label, LABELS[runs.DPN])


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
  "1": placements,
  "2": depth,
  "3": scales,
  "4": embedding,
  "6": ablations,
  "curves": training,
}


def draw_all(found, args, names=FIGURES) -> tuple[Drawn, dict[str, str]]:
  """Returns the figures that can be drawn, and why the others cannot."""
  drawn, missing = {}, {}
  for name in names:
    try:
      drawn |= FIGURES[name](found, args)
    except (ValueError, OSError) as e:
      missing[name] = str(e)
  return drawn, missing


def save(drawn: Drawn, folder: str):
  """Writes each figure as <name>.png and <name>.pdf."""
  with output.made(folder):
    for name, fig in drawn.items():
      for suffix in ("png", "pdf"):
        path = os.path.join(folder, f"{name}.{suffix}")
        fig.savefig(path, dpi=_DPI)
        output.say(f"Wrote {path}")


def options(**given) -> argparse.Namespace:
  """Returns what the functions above take, with their defaults."""
  defaults = {"arms": (), "metric": None, "last_steps": None, "files": ()}
  return argparse.Namespace(**{**defaults, **given})


def _parse(argv):
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument(
    "runs", nargs="+", help="folders that hold runs; for 3 also parameter files"
  )
  parser.add_argument("--figure", nargs="+", default=["all"], metavar="NAME")
  parser.add_argument("-o", "--output", required=True, metavar="FOLDER")
  parser.add_argument(
    "--arms", nargs="+", default=(), metavar="ARM",
    help="for 2, 4 and curves: base dpn pre …; base and dpn without it",
  )  # fmt: skip
  parser.add_argument("--metric", help="for 1, 6 and curves")
  parser.add_argument(
    "--last_steps", type=int, help="of Figure 2; 1,000, of short runs a tenth"
  )
  args = parser.parse_args(argv)
  for name in args.figure:
    if name not in (*FIGURES, "all"):
      raise ValueError(errors.unknown("figure", name, [*FIGURES, "all"]))
  if args.last_steps is not None and args.last_steps < 1:
    raise ValueError(f"--last_steps={args.last_steps}: expected 1 or more.")
  args.files = [path for path in args.runs if path.endswith(_FILES)]
  return args


def main(argv: Sequence[str] | None = None):
  with output.errors_in_a_line():
    args = _parse(argv)
    found = runs.find([path for path in args.runs if path not in args.files])
    if not found and {*args.figure} - {"3", "all"}:
      raise ValueError(
        "Only Figure 3 is drawn from parameter files: give folders of runs."
      )
    if "all" in args.figure:
      drawn, missing = draw_all(found, args)
      for name, why in missing.items():
        output.say(f"Not drawn: {name}. {why}", sys.stderr)
      if not drawn:
        raise ValueError("No figure could be drawn; see above.")
    else:
      drawn = {}
      for name in args.figure:
        drawn |= FIGURES[name](found, args)
    save(drawn, args.output)


if __name__ == "__main__":
  main()
