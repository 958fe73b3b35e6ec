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

Recipe of configs/ade20k.py, Table 5 of arXiv 2302.01327 (Dual PatchNorm), but
for sizes, schedule and pixels. Expected: docs/results/camvid.md has what a
sweep gave. FC-DenseNet103, convolutional, at full size and trained much longer,
is published with 66.9% mIoU from scratch (arXiv 1611.09326).
"""

import itertools

import ml_collections

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


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(
    arg,
    stem_ln="dpn",
    variant="",
    init="",
    side=180,
    crop=128,
    steps=3000,
    lr=3e-3,
    fraction="1",
    seed=0,
    data="camvid",
    data_dir="",
    runlocal=False,
  )
  split = common.choose("fraction", arg.fraction, ade20k.FRACTIONS)
  config = ml_collections.ConfigDict()
  config.task = "segmentation"
  config.seed = arg.seed
  config.total_steps = arg.steps
  config.num_classes = len(CLASSES)
  config.ignore_label = 255

  data = {"name": arg.data}
  data |= {"data_dir": arg.data_dir} if arg.data_dir else {}
  inkey = 'inkey="annotation", ' if arg.data.startswith("pairs:") else ""
  labels = f"{len(CLASSES)}, {inkey}label_map={{{VOID}: 255}}"
  decode = f"decode|decode_labels({labels})"
  pp_train, pp_eval = ade20k.segmentation_pp(
    decode, (arg.side * 4 // 3, arg.side), arg.crop, "value_range(-1, 1)"
  )
  config.input = {}
  config.input.data = data | {"split": f"train{split}"}
  if split:
    config.input.data.subset_seed = arg.seed
  config.input.batch_size = 8
  config.input.pp = pp_train

  config.log_training_steps = 20
  config.ckpt_steps = 500
  config.log_grad_depth = 300  # steps of the mean, a tenth of all

  config.model_name = "vit"
  config.model = {
    **common.MODEL_KW,
    **({"variant": arg.variant} if arg.variant else MODEL),
    "stem_ln": arg.stem_ln,
    "pool_type": "tok",
    "stoch_depth": 0.1,
  }
  if arg.init:
    config.model_init = arg.init
    config.model_load = {
      "dont_load": ("(head|pre_logits)/.*",),
      "dont_check": (),
      "posemb_align_corners": False,
    }

  config.grad_clip_norm = 1.0
  config.optax_name = "scale_by_adam"
  config.lr = arg.lr
  config.wd = 0.01 * config.lr
  config.wd_mults = [(".*/kernel$", 1.0), ("cls|pos_embedding", 1.0)]
  config.schedule = {
    "warmup_percent": 0.1,
    "decay_type": "polynomial",
    "power": 0.9,
  }

  config.evals = {}
  for name, every in (("val", 0.5), ("test", 1.0)):
    config.evals[name] = ade20k.evaluator(
      data | {"split": name},
      pp_eval,
      arg.crop,
      class_names=CLASSES,
      log_percent=every,
    )

  arch = arg.variant or f"{MODEL['width']}x{MODEL['depth']}/8"
  config.table = common.table(
    "CamVid finetune" if arg.init else "CamVid",
    arch,
    arg.stem_ln,
    "test/miou",
    train_fraction=arg.fraction,
  )

  if arg.runlocal:
    common.runlocal(config)
  return config


def sweep(arg=None):
  """Returns the arms, seed by seed; see the module's docstring."""
  arg = common.parse_sweep(
    arg,
    stems=("none", "dpn", "post"),
    seeds=5,
    fractions=("1",),
    steps=3000,
    lr=0.0,
    variant="",
    init="",
    side=180,
    crop=128,
    data="",
    data_dir="",
  )
  result = []
  for stem, fraction in itertools.product(arg.stems, arg.fractions):
    given = {"stem_ln": stem, "fraction": fraction}
    names = ("steps", "lr", "variant", "init", "side", "crop")
    names += ("data", "data_dir")
    given |= {name: arg[name] for name in names if arg[name]}
    part = "" if fraction == "1" else f"_{fraction.replace('/', '-')}"
    result += common.arms(arg, f"{stem}{part}", **given)
  # So that an unfinished sweep has pairs to compare.
  return sorted(result, key=lambda arm: arm["seed"])
