r"""Your own pictures, in class folders: from scratch or from a checkpoint.

  python -m trainers.train --workdir W --config configs/images.py:data=/photos
  python -m trainers.train --workdir W --config \
    configs/images.py:data=/photos,init=/path/vit_b16.safetensors,variant=B/16
  python -m scripts.predict W new.jpg another.png
  python -m scripts.sweep --out W --config configs/images.py:data=/photos

Arguments: data (required: a folder), init (a checkpoint, as config.model_init
takes it; a run's folder says which model it is, for others give variant, and
stem_ln unless it is none), variant, stem_ln (from scratch patch_stats by
default, which is dpn with each patch's mean and deviation as inputs, see
docs/patch_stats.md; tract is TrAct), res (pixels of a side), epochs, batch, lr,
seed, runlocal (two steps of 8 images). Defaults depend on the number of
training images and on init, see `_defaults`. As a sweep: data, init, variants,
stems (from scratch none+dpn+patch_stats; else that of init, or with
init=pretrained/{stem_ln}, files of both, none+dpn), res, epochs, batch, lr,
seeds (3).

/photos holds train/<class>/<file> and perhaps val/ or test/, capitalized or
not; or just <class>/<file>. Without a split for validation, a tenth of the
images, drawn at random but always the same, is held out for it. The folders
give the number of classes and their names.

From scratch none and tract see pixels standardized as ImageNet's, other stems
see them from -1 to 1. In our trainings on photographs (docs/results/photos.md)
standardizing by the data's own mean and deviation helped a plain ViT on two
sets of three, and on the third at one of two learning rates; TrAct's authors
standardize pixels, and other stems were not tried with that. If init is a run's
folder, pixels are as in that run; with any other init, from -1 to 1.

Expected: no published number. The defaults are starting points that nobody has
tuned for your pictures; with init, first try several lr.
"""

import logging
import os

from dpn import calls, image_files, registry, schema, stems
from dpn.configs import common

EVALUATION = ("val", "valid", "validation", "test")  # the first that is there


@common.recipe(
  data="", init="", variant="", stem_ln="", res=0, epochs=0, batch=0, lr=0.0
)
def get_config(arg):
  splits, classes, counts = look(arg.data)
  model, res, pixels = _run(arg.init)
  for key, value in _defaults(counts["train"], arg.init, model, res).items():
    arg[key] = arg[key] or value
  source = lambda split: common.source(f"folder:{arg.data}", split)
  if not arg.init and arg.stem_ln in ("none", "tract"):
    pixels = "vgg_value_range"
  tail = common.labels_tail(len(classes), pixels=pixels)
  augment = "" if arg.init else "|randaug(2, 10)"
  crop = f"resize_small({arg.res * 8 // 7})|central_crop({arg.res})"
  pretrained = {"model_init": arg.init, "model_load": common.ENCODER}
  options = {
    "scan": True,  # compiles in half the time
    **(model or {"pool_type": "tok" if arg.init else "gap"}),
    **({"variant": arg.variant} if arg.variant else {}),
  }
  own = options.pop("stem_ln", None)  # the default of the argument
  if own in stems.WORDS and arg.stem_ln != own:
    options.pop("stem_kw", None)  # of a stem that is not asked for
  return {
    "total_epochs": arg.epochs,
    "num_classes": len(classes),
    "class_names": classes,
    "loss": "softmax_xent",
    "input": {
      "data": source(splits["train"]),
      "batch_size": arg.batch,
      "pp": f"decode_jpeg_and_inception_crop({arg.res})|flip_lr{augment}{tail}",
    },
    "log_training_steps": 50,
    "ckpt_percent": 0.1,
    **common.vit(arg.stem_ln, **options),
    **(pretrained if arg.init else {"mixup": common.MIXUP_DEF["light2"]}),
    **common.ADAM,
    "lr": arg.lr,
    "wd": 0.1 * arg.lr,
    "schedule": common.WARMUP_COSINE,
    "evals": {
      "val": common.classification(
        source(splits["val"]),
        f"decode|{crop}{tail}",
        "softmax_xent",
        log_percent=0.1,
        cache_final=counts["val"] * arg.res**2 < 2e8,  # 2.4 GB
      )
    },
    "table": common.table(
      "images finetune" if arg.init else "images",
      arg.variant or os.path.basename(os.path.normpath(arg.init)),
      arg.stem_ln,
    ),
  }


