r"""A ViT of 0.15M parameters on images of 32×32 pixels: the paper in miniature.

  python -m trainers.train --workdir W --config configs/mini.py:\
data=cifar10,data_dir=/path/to/tfds,stem_ln=dpn
  python -m scripts.sweep --out runs/stems --config configs/mini.py

Arguments: data (a TFDS name of ten classes, or digits, made by
scripts/mini_data.py), data_dir (where the data are), stem_ln; sa, mlp and block
(as configs/ln_placement.py has them); steps, seed, runlocal. As a sweep: data,
data_dir, stems, steps, seeds (3), placements (seeds of each of Figure 1's; 1).

Table 6, Table 1 (base against dpn) and Figure 1 of arXiv 2302.01327 (Dual
PatchNorm) at a scale where two cores need minutes: see scripts/mini_paper.sh.
Expected: nothing of the paper's; it is trained for an epoch or two, so that the
numbers show how the comparison is made and no more. About half a minute a run.
"""

import ml_collections

from dpn.configs import common, ln_placement, stem_ablation

SIDE = 32
MODEL = {
  "width": 64,
  "depth": 4,
  "mlp_dim": 128,
  "num_heads": 4,
  "patch_size": (8, 8),
  "pool_type": "tok",
  "scan": True,
}
ARCH = "64x4/8"
NAMES = {"cifar10_jpeg": "CIFAR-10", "cifar10": "CIFAR-10"}
ARRAYS = ("digits", "photos")  # of scripts/mini_data.py


def source(data: str, folder: str, split: str) -> tuple[dict, str]:
  """Returns `input.data` of a split, and the ops that begin its `pp`."""
  if data in ARRAYS:
    return {"name": f"arrays:{folder}/{data}.npz", "split": split}, ""
  place = {"data_dir": folder} if folder else {}
  return {"name": data, "split": split, **place}, "decode|"


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(
    arg,
    data="cifar10",
    data_dir="",
    stem_ln="dpn",
    sa="pre",
    mlp="pre",
    block="",
    steps=600,
    seed=0,
    runlocal=False,
  )
  config = ml_collections.ConfigDict()
  config.seed = arg.seed
  config.total_steps = arg.steps
  config.num_classes = 10
  config.loss = "softmax_xent"

  tail = common.labels_tail(config.num_classes)
  data, begin = source(arg.data, arg.data_dir, "train")
  flip = "" if arg.data == "digits" else "|flip_lr"
  config.input = {}
  config.input.data = data
  config.input.batch_size = 128
  config.input.pp = f"{begin}inception_crop({SIDE}, area_min=60){flip}{tail}"

  config.log_training_steps = 10
  config.ckpt_steps = 0
  config.log_grad_depth = 60  # steps of the mean, a tenth of all

  config.model_name = "vit"
  config.model = {**common.MODEL_KW, **MODEL, "stem_ln": arg.stem_ln}
  block = arg.block or common.place_norms(config.model, arg.sa, arg.mlp)
  if arg.block:
    config.model.block_ln = arg.block

  config.grad_clip_norm = 1.0
  config.optax_name = "scale_by_adam"
  config.lr = 0.002
  config.wd = 0.0002
  config.schedule = {"warmup_percent": 0.1, "decay_type": "cosine"}

  held_out = "test" if arg.data in ARRAYS else "test[:2000]"
  config.evals = {}
  config.evals.val = {
    "type": "classification",
    "data": source(arg.data, arg.data_dir, held_out)[0],
    "pp_fn": begin + tail[1:],
    "loss_name": config.loss,
    "log_percent": 0.2,
    "cache_final": True,
  }

  name = NAMES.get(arg.data, arg.data)
  config.table = common.table(f"{name} miniature", ARCH, arg.stem_ln)
  if block:
    config.table.arm = block

  if arg.runlocal:
    common.runlocal(config)
  return config


def sweep(arg=None):
  """Returns the arms of Table 6 and Figure 1; see the module's docstring."""
  arg = common.parse_sweep(
    arg,
    data="cifar10",
    data_dir="",
    stems=stem_ablation.STEMS,
    placements=1,
    steps=600,
    seeds=3,
  )
  given = {"data": arg.data, "data_dir": arg.data_dir, "steps": arg.steps}
  arms = []
  for stem in arg.stems:
    arms += common.arms(arg, stem, stem_ln=stem, **given)
  for name, block in _blocks().items():
    made = common.arms(arg, name, stem_ln="none", **block, **given)
    arms += made[: arg.placements]
  return arms


def _blocks():
  sides = ln_placement.PLACEMENTS
  placed = {
    f"sa_{sa}_mlp_{mlp}": {"sa": sa, "mlp": mlp}
    for sa in sides
    for mlp in sides
  }
  del placed["sa_pre_mlp_pre"]  # stem_ln=none
  return placed | {block: {"block": block} for block in ln_placement.BLOCKS}
