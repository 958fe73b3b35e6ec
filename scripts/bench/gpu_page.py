"""Shows what scripts.gpu_report has measured as a page."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import pandas as pd

from dpn.scripts import bench_norms, bench_step
from dpn.scripts.bench import harness, step_peers
from dpn.scripts.results import render

GOALS = {"mfu": 0.55, "timm": 1.2, "dpn": 0.01}
TITLES = {
  "step": "Training step by batch size",
  "stem": "Dual PatchNorm, measured in turn with a plain ViT",
  "peers": "Peers",
  "attention": "Attention",
}


def page(
  out: pathlib.Path, setting: step_peers.Setting, failures: Mapping[str, str]
) -> str:
  """Returns the page of the results in a folder.

  Args:
    out: with the JSON of each part.
    setting: of the model that the goals are about.
    failures: why parts are missing.
  """
  found = {
    file.stem: json.loads(file.read_text())
    for file in sorted(out.glob("*.json"))
  }
  where = found.get("environment", {"device": "unknown"})
  described = ", ".join(f"{key} {value}" for key, value in where.items())
  failed = [f"{part} failed: {why}" for part, why in failures.items()]
  return render.page(
    f"Measured on {where['device']}",
    render.paragraph(described),
    *map(render.paragraph, failed),
    *_goals(found, setting),
    *_steps(found),
    *_memory(found, setting),
    *_norms(found),
    *_loading(found),
    *_faults(found),
  )


def _figures(found, kind):
  """Returns the figures of a kind of part, by row and who was measured."""
  return {
    (row, who): figures
    for name, part in found.items()
    if name.partition("_")[0] == kind
    for row, parts in part.items()
    for who, figures in parts["figures"].items()
  }


def _speeds(found, kind, variant) -> dict[tuple[str, str], float]:
  """Returns images per second where they were measured."""
  return {
    key: figures["img_per_sec"]
    for key, figures in _figures(found, kind).items()
    if key[0].startswith(f"{variant} ") and "img_per_sec" in figures
  }


def _goals(found: Mapping[str, Any], setting: step_peers.Setting):
  variant, rows = setting.variant, []

  def add(what, goal, values, text, is_met):
    rows.extend(
      (what, goal, text.format(value), "yes" if is_met(value) else "no")
      for value in values
    )
    if not values:
      rows.append((what, goal, "not measured", "–"))

  of_variant = lambda row: row.startswith(f"{variant} ")
  mfu = [
    figures["mfu"]
    for (row, _), figures in _figures(found, "step").items()
    if of_variant(row) and "mfu" in figures
  ]
  goal = GOALS["mfu"]
  best = [max(mfu)] if mfu else []
  add(f"MFU of {variant}", f"≥ {goal:.0%}", best, "{:.1%}", lambda x: x >= goal)

  ours, peers = (_speeds(found, kind, variant) for kind in ("step", "peers"))
  ratios = [
    ours[row, bench_step.OURS] / speed
    for (row, who), speed in peers.items()
    if who == bench_step.TIMM and (row, bench_step.OURS) in ours
  ]
  least = GOALS["timm"]
  text = "speed / timm compiled"
  add(text, f"≥ {least}", ratios, "{:.2f}", lambda x: x >= least)

  stems = list(_speeds(found, "stem", variant).values())  # none, dpn
  costs = [stems[0] / stems[1] - 1] if len(stems) == 2 else []
  most = GOALS["dpn"]
  text = "time for Dual PatchNorm"
  add(text, f"≤ {most:.0%}", costs, "{:+.1%}", lambda x: x <= most)
  table = _table(rows, ("", "goal", "found", "met"))
  return [render.heading("Goals"), table]


def _steps(found):
  parts = []
  for kind, title in TITLES.items():
    rows = {
      f"{row}: {who}": f for (row, who), f in _figures(found, kind).items()
    }
    if rows:
      parts += [render.heading(title), _cells(rows, bench_step.COLUMNS)]
  return parts


def _memory(found, setting):
  if "memory" not in found:
    return []
  estimate = sum(found["memory"].values()) / 2**30
  text = f"scripts.estimate_memory: {estimate:.2f} GiB"
  speeds = _speeds(found, "step", setting.variant)
  if speeds:
    best = _figures(found, "step")[max(speeds, key=speeds.get)]
    text += f"; the most that was used: {best['peak_memory_gb']:.2f} GiB"
  return [render.heading("Memory"), render.paragraph(f"{text}.")]


def _norms(found):
  if "norms" not in found:
    return []
  rows = bench_norms.in_ms(found["norms"])
  title = render.heading("Normalizers, relative to pre-LayerNorm")
  return [title, _cells(rows, bench_norms.COLUMNS)]


def _loading(found):
  if "loading" not in found:
    return []
  rate = found["loading"]["crop"].get(harness.OURS)
  if rate is None:
    return []
  rows = [
    (row, f"{figures['img_per_sec']:,.0f}",
     "yes" if rate < figures["img_per_sec"] else "no")
    for (row, _), figures in _figures(found, "step").items()
    if "img_per_sec" in figures
  ]  # fmt: skip
  text = (
    f"This machine's cores decode, crop and flip {rate:,.0f} JPEGs of about "
    "110 kB a second. A step that takes more waits for them."
  )
  table = _table(rows, ("step", "img/s", "input-bound"))
  return [render.heading("Input"), render.paragraph(text), table]


def _faults(found):
  if "faults" not in found:
    return []
  texts = [
    "Two runs with deterministic kernels ended with the same bits.",
    *(f"{name}: {outcome}." for name, outcome in found["faults"].items()),
  ]
  title = render.heading("Determinism and resuming")
  return [title, *map(render.paragraph, texts)]


def _cells(rows, columns):
  frame = harness.cells(rows, columns).fillna("–")
  return render.html_table(frame.rename_axis("").reset_index())


def _table(rows, header):
  return render.html_table(pd.DataFrame(rows, columns=header))
