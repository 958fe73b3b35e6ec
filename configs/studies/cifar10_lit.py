r"""LiT on photographs: a locked CIFAR-10 classifier learns ten names.

  python -m trainers.train --workdir T --config configs/studies/cifar10_lit.py:\
stage=tower,data=cifar10,data_dir=/path/to/tfds
  python -m trainers.train --workdir L --config configs/studies/cifar10_lit.py:\
init=T,data=cifar10,data_dir=/path/to/tfds
  python -m scripts.sweep --out runs/cifar10_lit/lit --config \
configs/studies/cifar10_lit.py:init=runs/cifar10_lit/towers/{stem_ln}-s{seed},data=…

Captions are made of the labels with the 18 prompts of CLIP for this data set,
"a blurry photo of a frog.". All ten names are in them, so this is no test of
names never seen, as configs/mini_lit.py is; it shows how much of what an image
tower knows can be reached through text.

Arguments: stage (lit; or tower, which is when_dpn_helps.py beside this file),
stem_ln, init (the image tower; without it both are trained), epochs (of stage
lit), seed, data (a TFDS name), data_dir, runlocal.
As a sweep: stage, stems, init, data, data_dir, seeds (5).

Expected: `zeroshot/cifar10_prec@1` of 47.8% (none) and 44.2% (dpn), as much as
the towers' own classifiers have; chance is 10%. See docs/results/lit.md.
"""

from dpn.configs import common, mini_lit
from dpn.configs.studies import when_dpn_helps

WIDTH = when_dpn_helps.BASE["width"]
AUG = when_dpn_helps.AUGMENTATIONS["crop_flip"]
PIXELS = "value_range(-1, 1)"
TOKENIZE = 'tokenize(max_len=44, eos="yes", model="bytes")'


@common.recipe(
  stage="lit", stem_ln="dpn", init="", epochs=4, data="cifar10", data_dir=""
)
def get_config(arg):
  common.choose("stage", arg.stage, {"lit": None, "tower": None})
  tower = when_dpn_helps.get_config(
    stem_ln=arg.stem_ln, seed=arg.seed, data=arg.data, data_dir=arg.data_dir
  )
  if arg.stage == "tower":
    if arg.init:
      raise ValueError("stage=tower takes no init; see --config.model_init.")
    return tower
  recipe = "CIFAR-10 LiT" if arg.init else "CIFAR-10 LiT, from scratch"
  towers = {"schedule": [(".*", common.WARMUP_COSINE)]}
  if arg.init:
    towers = common.locked_image_tower(arg.init, common.WARMUP_COSINE)
  return {
    "task": "contrastive",
    "total_epochs": arg.epochs,
    "input": {
      "data": tower.input.data,
      "batch_size": 256,
      "pp": f'decode|resize(32){AUG}|{PIXELS}|prompt("cifar10", "cifar10")|'
      f'{TOKENIZE}|keep("image", "text")',
    },
    "log_training_steps": 50,
    "ckpt_steps": 500,
    "model": {
      "image": tower.model,
      "text": {**mini_lit.TEXT, "width": WIDTH, "depth": 2},
      "out_dim": (None, WIDTH),
      "temperature_init": 10.0,
    },
    **common.ADAM,
    "lr": 0.001,
    "wd": 0.0001,
    **towers,
    "evals": _evals(arg),
    "table": common.table(
      recipe, f"{WIDTH}x6/8", arg.stem_ln, "zeroshot/cifar10_prec@1"
    ),
  }


def _evals(arg):
  """Returns zero-shot classification, and a probe of the same tower."""
  image = f'decode|resize(32)|{PIXELS}|keep("image", "label")'
  place = {"data_dir": arg.data_dir} if arg.data_dir else {}
  return {
    "zeroshot": {
      "type": "zeroshot",
      "datasets": {"cifar10": (arg.data, "test")},
      "class_names": {"cifar10": "cifar10"},
      "templates": "cifar10",
      "pp_img": f"decode|resize(32)|{PIXELS}",
      "pp_txt": TOKENIZE,
      "canonicalize": False,  # captions have their full stops
      "log_percent": 0.25,
      **place,
    },
    # Of the tenth of the images that the tower was not trained on.
    "probe": {
      "type": "fewshot_lsr",
      "representation_layer": "img/pre_logits",
      "datasets": {"cifar10": (arg.data, "train[90%:]", "test")},
      "pp_train": image,
      "pp_eval": image,
      "shots": (10, 400),
      "log_percent": 1.0,
      **place,
    },
  }


sweep = common.sweep(
  "{stem_ln}",
  stage="lit",
  stems=("none", "dpn"),
  init="",
  data="cifar10",
  data_dir="",
  seeds=5,
)