def _run(init):
  """Returns the model's options, resolution and pixels of the run in a folder.

  If there is none, {}, 224 and the op for pixels from -1 to 1.
  """
  file = os.path.join(os.path.expanduser(init), "config.json")
  if not init or not os.path.isfile(file):
    return {}, 224, common.PIXELS
  config = schema.read_json(file, dict)
  model = config.get("model") if "model_name" in config else None
  registry.check_names(file, {"model": model})
  model = dict(model) if isinstance(model, dict) else {}
  if {k: model.get(k) for k in ("stem_ln", "stem")} in stems.WORDS.values():
    model["stem_ln"] = model.pop("stem")  # the word for both
  pp = (config.get("input") or {}).get("pp") or ""
  size = calls.describe(pp)["size"] or (224, 224)
  pixels = [op for op in calls.OP.findall(pp) if "value_range" in op]
  return model, size[0], pixels[0] if len(pixels) == 1 else common.PIXELS


def _defaults(count, init, model, res):
  """Returns sizes and lengths for `count` images, from scratch or not."""
  if init:
    sizes = {"res": res, "lr": 1e-4}
    sizes["variant"] = model.get("variant", "") if model else "B/16"
    sizes["stem_ln"] = model.get("stem_ln", "none")
    steps, epochs = 5_000, (5, 50)
  else:
    sizes = {"variant": "S/16" if count > 100_000 else "Ti/16", "lr": 1e-3}
    sizes["stem_ln"] = "patch_stats"
    sizes["res"] = 224 if count > 20_000 else 128
    steps, epochs = 50_000, (30, 300)
  batch = next(b for b in (256, 128, 64, 32, 8) if count >= 16 * b or b == 8)
  wanted = steps * batch // count
  return sizes | {
    "batch": batch,
    "epochs": min(max(wanted, epochs[0]), epochs[1]),
  }


def look(data):
  """Returns the splits by purpose, the classes, and the splits' sizes.

  Raises:
    ValueError: these are no class folders with images.
  """
  root = os.path.expanduser(data)
  if not data or not os.path.isdir(root):
    missing = data and not os.path.exists(root)
    raise ValueError(
      f"images needs a folder of pictures, got data={data!r}"
      f"{', which does not exist' if missing else ''}: append "
      "data=/path/to/photos to the config's arguments. Archives, lists and "
      "others go into config.input.data of your own config: see docs/data.md."
    )
  found = {
    name: _classes(os.path.join(root, name))
    for name in image_files.subfolders(root)
  }
  splits = {name: counts for name, counts in found.items() if counts}
  named = {name.lower(): name for name in splits}
  if not splits or not image_files.has_splits(root):
    splits = {"all": {} if image_files.only_splits(root) else _classes(root)}
    train = "all"
  elif "train" in named:
    train = named["train"]
  else:
    raise ValueError(
      f"{root} holds {', '.join(splits)}, but no 'train': expected "
      "train/<class>/<file>, or <class>/<file> directly."
    )
  classes = sorted({name for counts in splits.values() for name in counts})
  filled = {k for counts in splits.values() for k, n in counts.items() if n}
  if len(filled) < 2:
    raise ValueError(
      f"{root} holds {len(filled)} classes with images; expected two or more "
      "folders, train/<class>/<file> or <class>/<file>, of files that end in "
      f"{', '.join(image_files.SUFFIXES)}."
    )
  count = sum(splits[train].values())
  other = [named[name] for name in EVALUATION if name in named]
  known = train.lower(), *EVALUATION
  ours = {named.get(name, name) for name in known}  # of Train and train, one
  if unused := sorted({*splits} - ours):
    logging.warning(
      "%s: the pictures in %s are not used. A folder to evaluate on is called "
      "%s.",
      *(root, ", ".join(unused), " or ".join(EVALUATION)),
    )
  if other:
    sizes = {"train": count, "val": sum(splits[other[0]].values())}
    return {"train": train, "val": other[0]}, classes, sizes
  parts = {"train": f"{train}[:90%]", "val": f"{train}[90%:]"}
  return parts, classes, {"train": count * 9 // 10, "val": count // 10}


def _classes(root):
  """Returns the number of images by class folder; {} if there are no images."""
  counts = {
    name: len(image_files.images(os.path.join(root, name)))
    for name in image_files.subfolders(root)
  }
  return counts if any(counts.values()) else {}


def sweep(arg=None):
  """Returns the arms; see the module's docstring."""
  same = {"res": 0, "epochs": 0, "batch": 0, "lr": 0.0}
  arg = common.parse_sweep(
    arg, **same, data="", init="", variants=("",), stems=(), seeds=3
  )
  tried = ("none", "dpn", "patch_stats")
  if arg.init:  # its own, unless there is a file for each
    own = _run(arg.init)[0].get("stem_ln", "none")
    tried = ("none", "dpn") if "{stem_ln}" in arg.init else (own,)
  arms = {
    "_".join(filter(None, (stem, variant))): {
      "stem_ln": stem,
      **({"variant": variant} if variant else {}),
    }
    for variant in arg.variants
    for stem in arg.stems or tried
  }
  same = {name: arg[name] for name in same if arg[name]}
  return common.grid(
    arg, "{arm}", arms=arms, data=arg.data, init=arg.init, **same
  )
