r"""When does Dual PatchNorm help? Small ViTs on CIFAR-10, one thing varied.

The study of docs/results/when_dpn_helps.md, which explains every choice.

  python -m trainers.train --workdir W \
    --config configs/studies/when_dpn_helps.py:\
stem_ln=dpn,data=cifar10,data_dir=/path/to/tfds
  python -m scripts.sweep --out runs/when_dpn_helps/lr --config \
    configs/studies/when_dpn_helps.py:piece=lr,data=cifar10,data_dir=/path/to/tfds

Arguments: stem_ln; stem (patch; patch_stats: each patch's mean and deviation as
two more inputs; tract: the embedding trained by TrAct); pixels (range: from -1
to 1; standardized: mean 0, deviation 1 in each channel); lr (instead of
0.001); steps; percent (of the training images, 90 at most: on the last
tenth choices are made); side (pixels of the enlarged image); patch; width;
depth; clip (global, none, layer); aug (crop_flip, none, jitter); optimizer
(adam, sgd, adafactor); corruptions (evaluate on corrupted images as well);
on_device (data and augmentation on a GPU); seed, data (a TFDS name), data_dir,
runlocal.
As a sweep: piece (one of `PIECES`), data, data_dir; a piece has its own seeds.

Expected: between 40 and 50% in the base setting, two minutes on two cores, and
71 to 75% with steps=17578, 1.3 core hours; what else is in the page.
"""

from dpn.configs import common, lape_cifar

BATCH = 128
BASE = {
  "steps": 1560,
  "percent": 90,
  "side": 32,
  "patch": 8,
  "width": 128,
  "depth": 6,
  "clip": "global",
  "aug": "crop_flip",
  "optimizer": "adam",
}
# (stem_ln, stem) of each arm.
ARMS = {
  "none": ("none", "patch"),
  "pre": ("pre", "patch"),
  "post": ("post", "patch"),
  "dpn": ("dpn", "patch"),
  "pre+patch_stats": ("pre", "patch_stats"),
  "dpn+patch_stats": ("dpn", "patch_stats"),
  "whiten": ("whiten", "patch"),
  "tract": ("none", "tract"),
}
LR = 1e-3  # with Adam; in the piece `lr` all arms were best with it
OPTIMIZERS = {
  "adam": ("scale_by_adam", {}, 0.1),
  "sgd": ("trace", {"decay": 0.9}, 5e-4),
  "adafactor": ("big_vision.scale_by_adafactor", {}, 0.1),
}  # name → optax_name, optax, weight decay by the learning rate
AUGMENTATIONS = {
  "none": "",
  "crop_flip": "|pad_to_shape((40, 40, None), where='both')|random_crop(32)"
  "|flip_lr",
}
AUGMENTATIONS["jitter"] = (
  AUGMENTATIONS["crop_flip"] + "|color_jitter(0.4, 0.4, 0)"
)
PIXELS = {
  "range": common.PIXELS,
  "standardized": "vgg_value_range({}, {})".format(*lape_cifar.mean_std(10)),
}
# Where pixels are from -1 to 1.
ON_DEVICE = {"none": {}, "crop_flip": {"pad_value": -1.0, "flip_lr": True}}

_PAIR, _MECHANISM = ("none", "dpn"), tuple(a for a in ARMS if a[:4] != "pre+")
_CONFIRM = [
  {},
  {"percent": 8, "aug": "none"},
  {"steps": 195},
  {"patch": 16},
  {"steps": 3120},
]
_STANDARDIZED = {"pixels": "standardized"}
# name → arms, settings that differ from BASE, first seed, number of seeds.
PIECES = {
  "lr": (
    tuple(ARMS),
    [{"lr": lr} for lr in (3e-4, 1e-3, 3e-3, 1e-2)],
    *(100, 1),
  ),
  "steps": (_PAIR, [{"steps": n} for n in (195, 780, 3120)], 100, 2),
  "images": (
    _PAIR,
    [{"percent": n, "aug": "none"} for n in (2, 8)]
    + [{"percent": n} for n in (8, 32)],
    *(100, 2),
  ),
  "patch": (
    _PAIR,
    [{"patch": 4, "steps": 780}, {"patch": 16}, {"side": 64, "patch": 16}],
    *(100, 2),
  ),
  "size": (
    _PAIR,
    [
      {"width": 64, "depth": 4},
      {"width": 256, "steps": 780},
      {"depth": 12, "steps": 780},
    ],
    *(100, 2),
  ),
  "clip": (
    _PAIR,
    [{"clip": c, "steps": 780} for c in ("none", "layer")],
    *(100, 2),
  ),
  "aug": (_PAIR, [{"aug": aug} for aug in ("none", "jitter")], 100, 2),
  "optimizer": (
    _PAIR,
    [{"optimizer": "sgd", "lr": lr, "steps": 780} for lr in (0.03, 0.1, 0.3)]
    + [{"optimizer": "adafactor", "steps": 780}],
    *(100, 1),
  ),
  "gpu": (  # 5 to 150 epochs
    _PAIR,
    [{"steps": n, "on_device": True} for n in (1757, 5273, 17_578, 52_734)],
    *(0, 20),
  ),
  "confirm_long": ((*_PAIR, "dpn+patch_stats"), [{"steps": 17_578}], *(0, 5)),
  "confirm_long_standardized": (
    ("none",),
    [{**_STANDARDIZED, "steps": 17_578}],
    *(0, 5),
  ),
  "confirm": (_MECHANISM, _CONFIRM, *(0, 5)),
  "lr_standardized": (
    ("none",),
    [{**_STANDARDIZED, "lr": lr} for lr in (3e-4, 1e-3, 3e-3)],
    *(100, 1),
  ),
  "confirm_standardized": (
    ("none",),
    [{**_STANDARDIZED, **setting} for setting in _CONFIRM],
    *(0, 5),
  ),
}


