"""The paper's tables as data: what belongs into them, what is printed there."""

import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence

import pandas as pd

from dpn.scripts.results import aggregate, runs
from dpn.scripts.results import arms as arms_lib

PUBLISHED = json.loads(
  pathlib.Path(__file__).with_name("paper_tables.json").read_text("utf-8")
)
# The rows of means in Table 3 and the tasks that they are over.
GROUPS = {
  f"mean of {group}": tasks for group, tasks in PUBLISHED["3"]["groups"].items()
}
GROUPS["mean of all 19 tasks"] = [*itertools.chain(*GROUPS.values())]
_SIDES = ("pre", "post", "pre+post")
PLACEMENTS = [f"sa={sa},mlp={mlp}" for sa in _SIDES for mlp in _SIDES]
PLACEMENTS.remove(arms_lib.PLAIN_BLOCK)
# Figure 1 in its order, each arm with the other readings of the paper.
FIGURE_1 = (
  runs.BASE,
  *PLACEMENTS,
  *(f"{arm},post=stream" for arm in PLACEMENTS),
  *("normformer", "normformer,head_scale=none", "normformer,head_scale=out"),
  *("sub_ln", "sub_ln,mlp_ln=before_act"),
  runs.DPN,
)
Place = tuple[tuple[str, ...], str]  # (values of the spec's keys, arm)


@dataclasses.dataclass(frozen=True)
class Spec:
  """What a table is made of.

  Without `reference` a row compares two arms, base and a new one; with it there
  is a row for each arm, of differences from the reference, and a column for
  each model.

  Attributes:
    keys: what tells its rows (its columns, with `reference`) apart, names in
      paper_tables.json.
    recipes: whose runs belong there, with all their readings (`family`).
    metrics: what is read, the first that there is.
    guests: whether recipes of no table get rows of their own.
    arms: those that belong there.
    reference: the arm that the others are compared with.
    archs: the columns that the paper has.
    only: what other keys of its cells are, as far as they have them.
  """

  keys: Sequence[str]
  recipes: Sequence[str]
  metrics: Sequence[str] = ("val/prec@1",)
  guests: bool = False
  arms: Sequence[str] = (runs.BASE, runs.DPN)
  reference: str | None = None
  archs: Sequence[str] = ()
  only: Mapping[str, str] = dataclasses.field(default_factory=dict)

  def excludes(self, cell: Mapping[str, object]) -> str:
    """Returns what a cell is that those of this table are not, or ""."""
    for key, value in self.only.items():
      if str(cell.get(key, value)) != value:
        return f"{key} {cell[key]}"
    return ""


