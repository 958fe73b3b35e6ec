r"""LiT in miniature: drawn letters and their names, minutes on two cores.

  python -m trainers.train --config configs/mini_lit.py --workdir W
  python -m trainers.train --config configs/mini_lit.py:stage=tower --workdir T
  python -m trainers.train --config configs/mini_lit.py:init=T --workdir L
  python -m scripts.sweep --config configs/mini_lit.py:stage=tower --out runs/t
  python -m scripts.sweep --out runs/lit \
    --config configs/mini_lit.py:init=runs/t/{stem_ln}-s{seed}

The first command trains both towers from nothing. The next two are LiT (arXiv
2111.07991): an image tower learns to classify, is locked, and a text tower
learns to match it. Data are made on the spot, see
input_pipeline/sources/glyphs.py.

Arguments: stage (lit or tower), stem_ln, init (the image tower; without it both
are trained), embedded (a folder of scripts.embed_images, instead of a tower),
loss (softmax or sigmoid), epochs (of the stage), seed, runlocal.
As a sweep: stage, stems, init, loss, epochs, seeds (5).

Expected: zero-shot accuracy on 209 names that were never seen far above chance,
0.5%; docs/results/lit.md has the study.
"""

import ml_collections

from dpn.configs import common

NAMES = 1568  # of the training split
MODEL = {
  "width": 64,
  "depth": 4,
  "mlp_dim": 256,
  "num_heads": 4,
  "patch_size": (8, 8),
  "pool_type": "gap",
  "scan": True,
}
TEXT = {
  "width": 64,
  "depth": 4,
  "mlp_dim": 256,
  "num_heads": 4,
  "vocab_size": 260,
  "pool_type": "map",
  "scan": True,
}
TOKENIZE = 'tokenize(max_len=60, eos="yes", model="bytes")'
EPOCHS = {"tower": 15, "lit": 10}
RANGE = "value_range(-1, 1)"
# Moves each glyph by up to two pixels.
MOVED = f"pad_to_shape((36, 36, 1), where='both')|random_crop(32)|{RANGE}"


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(
    arg,
    stage="lit",
    stem_ln="dpn",
    init="",
    embedded="",
    loss="softmax",
    epochs=0,
    seed=0,
    runlocal=False,
  )
  common.choose("stage", arg.stage, EPOCHS)
  config = ml_collections.ConfigDict()
  config.seed = arg.seed
  config.total_epochs = arg.epochs or EPOCHS[arg.stage]
  config.input = {}
  config.input.data = {"name": "arrays:glyphs", "split": "train"}
  config.input.batch_size = 256
  config.log_training_steps = 50
  config.ckpt_steps = 500
  config.log_grad_depth = True
  config.optax_name = "scale_by_adam"
  config.grad_clip_norm = 1.0
  config.lr = 0.002
  config.wd = 0.0002
  schedule = {"warmup_percent": 0.1, "decay_type": "cosine"}
  if arg.stage == "tower":
    _tower(config, arg, schedule)
  else:
    _lit(config, arg, schedule)
  config.table.arch = "64x4/8"
  if arg.runlocal:
    common.runlocal(config)
  return config


def _tower(config, arg, schedule):
  """Classifies glyphs of the training names."""
  labels = common.labels_tail(NAMES).removeprefix(f"|{RANGE}")
  config.num_classes = NAMES
  config.loss = "softmax_xent"
  config.input.pp = MOVED + labels
  config.model = {**common.MODEL_KW, **MODEL, "stem_ln": arg.stem_ln}
  config.schedule = schedule
  config.evals = {}
  config.evals.new_fonts = {
    "type": "classification",
    "data": {"name": "arrays:glyphs", "split": "new_fonts"},
    "pp_fn": RANGE + labels,
    "loss_name": config.loss,
    "log_percent": 0.2,
  }
  config.table = common.table(
    "mini LiT tower", "", arg.stem_ln, "new_fonts/prec@1"
  )


def _lit(config, arg, schedule):
  """Matches glyphs with their names."""
  config.task = "contrastive"
  config.loss = arg.loss
  config.loss_chunks = 1
  config.input.pp = f'{MOVED}|{TOKENIZE}|keep("image", "text")'
  config.model = {
    "image": {**common.MODEL_KW, **MODEL, "stem_ln": arg.stem_ln},
    "text": TEXT,
    "out_dim": (None, MODEL["width"]),
    "temperature_init": 10.0,
  }
  config.schedule = [(".*", schedule)]
  if arg.loss == "sigmoid":
    config.model.bias_init = -10.0
  if arg.init:
    config.model_init = {"img": arg.init}
    config.model_load = {"img_load_kw": {"dont_load": ["head/.*"]}}
    config.schedule.insert(0, ("img/.*", None))
  config.evals = {}
  config.evals.zeroshot = {
    "type": "zeroshot",
    "datasets": {
      "new_names": ("arrays:glyphs", "new_names"),
      "new_fonts": ("arrays:glyphs", "new_fonts"),
    },
    "pp_img": RANGE,
    "pp_txt": TOKENIZE,
    "canonicalize": False,  # captions have their hyphens
    "log_percent": 0.2,
  }
  config.evals.retrieval = {
    "type": "retrieval",
    "data": {"name": "arrays:glyphs", "split": "new_fonts"},
    "pp_img": RANGE,
    "pp_txt": TOKENIZE,
    "log_percent": 1.0,
  }
  # How well a probe of the image tower tells the new names apart that it sees
  # ten times each: what names that were never seen are compared with.
  probe = f'{RANGE}|keep("image", "label")'
  config.evals.probe = {
    "type": "fewshot_lsr",
    "representation_layer": "img/pre_logits",
    "datasets": {
      "new_names": ("arrays:glyphs", "new_names", "new_names"),
    },
    "pp_train": probe,
    "pp_eval": probe,
    "shots": (1, 5),
    "log_percent": 1.0,
  }
  recipe = "mini LiT"
  if arg.loss != "softmax":
    recipe += f", {arg.loss}"
  if arg.embedded:
    _precompute(config, f"embedded:{arg.embedded}")
  if not arg.init and not arg.embedded:
    recipe += ", from scratch"
  config.table = common.table(
    recipe, "", arg.stem_ln, "zeroshot/new_names_prec@1"
  )


def _precompute(config, name):
  """Reads embeddings instead of images, in place; probes have no use for it."""
  config.input.data.name = config.evals.retrieval.data.name = name
  config.input.pp = f'{TOKENIZE}|keep("image", "text")'
  config.model.image_model = "precomputed"
  config.model.image = {}
  del config.evals.probe
  section = config.evals.zeroshot
  section.datasets = {
    key: (name, split) for key, (_, split) in section.datasets.items()
  }
  config.evals.zeroshot.pp_img = config.evals.retrieval.pp_img = ""


def sweep(arg=None):
  """Returns the arms of the study; see the module's docstring."""
  arg = common.parse_sweep(
    arg,
    stage="lit",
    stems=("none", "dpn"),
    init="",
    loss="softmax",
    epochs=0,
    seeds=5,
  )
  given = {"stage": arg.stage, "loss": arg.loss, "epochs": arg.epochs}
  if arg.init:
    given["init"] = arg.init
  return [
    arm
    for stem in arg.stems
    for arm in common.arms(arg, stem, stem_ln=stem, **given)
  ]
