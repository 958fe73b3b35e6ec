"""Shows what scripts.gpu_report has measured as a page."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import pandas as pd

from dpn.scripts import bench_norms, bench_step
from dpn.scripts.bench import harness, step_peers
from dpn.scripts.results import render

DPN = "stem_ln=dpn"
# A step that another part has compiled is not compiled again.
COLUMNS = {k: v for k, v in bench_step.COLUMNS.items() if k != "compile_secs"}
GOALS = {"mfu": 0.55, "timm": 1.2, "dpn": 0.01}
TITLES = {
  "step": "Training step by batch size",
  "peers": "Peers",
  "attention": "Attention",
}


def part_name(part: str, setting: step_peers.Setting) -> str:
  """Returns the name of a part's file that is about one setting."""
  return f"{part}_{setting.variant.replace('/', '')}_{setting.batch_size}"


def page(
  out: pathlib.Path, setting: step_peers.Setting, failures: Mapping[str, str]
) -> str:
  """Returns the page of the results in a folder.

  Args:
    out: with the JSON of each part.
    setting: of the model that the goals are about, at its best batch.
    failures: why parts are missing.
  """
  kept = {
    file.stem: json.loads(file.read_text())
    for file in sorted(out.glob("*.json"))
    if file.stem not in ("report", "failures")
  }
  found = {name: part["results"] for name, part in kept.items()}
  where = found.get("versions", {"device": "unknown"})
  described = ", ".join(f"{key} {value}" for key, value in where.items())
  failed = [f"{part} failed: {why}" for part, why in failures.items()]
  return render.page(
    f"Measured on {where['device']}",
    render.paragraph(described),
    *map(render.paragraph, [*failed, *_circumstances(kept)]),
    *_goals(found, setting),
    *_numbers(found),
    *_steps(found),
    *_memory(found, setting),
    *_norms(found, setting),
    *_loading(found),
  )


def _circumstances(kept):
  """Returns a sentence if parts were not all measured with the same things."""
  groups = {}
  for name, part in kept.items():
    if name != "versions":  # which says what the others are about
      groups.setdefault(json.dumps(part["about"]), []).append(name)
  about = {text: json.loads(text) for text in groups}
  keys = dict.fromkeys(key for values in about.values() for key in values)
  differ = [k for k in keys if len({v.get(k) for v in about.values()}) > 1]
  texts = [
    f"{', '.join(names)} with "
    + ", ".join(f"{key} {about[text].get(key, '?')}" for key in differ)
    for text, names in groups.items()
  ]
  return [f"Not all was measured alike: {'; '.join(texts)}."] if differ else []


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
  best = {
    who: max((v for (_, w), v in speeds.items() if w == who), default=None)
    for speeds, who in ((ours, bench_step.OURS), (peers, bench_step.TIMM))
  }
  # With some of timm's batch sizes missing its best is not known.
  tried = {
    row for row, who in _figures(found, "peers") if who == bench_step.TIMM
  }
  known = None not in best.values() and {row for row, _ in ours} <= tried
  ratios = [best[bench_step.OURS] / best[bench_step.TIMM]] if known else []
  least = GOALS["timm"]
  text = "speed / timm compiled, each at its best batch"
  add(text, f"≥ {least}", ratios, "{:.2f}", lambda x: x >= least)

  stem = found.get(part_name("stem", setting))
  costs = [stem[DPN]["ratio"] - 1] if stem else []
  most = GOALS["dpn"]
  text = "time for Dual PatchNorm"
  if costs:
    text += (
      f" (the same step again: {stem[bench_norms.AGAIN]['ratio'] - 1:+.1%})"
    )
  add(text, f"≤ {most:.0%}", costs, "{:+.1%}", lambda x: x <= most)
  table = _table(rows, ("", "goal", "found", "met"))
  return [render.heading("Goals"), table]


def _numbers(found):
  if "numbers" not in found:
    return []
  rows = [
    (what, row.get("error") or f"{row['found']:.1e}", f"{row['most']:.0e}",
     "yes" if row["met"] else "no")
    for what, row in found["numbers"].items()
  ]  # fmt: skip
  text = "The norm of the difference of two gradients of a batch, relative."
  table = _table(rows, ("", "found", "at most", "met"))
  return [render.heading("Numbers"), render.paragraph(text), table]


def _steps(found):
  parts = []
  for kind, title in TITLES.items():
    rows = {
      f"{row}: {who}": f for (row, who), f in _figures(found, kind).items()
    }
    if rows:
      parts += [render.heading(title), _cells(rows, COLUMNS)]
  return parts


def _memory(found, setting):
  planned = found.get(part_name("memory", setting))
  if planned is None:
    return []
  estimate = sum(planned.values()) / 2**30
  text = f"scripts.estimate_memory: {estimate:.2f} GiB"
  speeds = _speeds(found, "step", setting.variant)
  if speeds:
    best = _figures(found, "step")[max(speeds, key=speeds.get)]
    text += (
      f"; XLA reserves {best['reserved_gb']:.2f} GiB here, and the most that "
      f"was used was {best['peak_memory_gb']:.2f} GiB"
    )
  return [render.heading("Memory"), render.paragraph(f"{text}.")]


def _norms(found, setting):
  groups = [part for name, part in found.items() if name.startswith("norms_")]
  merged = {arm: row for part in groups for arm, row in part.items()}
  parts = []
  for title, rows in (
    (
      "Dual PatchNorm, in turn with a plain ViT",
      found.get(part_name("stem", setting)),
    ),
    ("Normalizers, relative to pre-LayerNorm", merged),
  ):
    if rows:
      cells = _cells(bench_norms.in_ms(rows), bench_norms.COLUMNS)
      parts += [render.heading(title), cells]
  return parts


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


def _cells(rows, columns):
  frame = harness.cells(rows, columns).fillna("–")
  return render.html_table(frame.rename_axis("").reset_index())


def _table(rows, header):
  return render.html_table(pd.DataFrame(rows, columns=header))
