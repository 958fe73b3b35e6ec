r"""A transfer by VTAB's rules in miniature: 800 images to train on.

  python -m trainers.train --workdir W --config configs/mini_vtab.py:\
data=digits,data_dir=/path/to/arrays,init=/path/params.safetensors,lr=0.1
  python -m scripts.sweep --out runs/transfers --config configs/mini_vtab.py:\
data_dir=runs/data,init=runs/stems/{stem_ln}-s{seed}/params.safetensors

Arguments: data (digits or photos, of scripts/mini_data.py), data_dir (where
they are), init (required: a model of configs/mini.py), stem_ln, lr, test
(evaluates on the test split, too), steps, seed, runlocal. As a sweep: data,
data_dir, init (in which {stem_ln} is filled in), stems, lrs (three), steps,
seeds (3).

Table 3 of arXiv 2302.01327 (Dual PatchNorm) as scripts/mini_paper.sh makes it:
train[:800] and, to choose one of three learning rates by the mean over three
seeds, train[800:1000]. Expected: nothing of the paper's. About ten seconds.
"""

from dpn.configs import common, mini

CLASSES = {"digits": 10, "photos": 2}
START = {"data": "digits", "data_dir": "", "init": ""}  # also of the sweep


@common.recipe(**START, stem_ln="dpn", lr=0.1, test=False, steps=150)
def get_config(arg):
  common.need_init("mini_vtab", arg)
  classes = common.choose("data", arg.data, CLASSES)
  tail = common.labels_tail(classes)[1:]
  if arg.runlocal:  # the digits that come with scikit-learn, in grey
    source = lambda split: common.source("arrays:digits", split[:5])
    tail = f"resize({mini.SIDE})|{tail}"
  else:
    source = lambda split: mini.source(arg.data, arg.data_dir, split)[0]
  splits = {"minival": "train[800:1000]"}
  if arg.test:
    splits["test"] = "test"
  return {
    "total_steps": arg.steps,
    "num_classes": classes,
    "loss": "sigmoid_xent",
    "input": {"data": source("train[:800]"), "batch_size": 128, "pp": tail},
    "log_training_steps": 10,
    "ckpt_steps": 0,
    **common.from_pretrained(arg.init),
    **common.vit(arg.stem_ln, **mini.MODEL),
    "lr": arg.lr,
    "schedule": {"warmup_percent": 0.08, "decay_type": "cosine"},
    "evals": {
      name: common.classification(
        source(split), tail, "sigmoid_xent", log_percent=1.0
      )
      for name, split in splits.items()
    },
    "table": common.table(
      *("VTAB", f"{mini.ARCH} miniature", arg.stem_ln, "test/prec@1"),
      task=arg.data,
      candidate=f"lr={arg.lr:g}",
    ),
  }


sweep = common.sweep(
  "{data}_{stem_ln}_lr{lr}",
  **START,
  stems=("none", "dpn"),
  lrs=("0.03", "0.1", "0.3"),
  steps=150,
  seeds=3,
  cell="{data} {stem_ln}",
  candidate=lambda given: f"lr={float(given['lr']):g}",
)
