r"""Street scenes of CamVid, with a linear decoder: minutes on two cores.

  python -m trainers.train --workdir W --config configs/camvid.py:stem_ln=dpn,\
data_dir=/path/to/tfds
  python -m scripts.sweep --config configs/camvid.py:data_dir=/path/to/tfds \
    --out runs/camvid
  python -m trainers.train --workdir W --config configs/camvid.py:variant=B/16,\
init=/path/params.safetensors,side=360,crop=352,lr=3e-5,data_dir=/path/to/tfds

Arguments: stem_ln, variant (the small model below without it), init (a model to
start from; from scratch without it), side (the shorter side of images, in
pixels), crop (in pixels, a multiple of the patch), steps, lr, fraction (of the
training images, drawn by the seed), seed, data (`pairs:/path` for files instead
of TFDS's format, see docs/segmentation.md), data_dir (where TFDS's format is),
runlocal (two steps of 8 images). As a sweep: stems (none+dpn+post), seeds (5),
fractions, steps, lr, variant, init, side, crop, data, data_dir.

Recipe of configs/ade20k.py, Table 5 of arXiv 2302.01327 (Dual PatchNorm),
except for sizes, schedule and pixels, and with a LayerNorm before the decoder
and clipping at 1. Expected: docs/results/camvid.md has what
a sweep gave. The convolutional FC-DenseNet103, at full size and trained much
longer, is published with 66.9% mIoU from scratch (arXiv 1611.09326).
"""

from dpn.configs import ade20k, common

CLASSES = (
  *("sky", "building", "pole", "road", "pavement", "tree"),
  *("sign", "fence", "car", "pedestrian", "bicyclist"),
)
VOID = 11
MODEL = {
  "width": 96,
  "depth": 4,
  "mlp_dim": 384,
  "num_heads": 4,
  "patch_size": (8, 8),
  "scan": True,
}


@common.recipe(
  stem_ln="dpn",
  variant="",
  init="",
  side=180,
  crop=128,
  steps=3000,
  lr=3e-3,
  fraction="1",
  data="camvid",
  data_dir="",
)
def get_config(arg):
  source = lambda split: common.source(arg.data, split, arg.data_dir)
  fraction = common.choose("fraction", arg.fraction, ade20k.FRACTIONS)
  drawn = {"subset_seed": arg.seed} if fraction else {}
  inkey = 'inkey="annotation", ' if arg.data.startswith("pairs:") else ""
  labels = f"{len(CLASSES)}, {inkey}label_map={{{VOID}: 255}}"
  pp_train, pp_eval = ade20k.segmentation_pp(
    f"decode|decode_labels({labels})",
    (arg.side * 4 // 3, arg.side),
    arg.crop,
    common.PIXELS,
  )
  evaluator = lambda split, every: ade20k.evaluator(
    *(source(split), pp_eval, arg.crop), class_names=CLASSES, log_percent=every
  )
  load = common.ENCODER | {"posemb_align_corners": False}
  pretrained = {"model_init": arg.init, "model_load": load}
  return {
    **common.ADAM,
    "task": "segmentation",
    "total_steps": arg.steps,
    "num_classes": len(CLASSES),
    "ignore_label": 255,
    "input": {
      "data": source(f"train{fraction}") | drawn,
      "batch_size": 8,
      "pp": pp_train,
    },
    "log_training_steps": 20,
    "ckpt_steps": 500,
    "log_grad_depth": 300,  # steps of the mean, a tenth of all
    **common.vit(
      arg.stem_ln,
      **({"variant": arg.variant} if arg.variant else MODEL),
      pool_type="tok",
      stoch_depth=0.1,
    ),
    **(pretrained if arg.init else {}),
    "lr": arg.lr,
    "wd": 0.01 * arg.lr,
    "wd_mults": common.DECAY_TOKENS,
    "schedule": {
      "warmup_percent": 0.1,
      "decay_type": "polynomial",
      "power": 0.9,
    },
    "evals": {"val": evaluator("val", 0.5), "test": evaluator("test", 1.0)},
    "table": common.table(
      "CamVid finetune" if arg.init else "CamVid",
      arg.variant or f"{MODEL['width']}x{MODEL['depth']}/8",
      *(arg.stem_ln, "test/miou"),
      train_fraction=arg.fraction,
    ),
  }


def sweep(arg=None):
  """Returns the arms, seed by seed; see the module's docstring."""
  arms = common.grid(
    arg,
    "{stem_ln}{arm}",
    arms=lambda arg: {
      "" if f == "1" else f"_{f.replace('/', '-')}": {"fraction": f}
      for f in arg.fractions
    },
    stems=("none", "dpn", "post"),
    fractions=("1",),
    seeds=5,
    **{"steps": 3000, "lr": 0.0, "variant": "", "init": "", "side": 180},
    **{"crop": 128, "data": "", "data_dir": ""},
  )
  # So that an unfinished sweep has pairs to compare.
  return sorted(arms, key=lambda arm: arm["seed"])
