r"""A ViT of 0.15M parameters on images of 32×32 pixels: the paper in miniature.

  python -m trainers.train --workdir W --config configs/mini.py:\
data=cifar10,data_dir=/path/to/tfds,stem_ln=dpn
  python -m scripts.sweep --out runs/stems --config configs/mini.py

Arguments: data (a TFDS name of ten classes, or digits, made by
scripts/mini_data.py), data_dir (where the data are), stem_ln; sa, mlp and block
(as in configs/ln_placement.py); steps, seed, runlocal. As a sweep: data,
data_dir, stems, steps, seeds (3), placements (seeds of each in Figure 1; 1).

Table 6, Table 1 (base against dpn) and Figure 1 of arXiv 2302.01327 (Dual
PatchNorm) at a scale where two cores need minutes: see scripts/mini_paper.sh.
Expected: none of the paper's numbers. It trains for an epoch or two, so its
numbers show how the comparison is made and no more. About half a minute a run.
"""

from dpn.configs import common, ln_placement, stem_ablation

# Arguments of this config, of configs/norm_zoo.py, and of their sweeps.
SHARED = {"data": "cifar10", "data_dir": "", "steps": 600}
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
    return common.source(f"arrays:{folder}/{data}.npz", split), ""
  return common.source(data, split, folder), "decode|"


def fields(arg, train: str, name: str, held_out: str, **kw) -> dict:
  """Returns the fields shared with configs/norm_zoo.py: no model or rates.

  Trains on the split `train`; the evaluator `name`, whose other fields are
  `kw`, measures accuracy on `held_out`.
  """
  tail = common.labels_tail(10)
  data, begin = source(arg.data, arg.data_dir, train)
  flip = "" if arg.data == "digits" else "|flip_lr"
  return {
    "total_steps": arg.steps,
    "num_classes": 10,
    "loss": "softmax_xent",
    "input": {
      "data": data,
      "batch_size": 128,
      "pp": f"{begin}inception_crop({SIDE}, area_min=60){flip}{tail}",
    },
    "ckpt_steps": 0,
    **common.ADAM,
    "schedule": common.WARMUP_COSINE,
    "evals": {
      name: common.classification(
        source(arg.data, arg.data_dir, held_out)[0],
        begin + tail[1:],
        "softmax_xent",
        **kw,
      )
    },
  }


@common.recipe(**SHARED, stem_ln="dpn", sa="pre", mlp="pre", block="")
def get_config(arg):
  held_out = "test" if arg.data in ARRAYS else "test[:2000]"
  vit = common.vit(arg.stem_ln, **MODEL)
  block = common.place_norms(vit["model"], arg.sa, arg.mlp, block=arg.block)
  arm = block if arg.stem_ln == "none" else f"{block},{arg.stem_ln}"
  name = NAMES.get(arg.data, arg.data)
  table = common.table(f"{name} miniature", ARCH, arg.stem_ln)
  return {
    **fields(arg, "train", "val", held_out, log_percent=0.2, cache_final=True),
    "log_training_steps": 10,
    "log_grad_depth": 60,  # steps of the mean, a tenth of all
    **vit,
    "lr": 0.002,
    "wd": 0.0002,
    "table": table | ({"arm": arm} if block else {}),
  }


def sweep(arg=None):
  """Returns the arms of Table 6 and Figure 1; see the module's docstring."""
  arg = common.parse_sweep(
    arg, **SHARED, stems=stem_ablation.STEMS, placements=1, seeds=3
  )
  given = {key: arg[key] for key in SHARED}
  arms = common.grid(arg, "{stem_ln}", stems=arg.stems, **given)
  blocks = ln_placement.PLACEMENTS | ln_placement.BLOCKS
  del blocks["sa_pre_mlp_pre"]  # is stem_ln=none
  arg.seeds = min(arg.seeds, arg.placements)
  return arms + common.grid(arg, "{arm}", arms=blocks, stem_ln="none", **given)
