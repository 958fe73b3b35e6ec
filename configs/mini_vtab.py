r"""A transfer by VTAB's rules in miniature: 800 images to train on.

  python -m trainers.train --workdir W --config configs/mini_vtab.py:\
data=digits,data_dir=/path/to/arrays,init=/path/params.safetensors,lr=0.1
  python -m scripts.sweep --out runs/transfers --config configs/mini_vtab.py:\
data_dir=runs/data,init=runs/stems/{stem_ln}-s{seed}/params.safetensors

Arguments: data (digits or photos, of scripts/mini_data.py), data_dir (where
they are), init (required: a model of configs/mini.py), stem_ln, lr, test
(evaluates on the test split, too), steps, seed, runlocal. As a sweep: data,
data_dir, init (in which {stem_ln} is filled in), lrs (three), steps, seeds (3).

Table 3 of arXiv 2302.01327 (Dual PatchNorm) as scripts/mini_paper.sh makes it:
train[:800] and, to choose one of three learning rates by the mean over three
seeds, train[800:1000]. Expected: nothing of the paper's. About ten seconds.
"""

import itertools

import ml_collections

from dpn.configs import common, mini

CLASSES = {"digits": 10, "photos": 2}


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(
    arg,
    data="digits",
    data_dir="",
    init="",
    stem_ln="dpn",
    lr=0.1,
    test=False,
    steps=150,
    seed=0,
    runlocal=False,
  )
  common.need_init("mini_vtab", arg)
  config = ml_collections.ConfigDict()
  config.seed = arg.seed
  config.total_steps = arg.steps
  config.num_classes = common.choose("data", arg.data, CLASSES)
  config.loss = "sigmoid_xent"

  tail = common.labels_tail(config.num_classes)[1:]
  splits = {"minival": "train[800:1000]"}
  if arg.test:
    splits["test"] = "test"
  if arg.runlocal:  # the digits that come with scikit-learn, in grey
    source = lambda split: {"name": "arrays:digits", "split": split[:5]}
    tail = f"resize({mini.SIDE})|{tail}"
  else:
    source = lambda split: mini.source(arg.data, arg.data_dir, split)[0]
  config.input = {}
  config.input.data = source("train[:800]")
  config.input.batch_size = 128
  config.input.pp = tail

  config.log_training_steps = 10
  config.ckpt_steps = 0

  config.model_name = "vit"
  config.model_init = arg.init
  config.model_load = {
    "dont_load": ("head/kernel", "head/bias"),
    "dont_check": (),
  }
  config.model = {**common.MODEL_KW, **mini.MODEL, "stem_ln": arg.stem_ln}

  config.grad_clip_norm = 1.0
  config.optax_name = "big_vision.momentum_hp"
  config.wd = None
  config.lr = arg.lr
  config.schedule = {"warmup_percent": 0.08, "decay_type": "cosine"}

  config.evals = {
    name: {
      "type": "classification",
      "data": source(split),
      "pp_fn": tail,
      "loss_name": config.loss,
      "log_percent": 1.0,
    }
    for name, split in splits.items()
  }

  config.table = common.table(
    "VTAB",
    f"{mini.ARCH} miniature",
    arg.stem_ln,
    "test/prec@1",
    task=arg.data,
    candidate=f"lr={arg.lr:g}",
  )

  if arg.runlocal:
    common.runlocal(config)
  return config


def sweep(arg=None):
  """Returns the arms of the transfer; see the module's docstring."""
  arg = common.parse_sweep(
    arg,
    data="digits",
    data_dir="",
    init="",
    lrs=("0.03", "0.1", "0.3"),
    steps=150,
    seeds=3,
  )
  return [
    arm | {"cell": f"{arg.data} {stem}", "candidate": f"lr={float(lr):g}"}
    for stem, lr in itertools.product(("none", "dpn"), arg.lrs)
    for arm in common.arms(
      arg,
      f"{arg.data}_{stem}_lr{lr}",
      data=arg.data,
      data_dir=arg.data_dir,
      init=arg.init,
      stem_ln=stem,
      lr=lr,
      steps=arg.steps,
    )
  ]
