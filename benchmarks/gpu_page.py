"""Renders the measurements of benchmarks.gpu_report as a page."""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from benchmarks import harness, norms, step, step_peers
from dpn.scripts.results import render

DPN = "stem_ln=dpn"
GOALS = {"mfu": 0.55, "timm": 1.2, "dpn": 0.01}
STEPS = {
  "step": "Training step by batch size",
  "peers": "Peers",
  "attention": "Attention",
}
# Parts share a compilation cache, so compile times would mean nothing.
COLUMNS = {k: v for k, v in step.COLUMNS.items() if k != "compile_secs"}


def part_name(part: str, setting: step_peers.Setting) -> str:
  """Returns the name, without suffix, of a part's file about one setting."""
  return f"{part}_{setting.variant.replace('/', '')}_{setting.batch_size}"


def page(
  out: pathlib.Path, setting: step_peers.Setting, failures: Sequence[str]
) -> str:
  """Returns the page of the results in a folder, which has a JSON per part.

  Goals are checked for the `setting`'s variant; `failures` say what could not
  be measured, and why.
  """
  kept = {
    file.stem: json.loads(file.read_text())
    for file in sorted(out.glob("*.json"))
  }
  found = {name: part["results"] for name, part in kept.items()}
  where = found.get("versions", {"device": "unknown"})
  described = ", ".join(f"{key} {value}" for key, value in where.items())
  texts = [described, *failures, *_differences(kept)]
  speeds = _speeds(found)
  parts = [
    *map(render.paragraph, texts),
    *_section("Goals", _goals(found, speeds, setting.variant)),
    *_section("Numbers", _numbers(found)),
  ]
  for part, title in STEPS.items():
    rows = speeds[speeds.part == part].set_index("name")
    if len(rows):
      cells = harness.table(rows.to_dict("index"), COLUMNS)
      parts += _section(title, cells)
  merged = {}
  for name, rows in found.items():
    if name.startswith("stem_"):
      title = "Dual PatchNorm, in turn with a plain ViT"
      parts += _section(title, norms.table(rows))
    elif name.startswith("norms_"):
      merged |= rows
  title = "Normalizers, relative to pre-LayerNorm"
  parts += [*_section(title, norms.table(merged)), *_input(found, speeds)]
  return render.page(f"Measured on {where['device']}", *parts)


def _section(title, *contents):
  """Returns a heading and the paragraphs or tables below it, [] if none."""
  parts = [
    render.paragraph(x) if isinstance(x, str) else _table(x)
    for x in contents
    if len(x)
  ]
  return [render.heading(title), *parts] if parts else []


def _table(frame):
  shown = frame.rename_axis(frame.index.name or "").reset_index()
  return render.html_table(shown.astype(object).fillna("–"))


def _differences(kept):
  """Returns a sentence on how parts were measured differently, if they were."""
  about = pd.DataFrame(
    {name: part["about"] for name, part in kept.items() if name != "versions"}
  ).T.astype(str)
  differ = [key for key in about if about[key].nunique() > 1]
  if not differ:
    return []
  texts = [
    f"{', '.join(group.index)} with "
    + ", ".join(f"{key} {group[key].iloc[0]}" for key in differ)
    for _, group in about.groupby(differ)
  ]
  return [f"Not all was measured alike: {'; '.join(texts)}."]


def _speeds(found: dict[str, Any]) -> pd.DataFrame:
  """Returns a row of figures for every step that was measured."""
  rows = [
    {"part": name.partition("_")[0], "row": row, "who": who}
    | {"name": f"{row}: {who}", "variant": row.split()[0]}
    | figures
    for name, part in found.items()
    if name.partition("_")[0] in STEPS
    for row, of in part.items()
    for who, figures in of["figures"].items()
  ]
  columns = ["part", "row", "who", "name", "variant", "img_per_sec", "mfu"]
  return pd.DataFrame(rows).reindex(
    columns=dict.fromkeys([*columns, *(key for row in rows for key in row)])
  )


def _goals(found, speeds, variant) -> pd.DataFrame:
  """Returns the goals, what was found, and whether they are met."""
  rows = []

  def add(what: str, goal: str, value: float | None, text: str, met: Callable):
    known = value is not None and not pd.isna(value)
    shown = text.format(value) if known else "not measured"
    is_met = ("yes" if met(value) else "no") if known else "–"
    rows.append({"": what, "goal": goal, "found": shown, "met": is_met})

  of_variant = speeds[speeds.variant == variant]
  ours = of_variant[of_variant.part == "step"]
  goal = GOALS["mfu"]
  of = f"best of {ours.row.nunique()} batch sizes"
  mfu, text = ours.mfu.max(), f"MFU of {variant}, {of}"
  add(text, f"≥ {goal:.0%}", mfu, "{:.1%}", lambda x: x >= goal)
  peers = of_variant[of_variant.part == "peers"]
  timm = peers[peers.who == step.TIMM]
  # timm's best is known only if it ran at all of our batch sizes.
  known = {*ours.row} <= {*timm.row}
  ratio = ours.img_per_sec.max() / timm.img_per_sec.max() if known else None
  text, least = f"speed / timm compiled, each at its {of}", GOALS["timm"]
  add(text, f"≥ {least}", ratio, "{:.2f}", lambda x: x >= least)
  cost, text, most = None, "time for Dual PatchNorm", GOALS["dpn"]
  for name, rows_ in found.items():
    if name.startswith("stem_"):
      cost = rows_[DPN]["ratio"] - 1
      again = rows_[norms.AGAIN]["ratio"] - 1
      text = f"{text} (the same step again: {again:+.1%})"
  add(text, f"≤ {most:.0%}", cost, "{:+.1%}", lambda x: x <= most)
  return pd.DataFrame(rows).set_index("")


def _numbers(found) -> pd.DataFrame:
  """Returns how far gradients differ, relative to their norm."""
  rows = {
    what: {
      "difference of gradients": f"{row['found']:.1e}",
      "at most": f"{row['most']:.0e}",
    }
    for what, row in found.get("numbers", {}).items()
  }
  return pd.DataFrame.from_dict(rows, orient="index")


def _input(found, speeds):
  rate = found.get("loading", {}).get("crop", {}).get(harness.OURS)
  if rate is None:
    return []
  ours = speeds[speeds.part == "step"].dropna(subset=["img_per_sec"])
  table = pd.DataFrame(
    {
      "img/s": ours.img_per_sec.map("{:,.0f}".format),
      "input-bound": (ours.img_per_sec > rate).map({True: "yes", False: "no"}),
    }
  ).set_index(ours.row)
  text = (
    f"This machine's cores decode, crop and flip {rate:,.0f} JPEGs of about "
    "80 kB a second. A faster step waits for them."
  )
  return _section("Input", text, table)
