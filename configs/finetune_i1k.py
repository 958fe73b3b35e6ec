"""Finetunes an ImageNet-1k model at a higher resolution.

Appendix D of arXiv 2302.01327 (Dual PatchNorm).

  python -m trainers.train --workdir W \
    --config configs/finetune_i1k.py:variant=B/16,init=/path/params.safetensors

Arguments: init (required: the low-resolution model, .npz or .safetensors),
variant, stem_ln, res, runlocal (two steps of 8 images).

Expected top-1 at 384 px (Section 4.3; none → dpn): B/32 79.0 → 80.0, B/16
82.2 → 82.8. Cost: 5,000 steps of 512 images; the paper gives no hours.
"""

import ml_collections

from configs import common


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(
    arg, variant="B/16", init="", stem_ln="dpn", res=384, runlocal=False
  )
  if not arg.init and not arg.runlocal:
    raise ValueError(
      "finetune_i1k needs the model to start from: append init=/path/to/"
      "params.safetensors (or .npz) to the config's arguments."
    )
  config = ml_collections.ConfigDict()
  config.seed = 0
  config.total_steps = 5000
  config.num_classes = 1000
  config.loss = "sigmoid_xent"

  pp_common = (
    '|value_range(-1, 1)|onehot(1000, key="label", key_result="labels")'
    '|keep("image", "labels")'
  )
  config.input = {}
  config.input.data = {"name": "imagenet2012", "split": "train[:99%]"}
  config.input.batch_size = 512
  config.input.pp = (
    f"decode_jpeg_and_inception_crop({arg.res})|flip_lr{pp_common}"
  )
  resize = round(arg.res * 418 / 384)
  pp_eval = f"decode|resize_small({resize})|central_crop({arg.res}){pp_common}"
  config.prefetch_to_device = 2

  config.log_training_steps = 10
  config.ckpt_steps = 1000

  config.model_name = "vit"
  config.model_init = arg.init
  config.model_load = {"dont_load": ["head/kernel", "head/bias"]}
  config.model = {
    "variant": arg.variant,
    "rep_size": True,
    "pool_type": "tok",
    "stem_ln": arg.stem_ln,
  }

  config.grad_clip_norm = 1.0
  config.optax_name = "big_vision.momentum_hp"
  config.wd = None
  config.lr = 0.03
  config.schedule = {"warmup_steps": 500, "decay_type": "cosine"}

  def get_eval(split):
    return {
      "type": "classification",
      "data": {"name": "imagenet2012", "split": split},
      "pp_fn": pp_eval,
      "loss_name": config.loss,
      "log_steps": 1000,
    }

  config.evals = {}
  config.evals.train = get_eval("train[:2%]")
  config.evals.minival = get_eval("train[99%:]")
  config.evals.val = get_eval("validation")

  if arg.runlocal:
    common.runlocal(config)
  return config
