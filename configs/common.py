"""What configs share: their arguments, augmentation presets, the probe.

`config.table` says which cell of the paper's tables a run fills; docs/tables.md
lists its keys.
"""

import ast
import difflib

import ml_collections

# Appendix C of arXiv 2302.01327, after Steiner et al., arXiv 2106.10270.
RANDAUG_DEF = {
  "none": "",
  "light1": "randaug(2,0)",  # not nothing: magnitude 0 still inverts, rotates …
  "light2": "randaug(2,10)",
  "medium1": "randaug(2,15)",
  "medium2": "randaug(2,15)",
  "strong1": "randaug(2,20)",
  "strong2": "randaug(2,20)",
}
MIXUP_DEF = {
  "none": {"p": 0.0, "fold_in": None},
  "light1": {"p": 0.0, "fold_in": None},
  "light2": {"p": 0.2, "fold_in": None},
  "medium1": {"p": 0.2, "fold_in": None},
  "medium2": {"p": 0.5, "fold_in": None},
  "strong1": {"p": 0.5, "fold_in": None},
  "strong2": {"p": 0.8, "fold_in": None},
}


# Part of every config.model, so that each can be set from the command line:
# --config.model.norm_kw.eps=1e-5.
MODEL_KW = {
  "stem_kw": {},
  "posemb_kw": {},
  "posemb_join_kw": {},
  "block_ln_kw": {},
  "norm_kw": {},
}


def nearest(kind: str, got: str, known) -> ValueError:
  """Returns the error for an unknown name, with the nearest known one."""
  known = sorted(map(str, known))
  near = difflib.get_close_matches(str(got), known, n=1, cutoff=0.5)
  hint = f" Did you mean {near[0]!r}?" if near else ""
  return ValueError(f"Unknown {kind} {got!r}.{hint} Known: {', '.join(known)}.")


def choose(kind: str, got: str, table):
  """Returns `table[got]`, or raises ValueError naming the nearest key."""
  if got not in table:
    raise nearest(kind, got, table)
  return table[got]


def parse_arg(arg: str | None, **spec) -> ml_collections.ConfigDict:
  """Returns the arguments of a config, with dots.

  Args:
    arg: what follows the colon on the command line, "name=value,flag,…". A
      boolean needs no value. A single value without a name is for the first
      argument of `spec`, unless it is the name of a boolean. An item of an
      argument that is a dictionary is "name.key=value".
    **spec: default of each argument, whose type the value is converted to; or
      (default, function that converts a string). A dictionary's values are
      Python literals or else text.

  Raises:
    ValueError: on an unknown name or a value of another type.
  """
  given = {}
  for part in filter(None, (arg or "").split(",")):
    name, has_value, value = part.partition("=")
    if not has_value and name not in spec and "," not in arg:
      name, value = next(iter(spec)), part
    elif not has_value:
      value = "True"
    name, has_key, key = name.partition(".")
    if has_key and isinstance(spec.get(name), dict):
      given.setdefault(name, {})[key] = _literal(value)
      continue
    if name not in spec:
      raise nearest("config argument", name, spec)
    given[name] = value
  result = ml_collections.ConfigDict(type_safe=False)
  for name, default in spec.items():
    default, convert = (
      default if isinstance(default, tuple) else (default, None)
    )
    result[name] = default
    if isinstance(default, dict):
      result[name] = default | given.get(name, {})
    elif name in given:
      convert = convert or (
        _bool if isinstance(default, bool) else type(default)
      )
      try:
        result[name] = convert(given[name])
      except ValueError as e:
        raise ValueError(
          f"Config argument {name}={given[name]!r}: expected something like "
          f"{default!r}."
        ) from e
  return result


def _literal(text: str):
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def _bool(text: str) -> bool:
  table = {"true": True, "1": True, "false": False, "0": False, "": False}
  if text.lower() not in table:
    raise ValueError(text)
  return table[text.lower()]


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
  config = ml_collections.ConfigDict(
    {
      "type": "fewshot_lsr",
      "representation_layer": "pre_logits",
      "shots": (1, 5, 10, 25),
      "l2_reg": 2.0**10,
      "num_seeds": 3,
    }
  )
  if not any(key.startswith("log_") for key in kw):
    config.log_steps = 25_000
  small = {"pets": ("oxford_iiit_pet", "train", "test")}
  config.datasets = small | (
    {}
    if runlocal
    else {
      "caltech": ("caltech101", "train", "test"),
      "cars": ("cars196", "train", "test"),
      "cifar100": ("cifar100", "train", "test"),
      "dtd": ("dtd", "train", "test"),
      "uc_merced": ("uc_merced", "train[:1000]", "train[1000:]"),
    }
  )
  pp = pp or (
    f"decode|resize({resize_resolution})|central_crop({target_resolution})"
    "|value_range(-1,1)"
  )
  config.pp_train = config.pp_eval = f'{pp}|keep("image", "label")'
  for key, value in kw.items():
    config[key] = value  # not update(), which would merge the data sets
  return config