@common.recipe(
  stem_ln="dpn",
  stem="patch",
  pixels="range",
  lr=0.0,
  **BASE,
  corruptions=False,
  on_device=False,
  data="cifar10",
  data_dir="",
)
def get_config(arg):
  if not 0 < arg.percent <= 90:
    raise ValueError(
      f"percent must be 1 to 90, got {arg.percent}: the last tenth of the "
      "training images is minival."
    )
  if arg.on_device and arg.pixels != "range":
    raise ValueError(
      "on_device is for pixels=range, where black, with which it pads, is -1; "
      f"got pixels={arg.pixels}."
    )
  name, kw, decay = common.choose("optimizer", arg.optimizer, OPTIMIZERS)
  vit = common.vit(
    arg.stem_ln,
    width=arg.width,
    depth=arg.depth,
    mlp_dim=2 * arg.width,
    num_heads=max(1, arg.width // 32),
    patch_size=(arg.patch, arg.patch),
    pool_type="tok",
    scan=arg.clip != "layer",
    stem=arg.stem,
  )
  lr = arg.lr or LR
  # A given rate makes a setting of its own; the usual one does not.
  usual = BASE | {"lr": 0.0}
  differs = [f"{k} {arg[k]}" for k in usual if arg[k] != usual[k]]
  enlarge = f"|resize({arg.side})" if arg.side != 32 else ""
  pixels = common.choose("pixels", arg.pixels, PIXELS)
  tail = enlarge + common.labels_tail(10, pixels=pixels)
  arm = arg.stem_ln
  if arg.pixels != "range":
    names = {stems: name for name, stems in ARMS.items()}
    arm = f"{names.get((arm, vit['model']['stem']), arm)}_{arg.pixels}"
  return {
    "total_steps": arg.steps,
    "num_classes": 10,
    "loss": "softmax_xent",
    **_input(arg, tail),
    "log_training_percent": 0.02,
    # On a GPU, saving twenty seeds at once takes as long as many steps.
    "ckpt_steps": 5000 if arg.on_device else 1000,
    "log_grad_depth": True,
    **vit,
    "grad_clip_norm": _clip(arg.clip, arg.depth),
    "optax_name": name,
    "optax": kw,
    "lr": lr,
    "wd": decay * lr,
    "schedule": common.WARMUP_COSINE,
    "evals": _evals(arg, tail),
    "table": common.table(
      ", ".join(["When DPN helps", *differs]),
      f"{arg.width}x{arg.depth}/{arg.patch}",
      *(arm, "test/prec@1"),
    ),
  }


def _input(arg, tail):
  """Returns `input`, and `augment` if that is done on the device."""
  aug = common.choose("aug", arg.aug, AUGMENTATIONS)
  section = {
    "data": common.source(arg.data, f"train[:{arg.percent}%]", arg.data_dir),
    "batch_size": BATCH,
    "pp": f"decode|resize(32){aug}{tail}",
  }
  if not arg.on_device:
    return {"input": section}
  section |= {"on_device": True, "pp": f"decode|resize(32){tail}"}
  augment = common.choose("aug on the device", arg.aug, ON_DEVICE)
  pad = {"pad": arg.side // 8} if augment else {}
  return {"input": section, "augment": {**augment, **pad}}


def _evals(arg, tail):
  """Returns accuracy on held-out images, if asked for corrupted ones, too."""
  evaluator = lambda split, share, **kw: common.classification(
    common.source(arg.data, split, arg.data_dir),
    *(f"decode|resize(32){tail}", "softmax_xent"),
    log_percent=share,
    **kw,
  )
  evals = {
    "minival": evaluator("train[90%:]", 0.25, cache_final=True),
    "test": evaluator("test", 1.0, cache_final=False),
  }
  if arg.corruptions:
    evals["corruptions"] = evaluator("test[:20%]", 1.0) | {
      "type": "corruptions",
      "pp_fn": f"decode|resize(32)|corrupt{tail}",
    }
  return evals


def _clip(kind, depth):
  """Returns config.grad_clip_norm."""
  groups = [
    "(embedding|patch_stats|stem)/.*",
    "cls|pos_embedding",
    *(f"Transformer/encoderblock_{i}/.*" for i in range(depth)),
    "(head|Transformer/encoder_norm)/.*",
  ]
  # All groups at their limits have the norm 1, too.
  each = len(groups) ** -0.5
  clips = {"global": 1.0, "none": None, "layer": [(g, each) for g in groups]}
  return common.choose("clip", kind, clips)


def sweep(arg=None):
  """Returns the arms of a piece of the study; see the module's docstring."""
  same = {"data": "cifar10", "data_dir": "", "seeds": 0}
  arg = common.parse_sweep(arg, piece="lr", **same)
  names, settings, first, count = common.choose("piece", arg.piece, PIECES)
  arg.seeds = arg.seeds or count
  arms = {}
  for setting in settings:
    for name in names:
      words = [f"{k}{v}" for k, v in setting.items()]
      stem_ln, stem = ARMS[name]
      given = {"stem_ln": stem_ln, "stem": stem, **setting}
      arms["_".join([name, *words])] = given
  return common.grid(
    arg,
    "{arm}",
    arms=arms,
    first_seed=first,
    corruptions=arg.piece.startswith("confirm"),
    data=arg.data,
    data_dir=arg.data_dir,
  )