# What a table of two arms calls the new one.
NEW_ARMS = {runs.DPN: "DPN", "lape": "LaPE", "dtn": "DTN"}
_DEIT_TI = {"data": "ImageNet-1k", "arch": "Ti/16"}
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
    arms=(
      *(runs.DPN, runs.BASE, *(r["arm"] for r in PUBLISHED["6"]["rows"])),
      *("whiten", "whiten_ln"),  # Appendix A, without numbers
      # Of configs/studies/: when_dpn_helps.py and tract_cifar10.py.
      *("pre+patch_stats", "dpn+patch_stats", "tract", "pre_no_learnable"),
    ),
    reference=runs.DPN,
    archs=("B/16", "S/16", "B/32", "S/32", "Ti/16"),
  ),
  "7": Spec(("arch", "setting"), ("SUN397",), ("test/prec@1",)),
  "figure_1": Spec(
    ("arch",),
    ("AugReg",),
    guests=True,
    arms=FIGURE_1,
    reference=runs.BASE,
    archs=("S/16", "B/16", "B/32", "Ti/16", "S/32"),
  ),
  "lape": Spec(
    ("data", "arch", "epochs"),
    ("LaPE",),
    ("val/prec@1", "test/prec@1"),
    arms=(runs.BASE, "lape"),
    only={"posemb": "learn"},
  ),
  "lape_joins": Spec(
    ("posemb",),
    ("LaPE",),
    arms=(runs.BASE, "shared", "unshared", "lape,share=True", "lape"),
    reference=runs.BASE,
    archs=("learn", "sincos1d", "sincos2d_lape", "rpe"),
    only=_DEIT_TI,
  ),
  "lape_norms": Spec(
    ("arch",),
    ("LaPE",),
    arms=tuple(k for k in PUBLISHED["lape_norms"]["rows"][0] if k != "arch"),
    reference=runs.BASE,
    archs=("Ti/16",),
    only=_DEIT_TI | {"posemb": "learn"},
  ),
  "dtn_models": Spec(("arch",), ("DTN",), arms=(runs.BASE, "dtn")),
  "dtn_norms": Spec(
    ("arch",),
    ("DTN",),
    arms=tuple(k for k in PUBLISHED["dtn_norms"]["rows"][0] if k != "arch"),
    reference=runs.BASE,
    archs=("S", "S*"),
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


def family(recipe: str) -> tuple[str, str]:
  """Returns a recipe and its reading: "JFT, map" is "JFT" read as "map"."""
  name, _, reading = recipe.partition(", ")
  return name, reading


def tables_of(run: runs.Run) -> str:
  """Returns which tables have a run's recipe and arm, "" for none."""
  recipe, arm = family(run.cell["recipe"])[0], run.cell["arm"]
  having = [
    short_title(name)
    for name, spec in SPECS.items()
    if recipe in spec.recipes
    and arm in spec.arms
    and not spec.excludes(run.cell)
  ]
  return ", ".join(having)


def number(
  value: float,
  sem: float = math.nan,
  sign: str = "",
  count: int = 3,
  digits: int = 1,
) -> aggregate.Estimate:
  """Returns a number of the paper, in its precision.

  What stands there after ± is taken for the standard error of `count` runs,
  see `intervals`.
  """
  df = count - 1
  ci = aggregate.t_95(df) * sem
  return aggregate.Estimate(value, ci, sign=sign, digits=digits, df=df)


def intervals(name: str, interval: str) -> str:
  """Returns what is known of the paper's ± in a table, "" if it has none."""
  facts = PUBLISHED.get(name, {}).get("interval")
  if not facts:
    return ""
  shown = ""
  if interval == "ci95":
    factor = aggregate.t_95(facts["runs"] - 1)
    shown = (
      f" As 95% intervals (Student's t, n={facts['runs']}) they are shown "
      f"{factor:.2f} times as wide as printed; --interval sem shows them as "
      "they are."
    )
  return f"The paper calls its ± 95% intervals: {facts['known']}.{shown}"


def paper(name: str) -> dict[Place, aggregate.Estimate]:
  """Returns what the paper has in a table, by place, in its order."""
  if name == "figure_1":  # a drawing without numbers
    return {}
  rows, spec = PUBLISHED[name]["rows"], SPECS[name]
  digits = PUBLISHED[name].get("digits", 1)
  if name == "6":
    return _relative_to_dpn(rows)
  if spec.reference:
    return _relative(rows, spec, digits)
  if name == "3":  # rows of (arch, arm), a column for each task
    tasks = pd.DataFrame(rows).set_index(["arch", "arm"])
    for mean, of in GROUPS.items():
      tasks[mean] = tasks[of].mean(axis=1)
    by_task = tasks.rename_axis(columns="task").stack()
    by_arm = by_task.unstack("arm", sort=False)  # (arch, task) × (base, dpn)
    rows = by_arm.reset_index().to_dict("records")
  found, count = {}, PUBLISHED[name].get("interval", {}).get("runs", 3)
  for row in rows:
    place = tuple(str(row[key]) for key in spec.keys)
    for arm in row.keys() & {*spec.arms}:
      printed = row.get(f"{arm}_ci", math.nan)
      found[place, arm] = number(row[arm], printed, count=count, digits=digits)
  return found


def _relative(rows, spec, digits):
  """Returns differences from the reference, and what that is itself."""
  return {
    ((str(row[spec.keys[0]]),), arm): number(row[arm], digits=digits)
    if arm == spec.reference
    else number(row[arm] - row[spec.reference], sign="+", digits=digits)
    for row in rows
    for arm in spec.arms
    if arm in row
  }


def _relative_to_dpn(rows):
  """Returns Table 6; what it has for dpn and base is from Table 1 (left)."""
  found = {
    ((arch,), row["arm"]): number(gain, sign="+")
    for row in rows
    for arch, gain in row.items()
    if arch != "arm"
  }
  for row in PUBLISHED["1_left"]["rows"]:
    if row["recipe"] == "AugReg":
      place, gain = (row["arch"],), row["base"] - row["dpn"]
      found[place, runs.BASE] = number(gain, sign="+")
      found[place, runs.DPN] = number(row["dpn"], row["dpn_ci"])
  return found
