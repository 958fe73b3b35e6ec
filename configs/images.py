r"""Your own pictures, in class folders: from scratch or from a checkpoint.

  python -m trainers.train --workdir W --config configs/images.py:data=/photos
  python -m trainers.train --workdir W --config \
    configs/images.py:data=/photos,init=/path/vit_b16.safetensors,variant=B/16
  python -m scripts.predict W new.jpg another.png
  python -m scripts.sweep --out W --config configs/images.py:data=/photos

Arguments: data (required: a folder), init (a checkpoint, as config.model_init
takes it: the folder of a run says what model it is; of others give variant,
and stem_ln unless it is none), variant, stem_ln (from scratch dpn), res (pixels
of a side), epochs, batch, lr, seed, runlocal (two steps of 8 images). What is
left out depends on the number of training images and on init, see `_defaults`.
As a sweep: data, init, variants, stems, seeds (3).

/photos holds train/<class>/<file> and perhaps val/ or test/, capitalized or
not; or just <class>/<file>. Without a split for it, a tenth of the images,
drawn at random but always the same, is for validation. The number of classes
and their names are those of the folders.

Expected: no published number. The defaults are starting points that nobody has
tuned for your pictures; with init, begin with a sweep over lr.
"""

import itertools
import json
import logging
import os
import re

import ml_collections

from dpn.configs import common

EVALUATION = ("val", "valid", "validation", "test")  # the first that is there
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def get_config(arg=None):
  """Returns the config; see the module's docstring for `arg`."""
  arg = common.parse_arg(
    arg,
    data="",
    init="",
    variant="",
    stem_ln="",
    res=0,
    epochs=0,
    batch=0,
    lr=0.0,
    seed=0,
    runlocal=False,
  )
  splits, classes, count = look(arg.data)
  model, res = _run(arg.init)
  for key, value in _defaults(count, arg.init, model, res).items():
    arg[key] = arg[key] or value

  config = ml_collections.ConfigDict()
  config.seed = arg.seed
  config.total_epochs = arg.epochs
  config.num_classes = len(classes)
  config.class_names = classes
  config.loss = "softmax_xent"

  tail = common.labels_tail(len(classes))
  config.input = {}
  config.input.data = {"name": f"folder:{arg.data}", "split": splits["train"]}
  config.input.batch_size = arg.batch
  augment = "" if arg.init else "|randaug(2, 10)"
  config.input.pp = (
    f"decode_jpeg_and_inception_crop({arg.res})|flip_lr{augment}{tail}"
  )

  config.log_training_steps = 50
  config.ckpt_percent = 0.1
  config.model_name = "vit"
  config.model = {
    **common.MODEL_KW,
    "pool_type": "tok" if arg.init else "gap",
    "scan": True,  # compiles in half the time
    **model,
    **({"variant": arg.variant} if arg.variant else {}),
    "stem_ln": arg.stem_ln,
  }
  if arg.init:
    config.model_init = arg.init
    config.model_load = {
      "dont_load": ("(head|pre_logits)/.*",),
      "dont_check": (),
    }
  else:
    config.mixup = {"p": 0.2, "fold_in": None}

  config.grad_clip_norm = 1.0
  config.optax_name = "scale_by_adam"
  config.lr = arg.lr
  config.wd = 0.1 * arg.lr
  config.schedule = {"warmup_percent": 0.1, "decay_type": "cosine"}

  config.evals = {}
  config.evals.val = {
    "type": "classification",
    "data": {"name": f"folder:{arg.data}", "split": splits["val"]},
    "pp_fn": f"decode|resize_small({arg.res * 8 // 7})"
    f"|central_crop({arg.res}){tail}",
    "loss_name": config.loss,
    "log_percent": 0.1,
    "cache_final": True,
  }
  arch = arg.variant or os.path.basename(os.path.normpath(arg.init))
  recipe = "images finetune" if arg.init else "images"
  config.table = common.table(recipe, arch, arg.stem_ln)

  if arg.runlocal:
    common.runlocal(config)
  return config


