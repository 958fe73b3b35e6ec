"""The paper's tables as data: what belongs into them, what is printed there."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Sequence

from scripts.results import aggregate, configs, runs

PUBLISHED = json.loads(
  pathlib.Path(__file__).with_name("paper_tables.json").read_text("utf-8")
)
NOT_PUBLISHED = "–"
PLACEMENTS = tuple(
  f"sa={sa},mlp={mlp}"
  for sa in ("pre", "post", "pre+post")
  for mlp in ("pre", "post", "pre+post")
  if f"sa={sa},mlp={mlp}" != configs.PLAIN_BLOCK
)


@dataclasses.dataclass(frozen=True)
class Spec:
  """What a table is made of.

  Without `reference` a row compares base with DPN; with it there is a row for
  each arm, of differences from the reference, and a column for each model.

  Attributes:
    keys: what tells its rows (its columns, with `reference`) apart, names in
      paper_tables.json.
    recipes: whose runs belong there.
    metrics: what is read, the first that there is.
    guests: whether recipes of no table get rows of their own.
    arms: those that belong there.
    reference: the arm that the others are compared with.
    archs: the columns that the paper has.
    printed: whether the paper prints the differences.
  """

  keys: Sequence[str]
  recipes: Sequence[str]
  metrics: Sequence[str] = ("val/prec@1",)
  guests: bool = False
  arms: Sequence[str] = (runs.BASE, runs.DPN)
  reference: str | None = None
  archs: Sequence[str] = ()
  printed: bool = False


_PROBE = ("fewshot/imagenet_25shot",)
SPECS = {
  "1_left": Spec(
    ("recipe", "arch"), ("AugReg", "DeiT", "AugReg+384 finetune"), guests=True
  ),
  "1_right": Spec(("steps", "arch"), ("I21k",), _PROBE),
  "2_left": Spec(("steps", "arch"), ("JFT",), _PROBE),
  "2_right": Spec(("arch", "resolution", "steps"), ("JFT finetune",)),
  "3": Spec(("arch", "task"), ("VTAB",), ("test/prec@1",)),
  "4": Spec(
    ("arch", "pretrain_steps"), ("LiT",), ("zeroshot/imagenet_prec@1",)
  ),
  "5": Spec(("train_fraction",), ("ADE20K",), ("val/miou",)),
  "6": Spec(
    ("arch",),
    ("AugReg",),
    guests=True,
    arms=(runs.DPN, runs.BASE, *(r["arm"] for r in PUBLISHED["6"]["rows"])),
    reference=runs.DPN,
    archs=("B/16", "S/16", "B/32", "S/32", "Ti/16"),
    printed=True,
  ),
  "7": Spec(("arch", "setting"), ("SUN397",), ("test/prec@1",)),
  "figure_1": Spec(
    ("arch",),
    ("AugReg",),
    guests=True,
    arms=(runs.BASE, *PLACEMENTS, "normformer", "sub_ln", runs.DPN),
    reference=runs.BASE,
    archs=("S/16", "B/16", "B/32", "Ti/16", "S/32"),
  ),
}
TABLES = tuple(name for name in SPECS if name in PUBLISHED)
RECIPES = {recipe for spec in SPECS.values() for recipe in spec.recipes}


def short_title(name: str) -> str:
  """Returns the number of a table: "Table 6", "Figure 1" and so on."""
  return title(name).partition(":")[0]


def title(name: str) -> str:
  """Returns what a table shows."""
  table = PUBLISHED.get(name)
  if not table:
    return "Figure 1: placements of LayerNorm, top-1 relative to pre-LN"
  return f"{table['source'].partition(', ')[2]}: {table['title']}"


def published(value, ci=math.nan, sign=""):
  """Returns a number of the paper, in its precision."""
  if value is None:
    return NOT_PUBLISHED
  return aggregate.Estimate(value, ci, sign=sign, digits=1)


def reported(name):
  """Returns what the paper has: values of the keys → numbers of both arms."""
  rows = PUBLISHED[name]["rows"]
  if name != "3":
    keys = SPECS[name].keys
    return {tuple(str(row[key]) for key in keys): row for row in rows}
  by_arm = {(row["arch"], row["arm"]): row for row in rows}
  return {
    (arch, task): {arm: by_arm[arch, arm][task] for arm in ("base", "dpn")}
    for arch in dict.fromkeys(row["arch"] for row in rows)
    for task in tasks()
  }


def tasks():
  groups = PUBLISHED["3"]["groups"].values()
  return [task for group in groups for task in group]


def printed(arm: str, arch: str) -> aggregate.Estimate | str:
  """Returns Table 6's number; of dpn and base those of Table 1 (left)."""
  table_1 = reported("1_left").get(("AugReg", arch), {})
  if arm == runs.DPN:
    return published(table_1.get("dpn"), table_1.get("dpn_ci", math.nan))
  if arm == runs.BASE:
    gain = table_1["base"] - table_1["dpn"] if table_1 else None
    return published(gain, sign="+")
  row = next(row for row in PUBLISHED["6"]["rows"] if row["arm"] == arm)
  return published(row.get(arch), sign="+")
