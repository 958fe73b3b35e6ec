"""What arXiv 2302.01327 says in prose, beside what runs say."""

from collections.abc import Sequence

import pandas as pd

from dpn.scripts.results import (
  checks,
  figures,
  measures,
  runs,
  table_specs,
  tables,
)
from dpn.scripts.results.checks import (
  better,
  by_model,
  compare,
  mean_gain,
  tested,
)

STEMS = [row["arm"] for row in table_specs.PUBLISHED["6"]["rows"]]
PLACED = (*table_specs.PLACEMENTS, "normformer", "sub_ln")
AUGREG = {"recipe": ("AugReg",)}
NATURAL, SPECIALIZED, STRUCTURED = table_specs.PUBLISHED["3"]["groups"].values()
_SHORT, _LONG = {"steps": ("93000",)}, {"steps": ("930000",)}
_FIRST, _LAST = {"steps": ("220000",)}, {"steps": ("1100000",)}


def _vtab(least, arch, tasks):
  return compare(better(least), "3", arch=(arch,), task=tasks)


# Where, what it says in our words, and what decides it.
CLAIMS: Sequence[tuple[str, str, checks.Check]] = (
  (
    "Section 4.1, Figure 1",
    "No other placement of LayerNorms in the block, nor NormFormer nor Sub-LN, "
    "is significantly better than LayerNorm before attention and MLP.",
    compare(tested(every=False), "figure_1", PLACED),
  ),
  (
    "Section 4.1, Figure 1",
    "The same in the other readings of these arms (configs/ln_placement.py).",
    compare(
      tested(every=False),
      "figure_1",
      [
        arm
        for arm in table_specs.FIGURE_1
        if arm not in (*PLACED, runs.BASE, runs.DPN)
      ],
    ),
  ),
  (
    "Section 4.1, Figure 1",
    "Dual PatchNorm is better on all five models.",
    compare(tested(every=True), "figure_1"),
  ),
  (
    "Section 4.1, Figure 1",
    "NormFormer helps some models of patch size 32.",
    compare(better(1), "figure_1", ["normformer"], arch=("B/32", "S/32")),
  ),
  (
    "Section 5.3, Table 1 (left)",
    "Dual PatchNorm improves every model trained on ImageNet-1k.",
    compare(better(10), "1_left"),
  ),
  (
    "Section 5.3, Table 1 (left)",
    "The average gain over AugReg's models is 1.4 points.",
    compare(mean_gain, "1_left", **AUGREG),
  ),
  (
    "Section 5.3, Table 1 (left)",
    "DeiT-S gains 0.3 points.",
    compare(mean_gain, "1_left", recipe=("DeiT",), arch=("S/16",)),
  ),
  (
    "Section 5.3, Table 1 (left)",
    "DeiT-B gains 0.2 points.",
    compare(mean_gain, "1_left", recipe=("DeiT",), arch=("B/16",)),
  ),
  *(
    (
      "Section 5.3, Table 1 (left)",
      f"Finetuned at 384 pixels, {arch} gains {gain} points.",
      compare(
        mean_gain, "1_left", recipe=("AugReg+384 finetune",), arch=(arch,)
      ),
    )
    for arch, gain in (("B/16", 0.6), ("B/32", 1.0))
  ),
  (
    "Section 5.3, Table 1 (right)",
    "After 93,000 steps of ImageNet-21k all models gain, on average 1.7 "
    "points.",
    compare(mean_gain, "1_right", **_SHORT),
  ),
  (
    "Section 5.3, Table 1 (right)",
    "After 930,000 steps of ImageNet-21k the best model gains 0.4 points.",
    compare(mean_gain, "1_right", arch=("B/16",), **_LONG),
  ),
  (
    "Section 5.3, Table 2 (left)",
    "After 220,000 steps of JFT all models gain, 0.8 points on average.",
    compare(mean_gain, "2_left", **_FIRST),
  ),
  (
    "Section 5.3, Table 2 (left)",
    "After 1,100,000 steps of JFT the best model gains 0.5 points.",
    compare(mean_gain, "2_left", arch=("L/16",), **_LAST),
  ),
  *(
    (
      "Section 5.4, Table 2 (right)",
      f"Finetuned after JFT, {arch} gains in {least} of 4 settings.",
      compare(better(least), "2_right", arch=(arch,)),
    )
    for arch, least in (("B/32", 4), ("L/16", 3))
  ),
  *(
    (
      "Section 6.1, Table 3",
      f"VTAB, {kind}: {arch} gains on {least} of {len(tasks)} tasks.",
      _vtab(least, arch, tasks),
    )
    for kind, tasks, found in (
      ("Natural", NATURAL, {"B/32": 7, "B/16": 6}),
      ("Specialized", SPECIALIZED, {"B/32": 3, "B/16": 1}),
      ("Structured", STRUCTURED, {"B/32": 4, "B/16": 4}),
    )
    for arch, least in found.items()
  ),
  (
    "Section 6.2, Table 4",
    "LiT: three of four models gain in zero-shot accuracy.",
    compare(better(3), "4"),
  ),
  (
    "Section 6.3, Table 5",
    "Segmentation: there is a gain at every size of the training set.",
    compare(better(5), "5"),
  ),
  (
    "Section 6.1, Table 7",
    "SUN397 from scratch: there is a gain in every setting.",
    compare(better(6), "7"),
  ),
  (
    "Section 7, Table 6",
    "No other stem is significantly better than Dual PatchNorm.",
    compare(tested(every=False), "6", STEMS, runs.DPN),
  ),
  (
    "Section 7, Table 6",
    "Normalizing without scale and bias is better than these without it.",
    compare(mean_gain, "6", ["no_learnable"], "only_learnable"),
  ),
  (
    "Section 7, Table 6",
    "On B/32, LayerNorm before the embedding alone trains unstably.",
    checks.unstable("pre", "B/32"),
  ),
  (
    "Section 7, Table 6",
    "On B/16, Dual PatchNorm without scale and bias trains unstably.",
    checks.unstable("no_learnable", "B/16"),
  ),
  (
    "Section 8.1, Figures 2 and 4",
    "In a plain ViT the embedding's gradient is far larger than the blocks'.",
    by_model(checks.stands_out, "grad_norm_mean/embedding"),
  ),
  (
    "Section 8.1, Figures 2 and 4",
    "Dual PatchNorm scales the gradient of the embedding down.",
    by_model(checks.scaled_down, "grad_norm_mean/embedding"),
  ),
  (
    "Section 8.1, Figure 2 (right)",
    "It does so in the whole course of training.",
    by_model(checks.throughout, "grad_norm/embedding"),
  ),
  (
    "Section 8.2, Figure 3",
    "The first LayerNorm scales up the centre and the corners of a patch.",
    checks.centre_and_corners,
  ),
  (
    "Appendix A",
    "Whitened patches are no better than patches with LayerNorm.",
    compare(tested(every=False), "6", ["whiten"], "pre"),
  ),
  (
    "Appendix A",
    "LayerNorm on the patches is no better for their being whitened before.",
    compare(tested(every=False), "6", ["whiten_ln"], "pre"),
  ),
  (
    "Abstract",
    "No hyper-parameter is tuned for Dual PatchNorm.",
    by_model(checks.same_settings),
  ),
  (
    "Section 5.3",
    "Results on ImageNet-1k are of at least three runs.",
    by_model(checks.repeated, recipes=table_specs.SPECS["1_left"].recipes),
  ),
)


