r"""ViT with Dual PatchNorm on SUN397 from scratch.

Section 6.1 and Appendix F of arXiv 2302.01327 (Dual PatchNorm).

  python -m trainers.train --workdir W \
    --config configs/sun397_scratch.py:variant=B/16,lr=1e-3,wd=0.03

Three stages: lr × wd × dropout, mixup × RandAugment's magnitude, 600 epochs.
For every model and stem, each stage begins from what the one before has found
best by accuracy on the validation split.

  C=configs/sun397_scratch.py
  python -m scripts.sweep --config $C --out runs/sun397_1
  python -m scripts.select_best runs/sun397_1 --test
  python -m scripts.sweep --config $C:stage=augment,from=runs/sun397_1 \
    --out runs/sun397_2
  python -m scripts.select_best runs/sun397_2 --test
  python -m scripts.sweep --config $C:stage=longer,from=runs/sun397_2 \
    --out runs/sun397_3
  python -m scripts.select_best runs/sun397_3 --test

Arguments: variant, stem_ln, lr, wd (times lr, as in AdamW), dropout, mixup,
randaug (magnitude, of which 0 is one; none leaves the op out), stoch_depth (of
the same rate as dropout), epochs, test (evaluates on the test split, too),
seed, runlocal (two steps of 8 images). As a sweep: stage (search, augment,
longer), from (folder of the stage before, after select_best), variants
(B/32+B/16), stems, seeds (1), stoch_depth; and instead of from, the values to
take as found: lr, wd, dropout, mixup, randaug.

Expected top-1 on `test` (Table 7; none → dpn), search, augment, longer: B/32
41.4 → 47.5, 48.3 → 50.7, 52.5 → 56.0; B/16 45.6 → 51.8, 58.7 → 63.0, 60.8 →
66.3. Cost: 76,128 images an epoch, 6.3 hours for 300 epochs at 1,000 images per
second, 12.7 for 600; the paper gives no hours.

The paper gives the grids and the 600 epochs. Unknown: the batch (512 here), the
epochs before (300), warmup (a tenth), the split to choose on. The rest is as in
configs/augreg_i1k.py: loss, class token, layer before the head, 224 px of 256,
number of RandAugment's ops; but the head's bias is -6, for 397 classes, and
dropout goes without the stochastic depth that AugReg pairs it with, because
Appendix F has only dropout (stoch_depth pairs them). It is also our reading
that the first stage is Table 7's first row, which has no label.
"""

from dpn.configs import common

DATA = "sun397/tfds"
# The values of Appendix F, by stage.
GRIDS = {
  "search": {
    "lr": ("1e-3", "3e-4", "1e-4"),
    "wd": ("0.03", "0.1"),
    "dropout": ("0.0", "0.1"),
  },
  "augment": {
    "mixup": ("0.0", "0.2", "0.5"),
    "randaug": ("0", "5", "10", "15"),
  },
  "longer": {"epochs": ("600",)},
}
FOUND = {
  "lr": 1e-3,
  "wd": 0.03,
  "dropout": 0.0,
  "mixup": 0.0,
  "randaug": "none",
}
BEFORE = {"augment": "search", "longer": "augment"}


@common.recipe(
  variant="B/16",
  stem_ln="dpn",
  **FOUND,
  stoch_depth=False,
  epochs=300,
  test=False,
)
def get_config(arg):
  tail = common.labels_tail(397)
  pp_eval = f"decode|resize_small(256)|central_crop(224){tail}"
  augment = arg.randaug != "none"
  randaug = f"|randaug(2,{float(arg.randaug):g})" if augment else ""
  splits = {"minival": "validation"} | ({"test": "test"} if arg.test else {})
  setting = "from scratch"
  if arg.mixup or augment:
    setting = "+ augmentation"
  if arg.epochs != 300:
    setting = f"+ train longer ({arg.epochs} epochs)"
  return {
    **common.AUGREG,
    "total_epochs": arg.epochs,
    "num_classes": 397,
    "loss": "sigmoid_xent",
    "init_head_bias": -6.0,  # each class starts at 1/400
    "input": {
      "data": common.source(DATA, "train"),
      "batch_size": 512,
      "pp": f"decode_jpeg_and_inception_crop(224)|flip_lr{randaug}{tail}",
    },
    "mixup": {"p": arg.mixup, "fold_in": None},
    **common.vit(
      arg.stem_ln,
      variant=arg.variant,
      rep_size=True,
      pool_type="tok",
      dropout=arg.dropout,
      stoch_depth=arg.dropout if arg.stoch_depth else 0.0,
    ),
    "lr": arg.lr,
    "wd": arg.wd * arg.lr,
    "schedule": common.WARMUP_COSINE,
    "evals": common.by_split(
      splits, DATA, pp_eval, "sigmoid_xent", log_steps=1000
    ),
    "table": common.table(
      "SUN397, stochastic depth" if arg.stoch_depth else "SUN397",
      *(arg.variant, arg.stem_ln, "test/prec@1"),
      setting=setting,
      candidate=_candidate(arg),
    ),
  }


def sweep(arg=None):
  """Returns the arms of a stage; see the module's docstring."""
  arg = common.parse_sweep(
    arg,
    stage="search",
    **{"from": ""},
    variants=("B/32", "B/16"),
    stems=("none", "dpn"),
    **FOUND,
    stoch_depth=False,
  )
  grid = common.choose("stage", arg.stage, GRIDS)
  unused = [k for k in FOUND if k in grid and arg[k] != FOUND[k]]
  unused += ["from"] * bool(arg["from"] and arg.stage not in BEFORE)
  if unused:
    raise ValueError(
      f"stage={arg.stage} has no use for {', '.join(unused)}: it tries "
      f"{', '.join(grid)} and goes on from {BEFORE.get(arg.stage, 'nothing')}."
    )
  name = "".join(f"_{key}{{{key}}}" for key in grid)
  result = []
  for variant in arg.variants:
    for stem in arg.stems:
      given = {key: arg[key] for key in FOUND}
      if arg["from"]:
        cell = f"{BEFORE[arg.stage]} {variant} {stem}"
        given |= common.chosen(arg["from"], cell)
      result += common.grid(
        arg,
        f"{{stem_ln}}_{{variant}}{name}",
        variant=variant,
        stem_ln=stem,
        stoch_depth=arg.stoch_depth,
        **given | grid,
        cell=f"{arg.stage} {{variant}} {{stem_ln}}",
        candidate=_candidate,
      )
  return result


def _candidate(values):
  number = lambda value: value if value == "none" else f"{float(value):g}"
  return ",".join(f"{key}={number(values[key])}" for key in FOUND)