def imagenet_fewshot(resolution=224, **kw) -> ml_collections.ConfigDict:
  """Returns the paper's 25-shot ImageNet probe; 65,000 images hold 30 a class.

  Args:
    resolution: pixels after the crop; 256/224 of it before.
    **kw: further keys of the evaluator.
  """
  probe = {"imagenet": ("imagenet2012", "train[:65000]", "validation")}
  return get_fewshot_lsr(
    resolution,
    resolution * 8 // 7,
    **({"datasets": probe, "shots": (25,)} | kw),
  )


def need_init(name: str, arg: ml_collections.ConfigDict):
  """Raises ValueError if a config that needs `arg.init` is not given one."""
  if not arg.init and not arg.runlocal:
    raise ValueError(
      f"{name} needs the model to start from: append init=/path/to/"
      "params.safetensors (or .npz) to the config's arguments."
    )


def labels_tail(
  classes: int, label: str = "label", pixels: str = "value_range(-1, 1)"
) -> str:
  """Returns the end of a preprocessing string: pixels' range, one-hot."""
  return (
    f'|{pixels}|onehot({classes}, key="{label}", '
    'key_result="labels")|keep("image", "labels")'
  )


def imagenet_evals(pp_fn: str, loss: str, log_steps: int) -> dict[str, dict]:
  """Returns the paper's evaluators: `train`, `minival` and `val`.

  Choices are made on `minival`; `val` is reported.

  Args:
    pp_fn: preprocessing.
    loss: its name.
    log_steps: how often they run.
  """
  splits = {
    "train": "train[:2%]",
    "minival": "train[99%:]",
    "val": "validation",
  }
  return {
    name: {
      "type": "classification",
      "data": {"name": "imagenet2012", "split": split},
      "pp_fn": pp_fn,
      "loss_name": loss,
      "log_steps": log_steps,
    }
    for name, split in splits.items()
  }


def place_norms(model, sa: str, mlp: str, post: str = "branch") -> str:
  """Sets where the blocks of a `config.model` normalize.

  Args:
    model: the section.
    sa: pre, post or pre+post, around self-attention.
    mlp: the same, around the MLP.
    post: branch, or stream for LN(x + f(x)).

  Returns:
    The arm in Figure 1, "sa=post,mlp=pre+post"; empty for a plain ViT.
  """
  model.block_ln_kw = {"sa": sa, "mlp": mlp, "post": post}
  arm = f"sa={sa},mlp={mlp}" + ("" if post == "branch" else f",post={post}")
  return "" if arm == "sa=pre,mlp=pre" else arm


def table(
  recipe: str, arch: str, stem_ln: str, metric: str = "val/prec@1", **keys
) -> dict[str, str | int]:
  """Returns `config.table`; see docs/tables.md."""
  arm = "base" if stem_ln == "none" else stem_ln
  return {
    "recipe": recipe,
    "arch": arch,
    "arm": arm,
    **keys,
    "metric": metric,
  }


def parse_sweep(arg: str | None, **spec) -> ml_collections.ConfigDict:
  """Returns the arguments of a sweep, as `parse_arg` does.

  A tuple of text among the defaults is written "a+b". Every sweep has `seeds`
  (how many, from 0; 1 unless `spec` says otherwise) and `runlocal`.
  """
  spec = {"seeds": 1, **spec, "runlocal": False}
  for name, default in spec.items():
    if isinstance(default, tuple):
      spec[name] = (default, lambda text: tuple(text.split("+")))
  return parse_arg(arg, **spec)


def arms(
  sweep: ml_collections.ConfigDict, name: str, *, first_seed: int = 0, **given
) -> list[dict]:
  """Returns an arm of a sweep for each seed: its name, argument and seed.

  Args:
    sweep: as `parse_sweep` returns it.
    name: unique among the arms, but for the seed.
    first_seed: the others follow.
    **given: arguments of the config. In their text, "{seed}" becomes the seed,
      "{variant}" the variant without its slash, and so on.
  """
  if sweep.runlocal:
    given["runlocal"] = True

  def fill(text, values):
    for key, value in values.items():
      text = text.replace(f"{{{key}}}", str(value).replace("/", ""))
    return text

  result = []
  for seed in range(first_seed, first_seed + sweep.seeds):
    values = given | {"seed": seed}
    parts = [f"{key}={fill(str(v), values)}" for key, v in values.items()]
    result.append(
      {"name": name.replace("/", ""), "arg": ",".join(parts), "seed": seed}
    )
  return result


def runlocal(config: ml_collections.ConfigDict):
  """Shrinks a config in place to two steps that two cores can do.

  Batches of 8, the first 8 images of each evaluation split; the model stays
  what it is.
  """
  for key in list(config):
    if key.startswith(("total_", "log_training_")):
      del config[key]
  config.total_steps = 2
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