_NOTES = (
  "Means are ± half a 95% interval (Student's t), and a claim of a gain holds "
  "where the interval lies above 0, whatever its size. Counts: better and "
  "worse are differences whose intervals do not contain 0 or, of single runs "
  "and of the paper's numbers, all that are not 0. Where many comparisons make "
  "one claim they are tested at 5% with Holm's correction for their number.",
  f"Spikes: rows whose loss exceeds the median of the {measures.ROWS_BEFORE} "
  f"before by more than {measures.DEVIATIONS} standard deviations of their "
  "noise (scripts/results/measures.py). A "
  "claim on all models holds if it does for each. Gradients are those before "
  "clipping.",
)


def check(frame: pd.DataFrame) -> tuple[list[checks.Finding], figures.Reasons]:
  """Returns what runs say of each claim, and the runs that none is about."""
  evidence, found = checks.Evidence(frame), []
  for _, _, claim in CLAIMS:
    try:
      found.append(claim(evidence))
    except ValueError as e:
      found.append(checks.Finding("cannot be checked", str(e)))
  if frame.empty:
    return found, {}
  seen = {path for finding in found for path in finding.paths}
  rest = frame[frame.complete & ~frame.path.isin(seen)]
  return found, {
    f"no claim is about {recipe}, {arm}": list(group.path)
    for (recipe, arm), group in rest.groupby(["recipe", "arm"])
  }


def build(frame: pd.DataFrame) -> tables.Table:
  """Returns the claims and what runs say of each as a table."""
  found, left_out = check(frame)
  rows = [
    (where, says, finding.printed, finding.ours, finding.verdict)
    for (where, says, _), finding in zip(CLAIMS, found, strict=True)
  ]
  names = ("where", "the paper says", "its numbers", "ours", "verdict")
  return tables.Table(
    name="claims",
    title="What the paper says, and what these runs say of it",
    frame=pd.DataFrame(rows, columns=names, dtype=object),
    keys=4,
    notes=[*_NOTES, *filter(None, [tables.left_out(left_out)])],
    filled=any(finding.verdict != checks.NOT_RUN for finding in found),
  )
