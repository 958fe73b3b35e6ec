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

Expected: zero-shot accuracy on 209 unseen names far above chance, 0.5%;
docs/results/lit.md has the study.
"""

from dpn.configs import common

GLYPHS = "arrays:glyphs"
NAMES = 1568  # of the training split
_SIZE = {"width": 64, "depth": 4, "mlp_dim": 256, "num_heads": 4, "scan": True}
MODEL = {**_SIZE, "patch_size": (8, 8), "pool_type": "gap"}
TEXT = {**_SIZE, "vocab_size": 260, "pool_type": "map"}
TOKENIZE = 'tokenize(max_len=60, eos="yes", model="bytes")'
EPOCHS = {"tower": 15, "lit": 10}
# Moves each glyph by up to two pixels.
MOVED = (
  f"pad_to_shape((36, 36, 1), where='both')|random_crop(32)|{common.PIXELS}"
)


@common.recipe(
  stage="lit", stem_ln="dpn", init="", embedded="", loss="softmax", epochs=0
)
def get_config(arg):
  epochs = common.choose("stage", arg.stage, EPOCHS)
  of_lit = arg.init or arg.embedded or arg.loss != "softmax"
  if arg.stage == "tower" and of_lit:
    raise ValueError("stage=tower takes neither init, embedded nor loss.")
  if arg.init and arg.embedded:
    raise ValueError("embedded is instead of a tower: leave out init.")
  return {
    "total_epochs": arg.epochs or epochs,
    "log_training_steps": 50,
    "ckpt_steps": 500,
    "log_grad_depth": True,
    **common.ADAM,
    "lr": 0.002,
    "wd": 0.0002,
    **(_tower(arg) if arg.stage == "tower" else _lit(arg)),
  }


def _input(pp, name):
  return {"data": common.source(name, "train"), "batch_size": 256, "pp": pp}


def _tower(arg):
  """Returns the fields of a classifier of the training names."""
  labels = common.labels_tail(NAMES).removeprefix(f"|{common.PIXELS}")
  return {
    "num_classes": NAMES,
    "loss": "softmax_xent",
    "input": _input(MOVED + labels, GLYPHS),
    "model": common.vit(arg.stem_ln, **MODEL)["model"],
    "schedule": common.WARMUP_COSINE,
    "evals": {
      "new_fonts": common.classification(
        common.source(GLYPHS, "new_fonts"),
        common.PIXELS + labels,
        "softmax_xent",
        log_percent=0.2,
      )
    },
    "table": common.table(
      "mini LiT tower", "64x4/8", arg.stem_ln, "new_fonts/prec@1"
    ),
  }


def _lit(arg):
  """Returns the fields of two towers that match glyphs with their names."""
  recipe = "mini LiT" if arg.loss == "softmax" else f"mini LiT, {arg.loss}"
  locked = {"schedule": [(".*", common.WARMUP_COSINE)]}
  if arg.init:
    locked = common.locked_image_tower(arg.init, common.WARMUP_COSINE)
  elif not arg.embedded:
    recipe += ", from scratch"
  tower = {"image": common.vit(arg.stem_ln, **MODEL)["model"]}
  name, image = GLYPHS, f"{MOVED}|"
  if arg.embedded:  # embeddings instead of images
    tower = {"image_model": "precomputed", "image": {}}
    name, image = f"embedded:{arg.embedded}", ""
  return {
    "task": "contrastive",
    "loss": arg.loss,
    "loss_chunks": 1,
    "input": _input(f'{image}{TOKENIZE}|keep("image", "text")', name),
    "model": {
      **tower,
      "text": TEXT,
      "out_dim": (None, MODEL["width"]),
      "temperature_init": 10.0,
      **({"bias_init": -10.0} if arg.loss == "sigmoid" else {}),
    },
    **locked,
    "evals": _evals(name, embedded=bool(arg.embedded)),
    "table": common.table(
      recipe, "64x4/8", arg.stem_ln, "zeroshot/new_names_prec@1"
    ),
  }


def _evals(name, embedded):
  """Returns evaluators on new names and in new fonts."""
  image = "" if embedded else common.PIXELS
  evals = {
    "zeroshot": {
      "type": "zeroshot",
      "datasets": {
        "new_names": (name, "new_names"),
        "new_fonts": (name, "new_fonts"),
      },
      "pp_img": image,
      "pp_txt": TOKENIZE,
      "canonicalize": False,  # captions have their hyphens
      "log_percent": 0.2,
    },
    "retrieval": {
      "type": "retrieval",
      "data": common.source(name, "new_fonts"),
      "pp_img": image,
      "pp_txt": TOKENIZE,
      "log_percent": 1.0,
    },
  }
  if embedded:  # probes need images
    return evals
  # What zero-shot accuracy is compared with: how well a probe of the image
  # tower tells the new names apart after it has seen each once, or up to five
  # times, in other images.
  probe = f'{common.PIXELS}|keep("image", "label")'
  evals["probe"] = {
    "type": "fewshot_lsr",
    "representation_layer": "img/pre_logits",
    "datasets": {"new_names": (name, "new_names[:70%]", "new_names[70%:]")},
    "pp_train": probe,
    "pp_eval": probe,
    "shots": (1, 5),
    "log_percent": 1.0,
  }
  return evals


sweep = common.sweep(
  "{stem_ln}",
  stage="lit",
  stems=("none", "dpn"),
  init="",
  loss="softmax",
  epochs=0,
  seeds=5,
)
