"""ViT with Dual PatchNorm on ImageNet-1k, AugReg recipe.

Appendix C of arXiv 2302.01327 (Dual PatchNorm); recipe of arXiv 2106.10270.

  python -m trainers.train --workdir W \
    --config configs/augreg_i1k.py:variant=B/16
  python -m scripts.sweep --config configs/augreg_i1k.py --out runs/table1

Arguments: variant (B/16, B/32, S/16, S/32, Ti/16, L/16), stem_ln (dpn, none,
…), aug (overrides the variant's own setting), seed, runlocal (two steps of 8
images). As a sweep: variants, stems, seeds (3).

Expected top-1 on `validation` (Table 1, left; none → dpn): S/32 72.1 → 74.0,
Ti/16 72.5 → 73.9, B/32 74.8 → 76.2, S/16 78.6 → 79.7, B/16 80.4 → 81.1.
Cost: 92,897 steps of 4,096 images (300 epochs; the text says 93,000), 106 hours
at 1,000 images per second (the trainer prints yours); none of the paper's
sources gives hours.

Unknown: how stochastic depth works, as big_vision's public code has none. Here
a branch is dropped with a probability that grows over the blocks from 0 to 0.1,
and otherwise divided by the probability of keeping it.
"""

from dpn.configs import common

AUG = {
  "Ti/16": "light1",
  "S/32": "medium1",
  "S/16": "medium2",
  "B/32": "medium2",
  "B/16": "medium2",
  "L/16": "medium2",
}
VARIANTS = ("S/32", "Ti/16", "B/32", "S/16", "B/16")  # Table 1
WITHOUT_REP = ("S/32",)  # no layer before the head
UNREGULARIZED = ("Ti/16", "S/32", "S/16")  # no dropout, no stochastic depth


@common.recipe(variant="B/16", stem_ln="dpn", aug="")
def get_config(arg):
  aug = arg.aug or common.choose("variant", arg.variant, AUG)
  randaug = common.choose("aug", aug, common.RANDAUG_DEF)
  tail = common.labels_tail(1000)
  pp_eval = f"decode|resize_small(256)|central_crop(224){tail}"
  own = aug == AUG.get(arg.variant)
  return {
    **common.AUGREG,
    "total_epochs": 300,
    "num_classes": 1000,
    "loss": "sigmoid_xent",
    "init_head_bias": -6.9,
    "input": {
      "data": common.source("imagenet2012", "train[:99%]"),
      "batch_size": 4096,
      "pp": f"decode_jpeg_and_inception_crop(224)|flip_lr|{randaug}{tail}",
      "prefetch": 8,
    },
    "prefetch_to_device": 4,
    "mixup": common.MIXUP_DEF[aug],
    **get_model(arg.variant, arg.stem_ln),
    "evals": common.imagenet_evals(pp_eval, "sigmoid_xent", log_steps=2500),
    "table": common.table(
      "AugReg" if own else f"AugReg {aug}", arg.variant, arg.stem_ln
    ),
  }


def get_model(variant, stem_ln):
  """Returns `model_name` and `model`."""
  rate = 0.0 if variant in UNREGULARIZED else 0.1
  return common.vit(
    stem_ln,
    variant=variant,
    rep_size=variant not in WITHOUT_REP,
    pool_type="tok",
    dropout=rate,
    stoch_depth=rate,
  )


sweep = common.sweep(
  "{stem_ln}_{variant}", variants=VARIANTS, stems=("none", "dpn"), seeds=3
)
