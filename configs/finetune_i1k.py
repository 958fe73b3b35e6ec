r"""Finetunes a pretrained model on ImageNet-1k, at 384 or 224 pixels.

Appendix D of arXiv 2302.01327 (Dual PatchNorm).

  python -m trainers.train --workdir W --config \
    configs/finetune_i1k.py:variant=B/16,init=/path/params.safetensors
  python -m scripts.sweep --config configs/finetune_i1k.py --out runs/table1_384
  python -m scripts.sweep --out runs/table2_right --config \
    configs/finetune_i1k.py:variants=B/32+L/16,res=224+384,steps=220000+1100000

Arguments: init (required: the pretrained model, .npz or .safetensors), variant,
stem_ln, res, steps (of pretraining on JFT; 0 for ImageNet-1k), pool (tok, map),
seed, runlocal (two steps of 8 images). As a sweep: variants, stems, res, steps,
seeds (3), pool, init, where {stem_ln}, {variant}, {steps} and {seed} are filled
in; by default the runs that configs/augreg_i1k.py or configs/jft.py leave as
sweeps.

Expected top-1 at 384 px (Section 5.3, Table 1 left; none → dpn): B/32 79.0 →
80.0, B/16 82.2 → 82.8. After JFT, 220k steps, 224 and 384 px (Table 2, right):
B/32 77.6 → 78.3, 81.3 → 81.6; L/16 84.9 → 85.3, 86.7 → 87.0; after 1.1M steps:
B/32 80.8 → 81.3, 83.8 → 84.1; L/16 86.7 → 87.1, 88.2 → 88.3. Cost: 5,000 steps
of 512 images, 0.7 hours at 1,000 images per second; the paper gives no hours.

Unknown: the settings after JFT, of which Appendix D does not speak, at 224 px
above all; they are those of 384 px after ImageNet-1k, evaluated at 224 as in
Appendix C. pool=map is for models that configs/jft.py trained with it.
"""

import itertools

import ml_collections

from dpn.configs import common


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(
    arg,
    variant="B/16",
    init="",
    stem_ln="dpn",
    res=384,
    steps=0,
    pool="tok",
    seed=0,
    runlocal=False,
  )
  common.need_init("finetune_i1k", arg)
  config = ml_collections.ConfigDict()
  config.seed = arg.seed
  config.total_steps = 5000
  config.num_classes = 1000
  config.loss = "sigmoid_xent"

  pp_common = common.labels_tail(1000)
  config.input = {}
  config.input.data = {"name": "imagenet2012", "split": "train[:99%]"}
  config.input.batch_size = 512
  config.input.pp = (
    f"decode_jpeg_and_inception_crop({arg.res})|flip_lr{pp_common}"
  )
  resize = 256 if arg.res == 224 else round(arg.res * 418 / 384)
  pp_eval = f"decode|resize_small({resize})|central_crop({arg.res}){pp_common}"
  config.prefetch_to_device = 2

  config.log_training_steps = 10
  config.ckpt_steps = 1000

  config.model_name = "vit"
  config.model_init = arg.init
  config.model_load = {
    "dont_load": ("head/kernel", "head/bias"),
    "dont_check": (),
  }
  config.model = {
    **common.MODEL_KW,
    "variant": arg.variant,
    "rep_size": arg.pool == "tok",
    "pool_type": arg.pool,
    "stem_ln": arg.stem_ln,
  }

  config.grad_clip_norm = 1.0
  config.optax_name = "big_vision.momentum_hp"
  config.wd = None
  config.lr = 0.03
  config.schedule = {"warmup_steps": 500, "decay_type": "cosine"}

  config.evals = common.imagenet_evals(pp_eval, config.loss, log_steps=2500)

  if arg.steps:
    keys = {"steps": arg.steps, "resolution": arg.res}
    recipe = "JFT finetune"
  else:
    keys = {}
    recipe = f"AugReg+{arg.res} finetune"
  if arg.pool != "tok":
    recipe += f", {arg.pool}"
  config.table = common.table(recipe, arg.variant, arg.stem_ln, **keys)

  if arg.runlocal:
    common.runlocal(config)
  return config


def sweep(arg=None):
  """Returns the arms of Table 1 or 2; see the module's docstring."""
  arg = common.parse_sweep(
    arg,
    variants=("B/32", "B/16"),
    stems=("none", "dpn"),
    res=("384",),
    steps=("0",),
    seeds=3,
    pool="tok",
    init="",
  )
  result = []
  for variant, stem, res, steps in itertools.product(
    arg.variants, arg.stems, arg.res, arg.steps
  ):
    # By default one JFT model of each kind, but AugReg's of every seed.
    pretrained = (
      "runs/table2_left/{stem_ln}_{variant}_{steps}-s0"
      if int(steps)
      else "runs/table1/{stem_ln}_{variant}-s{seed}"
    )
    given = {"variant": variant, "stem_ln": stem, "res": res, "steps": steps}
    given["pool"] = arg.pool
    given["init"] = arg.init or f"{pretrained}/params.safetensors"
    after = f"{steps}_" if int(steps) else ""
    result += common.arms(arg, f"{stem}_{variant}_{after}{res}", **given)
  return result
