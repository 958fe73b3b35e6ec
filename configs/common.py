"""What configs share: their arguments, presets, and the grids of their sweeps.

`config.table` says which cell of the paper's tables a run fills; docs/tables.md
lists its keys.
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections

from dpn import errors, schema, stems
from dpn.configs import arguments

parse_arg = arguments.parse_arg
parse_sweep = arguments.parse_sweep
sweep = arguments.sweep
grid = arguments.grid

# Appendix C of arXiv 2302.01327, after Steiner et al., arXiv 2106.10270.
_SETTINGS = {  # RandAugment's op, and the p of mixup
  "none": ("", 0.0),
  "light1": ("randaug(2,0)", 0.0),  # magnitude 0 still inverts, rotates …
  "light2": ("randaug(2,10)", 0.2),
  "medium1": ("randaug(2,15)", 0.2),
  "medium2": ("randaug(2,15)", 0.5),
  "strong1": ("randaug(2,20)", 0.5),
  "strong2": ("randaug(2,20)", 0.8),
}
RANDAUG_DEF = {name: op for name, (op, _) in _SETTINGS.items()}
MIXUP_DEF = {k: {"p": p, "fold_in": None} for k, (_, p) in _SETTINGS.items()}
# Part of every config.model, so that each can be set from the command line:
# --config.model.norm_kw.eps=1e-5.
MODEL_KW = {
  f"{option}_kw": {}
  for option in ("stem", "posemb", "posemb_join", "block_ln", "norm")
}
# Rows every 50 steps, and the gradient by depth, as in Figures 2 and 4.
LOGS = {"log_training_steps": 50, "log_grad_depth": 1000, "ckpt_steps": 1000}
ADAM = {"grad_clip_norm": 1.0, "optax_name": "scale_by_adam"}
# Appendix C.
AUGREG = {
  **LOGS,
  **ADAM,
  "optax": {"mu_dtype": "bfloat16"},
  "lr": 0.001,
  "wd": 0.0001,
  "schedule": {"warmup_steps": 10_000, "decay_type": "cosine"},
}
PIXELS = "value_range(-1, 1)"
WARMUP_COSINE = {"warmup_percent": 0.1, "decay_type": "cosine"}
# Compact Transformers' code and Scenic also decay tokens and positions.
DECAY_TOKENS = [(".*/kernel$", 1.0), ("cls|pos_embedding", 1.0)]
# What to load of a checkpoint: all but its head, with or without pre_logits.
ENCODER = {"dont_load": ("(head|pre_logits)/.*",), "dont_check": ()}
NEW_HEAD = {"dont_load": ("head/kernel", "head/bias"), "dont_check": ()}


def recipe(**spec) -> Callable:
  """Returns a decorator that makes a config's get_config(arg).

  The decorated function returns the config's fields, given the parsed
  arguments. These are `spec`, see `parse_arg`, and for every config `seed` (0),
  which is set here, and `runlocal`, which shrinks the config. Other configs can
  give arguments as keywords: `augreg_i1k.get_config(variant="S/16")`.
  """
  spec = {**spec, "seed": spec.get("seed", 0), "runlocal": False}

  def decorate(fields):
    @functools.wraps(fields)
    def get_config(arg=None, **given):
      for name in given:
        errors.check_known("config argument", name, spec)
      args = parse_arg(arg, **spec | given)
      config = ml_collections.ConfigDict(fields(args))
      config.seed = args.seed
      if args.runlocal:
        runlocal(config)
      return config

    get_config.__doc__ = "Returns the config; see the module's docstring."
    get_config.arguments = spec
    return get_config

  return decorate


def choose(kind: str, got: str, table):
  """Returns `table[got]`, or raises ValueError naming the nearest key."""
  errors.check_known(kind, got, table)
  return table[got]


def names(kind: str, parts: Sequence[str], table) -> list[str]:
  """Returns the keys of `table` that "+" joins; a key may contain one, too."""
  text, found = "+".join(parts), []
  while text:
    known = [key for key in table if f"{text}+".startswith(f"{key}+")]
    found.append(max(known, key=len, default=text.partition("+")[0]))
    errors.check_known(kind, found[-1], table)
    text = text[len(found[-1]) + 1 :]
  return found


def need_init(name: str, arg: ml_collections.ConfigDict):
  """Raises ValueError if a config that needs `arg.init` is not given one."""
  if not arg.init and not arg.runlocal:
    raise ValueError(
      f"{name} needs the model to start from: append init=/path/to/"
      "params.safetensors (or .npz) to the config's arguments."
    )


def source(name: str, split: str, data_dir: str = "") -> dict[str, str]:
  """Returns a section `data`; without `data_dir`, TFDS uses its own."""
  place = {"data_dir": data_dir} if data_dir else {}
  return {"name": name, "split": split, **place}


def vit(stem_ln: str, **kw) -> dict[str, dict]:
  """Returns `model_name` and `model` of a Vision Transformer.

  `stem_ln` is the model's option, or one of `stems.WORDS`: then `stem` may only
  be that word's, or "patch", the usual default of a config's argument.
  """
  word, stem = stems.WORDS.get(stem_ln, {}), kw.get("stem", "patch")
  if word and stem not in ("patch", word["stem"]):
    raise ValueError(
      f"stem_ln={stem_ln} stands for stem={word['stem']}, got stem={stem}: "
      "give only one of them."
    )
  model = {**MODEL_KW, "stem_ln": stem_ln, **kw, **word}
  return {"model_name": "vit", "model": model}


def from_pretrained(init: str) -> dict:
  """Returns the fields of the paper's transfers, Appendices D and E."""
  return {
    "model_init": init,
    "model_load": NEW_HEAD,
    "grad_clip_norm": 1.0,
    "optax_name": "big_vision.momentum_hp",
    "wd": None,
  }


