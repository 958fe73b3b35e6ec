"""A small ViT on scikit-learn's 1,797 scanned digits: minutes on two cores.

  python -m trainers.train --config configs/digits.py:stem_ln=dpn --workdir W
  python -m scripts.sweep --config configs/digits.py:stems=none+dpn --out W

Arguments: stem_ln (dpn, none, …), seed, epochs, runlocal (two steps). As a
sweep: stems, epochs, seeds (1).

Expected: above 96% test accuracy with every stem; about half a minute on two
cores. The scans have 8×8 pixels; they are enlarged to 20×20, of which 16×16 are
cut out, and make four patches of 8×8.
"""

import ml_collections

from dpn.configs import common


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(arg, stem_ln="dpn", seed=0, epochs=40, runlocal=False)
  config = ml_collections.ConfigDict()
  config.seed = arg.seed
  config.total_epochs = arg.epochs
  config.num_classes = 10
  config.loss = "softmax_xent"

  pp_common = common.labels_tail(10)
  config.input = {}
  config.input.data = {"name": "arrays:digits", "split": "train"}
  config.input.batch_size = 128
  # Moves each digit by up to two of its enlarged pixels.
  config.input.pp = f"resize(20)|random_crop(16){pp_common}"
  pp_eval = "resize(20)|central_crop(16)"

  config.log_training_steps = 50
  config.ckpt_steps = 100
  config.log_grad_depth = 50  # steps of the mean, a tenth of all

  config.model_name = "vit"
  config.model = {
    **common.MODEL_KW,
    "width": 64,
    "depth": 6,
    "mlp_dim": 128,
    "num_heads": 4,
    "patch_size": (8, 8),
    "pool_type": "tok",
    "scan": True,
    "stem_ln": arg.stem_ln,
  }

  config.grad_clip_norm = 1.0
  config.optax_name = "scale_by_adam"
  config.lr = 0.002
  config.wd = 0.0002
  config.schedule = {"warmup_percent": 0.1, "decay_type": "cosine"}

  config.evals = {}
  config.evals.test = {
    "type": "classification",
    "data": {"name": "arrays:digits", "split": "test"},
    "pp_fn": pp_eval + pp_common,
    "loss_name": config.loss,
    "log_percent": 0.1,
    "cache_final": True,
  }
  config.evals.fewshot = {
    "type": "fewshot_lsr",
    "datasets": {"digits": ("arrays:digits", "train", "test")},
    "pp_train": f'{pp_eval}|value_range(-1, 1)|keep("image", "label")',
    "pp_eval": f'{pp_eval}|value_range(-1, 1)|keep("image", "label")',
    "shots": (1, 5, 10, 25),
    "log_percent": 1.0,
  }

  config.evals.corruptions = {
    "type": "corruptions",
    "kinds": ("contrast", "brightness"),
    "data": {"name": "arrays:digits", "split": "test"},
    "pp_fn": f"{pp_eval}|corrupt{pp_common}",
    "loss_name": config.loss,
    "log_percent": 1.0,
  }

  config.table = common.table(
    *("digits", "64x6/8", arg.stem_ln, "test/prec@1"),
    also=("corruptions/contrast_prec@1",),
  )

  if arg.runlocal:
    common.runlocal(config)
  return config


def sweep(arg=None):
  """Returns an arm for each stem; see the module's docstring."""
  arg = common.parse_sweep(arg, stems=("none", "dpn"), epochs=40)
  return [
    arm
    for stem in arg.stems
    for arm in common.arms(arg, stem, stem_ln=stem, epochs=arg.epochs)
  ]
