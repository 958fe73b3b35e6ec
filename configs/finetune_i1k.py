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
seeds (3), pool, init, in which {stem_ln}, {variant}, {steps} and {seed} are
filled in; its default is the runs that sweeps of configs/augreg_i1k.py or
configs/jft.py leave.

Expected top-1 at 384 px (Section 5.3, Table 1 left; none → dpn): B/32 79.0 →
80.0, B/16 82.2 → 82.8. After JFT, 220k steps, 224 and 384 px (Table 2, right):
B/32 77.6 → 78.3, 81.3 → 81.6; L/16 84.9 → 85.3, 86.7 → 87.0; after 1.1M steps:
B/32 80.8 → 81.3, 83.8 → 84.1; L/16 86.7 → 87.1, 88.2 → 88.3. Cost: 5,000 steps
of 512 images, 0.7 hours at 1,000 images per second; the paper gives no hours.

Unknown: the settings after JFT, on which Appendix D is silent, above all at 224
px. Here they are those of 384 px after ImageNet-1k, evaluated at 224 as in
Appendix C. pool=map is for models that configs/jft.py trained with it.
"""

from dpn.configs import augreg_i1k, common

# What sweeps of configs/augreg_i1k.py and configs/jft.py leave: for AugReg a
# model of every seed, for JFT one of each kind.
AUGREG = "runs/table1/{stem_ln}_{variant}-s{seed}/params.safetensors"
JFT = "runs/table2_left/{stem_ln}_{variant}_{steps}-s0/params.safetensors"


@common.recipe(
  variant="B/16", init="", stem_ln="dpn", res=384, steps=0, pool="tok"
)
def get_config(arg):
  common.need_init("finetune_i1k", arg)
  tail = common.labels_tail(1000)
  resize = 256 if arg.res == 224 else round(arg.res * 418 / 384)
  pp_eval = f"decode|resize_small({resize})|central_crop({arg.res}){tail}"
  has_rep = arg.steps > 0 or arg.variant not in augreg_i1k.WITHOUT_REP
  if arg.steps:
    keys = {"steps": arg.steps, "resolution": arg.res}
    recipe = "JFT finetune"
  else:
    keys = {}
    recipe = f"AugReg+{arg.res} finetune"
  if arg.pool != "tok":
    recipe += f", {arg.pool}"
  return {
    "total_steps": 5000,
    "num_classes": 1000,
    "loss": "sigmoid_xent",
    "input": {
      "data": common.source("imagenet2012", "train[:99%]"),
      "batch_size": 512,
      "pp": f"decode_jpeg_and_inception_crop({arg.res})|flip_lr{tail}",
    },
    "prefetch_to_device": 2,
    "log_training_steps": 10,
    "ckpt_steps": 1000,
    **common.from_pretrained(arg.init),
    **common.vit(
      arg.stem_ln,
      variant=arg.variant,
      rep_size=arg.pool == "tok" and has_rep,
      pool_type=arg.pool,
    ),
    "lr": 0.03,
    "schedule": {"warmup_steps": 500, "decay_type": "cosine"},
    "evals": common.imagenet_evals(pp_eval, "sigmoid_xent", log_steps=2500),
    "table": common.table(recipe, arg.variant, arg.stem_ln, **keys),
  }


sweep = common.sweep(
  "{stem_ln}_{variant}_{arm}{res}",
  arms=lambda arg: {
    f"{steps}_" if int(steps) else "": {
      "steps": steps,
      "init": arg.init or (JFT if int(steps) else AUGREG),
    }
    for steps in arg.steps
  },
  variants=("B/32", "B/16"),
  stems=("none", "dpn"),
  res=("384",),
  steps=("0",),
  seeds=3,
  pool="tok",
  init="",
)