def by_epoch(lr: float, start: float = 1e-6, warmup: int = 5, **kw) -> dict:
  """Returns DeiT's schedule by epoch: warmup to `lr`, then a cosine to 1e-5."""
  return {
    "warmup_epochs": warmup,
    "warmup_start": start / lr,
    "decay_type": "cosine",
    "decay_in_warmup": True,
    "end": 1e-5 / lr,
    **kw,
    "every_epochs": 1,
  }


def locked_image_tower(init: str, decay: Mapping) -> dict:
  """Returns LiT's fields: the image tower is loaded and stays as it is."""
  return {
    "model_init": {"img": init},
    "model_load": {"img_load_kw": {"dont_load": ["head/.*"]}},
    "schedule": [("img/.*", None), (".*", dict(decay))],
  }


def labels_tail(
  classes: int,
  label: str = "label",
  pixels: str = PIXELS,
  smoothing: float | None = None,
) -> str:
  """Returns the end of a preprocessing string: pixels' range, one-hot."""
  smooth = ""
  if smoothing is not None:
    off = smoothing / classes
    smooth = f", on={1 - smoothing + off}, off={off}"
  return (
    f'|{pixels}|onehot({classes}, key="{label}", '
    f'key_result="labels"{smooth})|keep("image", "labels")'
  )


def classification(data: Mapping, pp_fn: str, loss: str, **kw) -> dict:
  """Returns an evaluator: accuracy and loss on a split."""
  return {
    "type": "classification",
    "data": data,
    "pp_fn": pp_fn,
    "loss_name": loss,
    **kw,
  }


def by_split(splits: Mapping, data: str, *args, **kw) -> dict[str, dict]:
  """Returns a `classification` by `args` and `kw` for each split of a data set.

  The evaluators have the names that are the keys of `splits`.
  """
  return {
    name: classification(source(data, split), *args, **kw)
    for name, split in splits.items()
  }


def imagenet_evals(pp_fn: str, loss: str, log_steps: int) -> dict[str, dict]:
  """Returns the paper's evaluators: `train`, `minival` and `val`.

  Choices are made on `minival`; `val` is reported.
  """
  parts = {"train": "train[:2%]", "minival": "train[99%:]", "val": "validation"}
  return by_split(parts, "imagenet2012", pp_fn, loss, log_steps=log_steps)


def get_fewshot_lsr(
  target_resolution=224, resize_resolution=256, runlocal=False, pp=None, **kw
) -> ml_collections.ConfigDict:
  """Returns an evaluator: linear probes on a few images per class.

  Args:
    target_resolution: pixels after the crop.
    resize_resolution: pixels before the crop.
    runlocal: probe one small data set only.
    pp: preprocessing instead of the default, without its `keep`.
    **kw: further keys of the evaluator; they win over the defaults here.
  """
  if not any(key.startswith("log_") for key in kw):
    kw["log_steps"] = 25_000
  datasets = {"pets": ("oxford_iiit_pet", "train", "test")}
  if not runlocal:
    datasets |= {
      "caltech": ("caltech101", "train", "test"),
      "cars": ("cars196", "train", "test"),
      "cifar100": ("cifar100", "train", "test"),
      "dtd": ("dtd", "train", "test"),
      "uc_merced": ("uc_merced", "train[:1000]", "train[1000:]"),
    }
  pp = pp or (
    f"decode|resize({resize_resolution})|central_crop({target_resolution})"
    "|value_range(-1,1)"
  )
  pp = f'{pp}|keep("image", "label")'
  fields = {
    "type": "fewshot_lsr",
    "representation_layer": "pre_logits",
    "shots": (1, 5, 10, 25),
    "l2_reg": 2.0**10,
    "num_seeds": 3,
    "datasets": datasets,
    **{"pp_train": pp, "pp_eval": pp},
  }
  return ml_collections.ConfigDict(fields | kw)