def _run(init):
  """Returns the model's options and the resolution of the run in a folder.

  If it is none, {} and 224.
  """
  file = os.path.join(os.path.expanduser(init), "config.json")
  if not init or not os.path.isfile(file):
    return {}, 224
  with open(file, encoding="utf-8") as f:
    config = json.load(f)
  model = config.get("model") if "model_name" in config else None
  pp = (config.get("input") or {}).get("pp") or ""
  sizes = re.findall(r"(?:crop|resize)\(+(\d+)", pp)
  res = int(sizes[-1]) if sizes else 224
  return dict(model) if isinstance(model, dict) else {}, res


def _defaults(count, init, model, res):
  """Returns sizes and lengths for so many images, from scratch or not."""
  if init:
    sizes = {"res": res, "lr": 1e-4}
    sizes["variant"] = model.get("variant", "") if model else "B/16"
    sizes["stem_ln"] = model.get("stem_ln", "none")
    steps, epochs = 5_000, (5, 50)
  else:
    sizes = {"variant": "S/16" if count > 100_000 else "Ti/16", "lr": 1e-3}
    sizes["stem_ln"] = "dpn"
    sizes["res"] = 224 if count > 20_000 else 128
    steps, epochs = 50_000, (30, 300)
  batch = next(b for b in (256, 128, 64, 32, 8) if count >= 16 * b or b == 8)
  wanted = steps * batch // count
  return sizes | {
    "batch": batch,
    "epochs": min(max(wanted, epochs[0]), epochs[1]),
  }


def look(data):
  """Returns the splits by purpose, the classes, and how many train.

  Raises:
    ValueError: these are no class folders with images.
  """
  root = os.path.expanduser(data)
  if not data or not os.path.isdir(root):
    missing = data and not os.path.exists(root)
    raise ValueError(
      f"images needs a folder of pictures, got data={data!r}"
      f"{', which does not exist' if missing else ''}: append "
      "data=/path/to/photos to the config's arguments."
    )
  found = {name: _classes(os.path.join(root, name)) for name in _folders(root)}
  splits = {name: counts for name, counts in found.items() if counts}
  named = {name.lower(): name for name in splits}
  if not splits:
    splits = {"all": _classes(root)}
    train = "all"
  elif "train" in named:
    train = named["train"]
  else:
    raise ValueError(
      f"{root} holds {', '.join(splits)}, but no 'train': expected "
      "train/<class>/<file>, or <class>/<file> directly."
    )
  classes = sorted({name for counts in splits.values() for name in counts})
  if len(classes) < 2:
    raise ValueError(
      f"{root} holds {len(classes)} classes with images; expected two or more "
      "folders, train/<class>/<file> or <class>/<file>, of files that end in "
      f"{', '.join(SUFFIXES)}."
    )
  count = sum(splits[train].values())
  other = [named[name] for name in EVALUATION if name in named]
  known = train.lower(), *EVALUATION
  if unused := [name for name in splits if name.lower() not in known]:
    logging.warning(
      "%s: the pictures in %s are not used. A folder to evaluate on is called "
      "%s.",
      *(root, ", ".join(unused), " or ".join(EVALUATION)),
    )
  if other:
    return {"train": train, "val": other[0]}, classes, count
  parts = {"train": f"{train}[:90%]", "val": f"{train}[90%:]"}
  return parts, classes, count * 9 // 10


def _classes(root):
  """Returns the number of images by class folder; nothing without any image."""
  counts = {name: _count(os.path.join(root, name)) for name in _folders(root)}
  return counts if any(counts.values()) else {}


def _folders(root):
  return sorted(
    entry.name
    for entry in os.scandir(root)
    if entry.is_dir() and entry.name[0] != "."
  )


def _count(root):
  return sum(
    entry.name.lower().endswith(SUFFIXES) and entry.name[0] != "."
    for entry in os.scandir(root)
  )


def sweep(arg=None):
  """Returns the arms; see the module's docstring."""
  arg = common.parse_sweep(
    arg, data="", init="", variants=("",), stems=("none", "dpn"), seeds=3
  )
  result = []
  for variant, stem in itertools.product(arg.variants, arg.stems):
    given = {"data": arg.data, "stem_ln": stem}
    given |= {k: v for k, v in (("variant", variant), ("init", arg.init)) if v}
    result += common.arms(arg, "_".join(filter(None, (stem, variant))), **given)
  return result