def imagenet_fewshot(resolution=224, **kw) -> ml_collections.ConfigDict:
  """Returns the paper's 25-shot ImageNet probe; 65,000 images hold 30 a class.

  It crops to `resolution` pixels from 256/224 of that; `kw` are further keys.
  """
  probe = {"imagenet": ("imagenet2012", "train[:65000]", "validation")}
  return get_fewshot_lsr(
    resolution,
    resolution * 8 // 7,
    **({"datasets": probe, "shots": (25,)} | kw),
  )


def place_norms(
  model, sa: str, mlp: str, post: str = "branch", block: str = ""
) -> str:
  """Sets where the blocks of a `config.model` normalize, and returns the arm.

  `sa` and `mlp` are pre, post or pre+post, around self-attention and the MLP;
  `post` is branch, or stream for LN(x + f(x)). Or `block` is a `block_ln` that
  has placements of its own. The arm is called as in Figure 1,
  "sa=post,mlp=pre+post"; it is empty for a plain ViT.
  """
  if block:
    if (sa, mlp, post) != ("pre", "pre", "branch"):
      raise ValueError(
        f"block={block} has placements of its own: leave out sa, mlp, post."
      )
    model["block_ln"] = block
    return block
  model["block_ln_kw"] = {"sa": sa, "mlp": mlp, "post": post}
  arm = f"sa={sa},mlp={mlp}" + ("" if post == "branch" else f",post={post}")
  return "" if arm == "sa=pre,mlp=pre" else arm


def table(
  recipe: str, arch: str, stem_ln: str, metric: str = "val/prec@1", **keys
) -> dict[str, str | int]:
  """Returns `config.table`; see docs/tables.md."""
  arm = "base" if stem_ln == "none" else stem_ln
  return {"recipe": recipe, "arch": arch, "arm": arm, **keys, "metric": metric}


def chosen(folder: str, cell: str) -> dict[str, str]:
  """Returns the arguments that `select_best` has chosen in a folder of runs.

  Raises:
    ValueError: there is no choice for this cell of the sweep.
  """
  path = os.path.join(folder, "selection.json")
  cells = {}
  if os.path.exists(path):
    cells = schema.read_json(path, dict[str, Any]).get("cells") or {}
  if cell not in cells:
    raise ValueError(
      f"{path} has no {cell!r}, which this goes on from. Run python -m "
      f"scripts.select_best {folder or 'FOLDER'} on the finished sweep before, "
      "and give its folder as an argument."
    )
  return dict(kv.split("=") for kv in cells[cell]["candidate"].split(","))


def runlocal(config: ml_collections.ConfigDict):
  """Shrinks a config in place to two steps that two cores can do.

  Batches have 8 images, and evaluation splits their first 8; the model is left
  as it is.
  """
  total = min(2, config.get("total_steps", 2))
  for key in list(config):
    if key.startswith(("total_", "log_training_")):
      del config[key]
  config.total_steps = total
  config.input.batch_size = 8
  config.log_training_steps = 1
  if "table" in config:
    config.table.runlocal = True
  if config.get("schedule"):
    config.schedule = _without_durations(config.schedule)
  for name in config.get("evals", {}):
    section = config.evals[name]
    for key in [k for k in section if k.startswith("log_")]:
      del section[key]
    section.log_steps = 2
    if "data" in section:
      section.data.split = _first(section.data.split)
    if "datasets" in section:
      section.datasets = {
        key: (name, *map(_first, splits))
        for key, (name, *splits) in section.datasets.items()
      }


def _first(split: str) -> str:
  return split.partition("[")[0] + "[:8]"


def _without_durations(schedule):
  if isinstance(schedule, list | tuple):  # for parameters by pattern
    return [(p, s and _without_durations(s).to_dict()) for p, s in schedule]
  units = ("_steps", "_epochs", "_examples", "_percent")
  keep = {k: v for k, v in schedule.items() if not k.endswith(units)}
  return ml_collections.ConfigDict(keep | {"warmup_steps": 1})
