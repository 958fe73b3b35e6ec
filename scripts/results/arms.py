"""Names arms by what their configs change, and finds what else they change.

An arm is what its config changes in a plain run's config. Stems, blocks,
normalizers and joins of positions have the paper's short names, "dpn" or
"sa=post,mlp=pre"; every other field is written out: "dpn+qk_norm=rmsnorm",
"mixup.p=0.2". Seeds, paths, evaluations and logging never make an arm.
"""

import collections
import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import flax
import pandas as pd

from dpn import stems
from dpn.evaluators import base as evaluators_base
from dpn.models import vit
from dpn.trainers import workdir

BASE = "base"  # a plain ViT
PLAIN_BLOCK = "sa=pre,mlp=pre"
ABSENT = "absent"
MOST_FIELDS = 3  # that name an arm or a row; more are another experiment
# The defaults of dpn.models.placement's options.
_PLACEMENT = {"post": "branch", "head_scale": "heads", "mlp_ln": "after_act"}
# Options whose value alone names an arm; of each, the own options that do not
# name arms but belong to a recipe's models.
_NAMED = {"stem": (), "norm": ("eps",), "posemb_join": ("cls",)}
# Options in which recipes differ: they name an arm only beside runs of the same
# row that have another value. All others of `vit.Config` always do.
_OF_RECIPE = {
  *("width", "depth", "mlp_dim", "num_heads", "patch_size", "posemb"),
  *("pool_type", "rep_size", "cls_blocks", "gelu", "qkv_bias", "final_norm"),
}
_OPTION = re.compile(r"model/(?:image/)?(\w+?)(?:_kw)?(?:/(.+))?")
# May differ between the seeds of an arm: where things are, what is watched.
_FREE = re.compile(
  r"(seed|table|evals|mesh|sharding_strategy|wandb|input/seed)(/.*)?"
  r"|log_.*|cache_.*|strict_evals|deterministic|workdir|class_names"
)
# What decides no result of an evaluator, or is no more than a name.
_OF_EVALUATION = ("batch_size", "cache", "prefix", "skip_first")
# Results on other data do not compare: these fields tell rows apart, not arms.
_TASK = re.compile(r"(task|num_classes|loss|input/(data|val).*)")
# What a run starts from. Each seed may have parameters of its own, so the seed
# in a run's folder, "runs/dpn-s0" or "runs/dpn/0", does not count; numbers
# in "vit-s16.npz", "runs/90/dpn" and "runs/dpn/checkpoints/800" are no seeds.
_INIT = re.compile(r"model_init(/.*)?")
_SEED = re.compile(
  r"(?<![a-zA-Z0-9])(s|seed)[-_=]?\d+(?=/|$)"
  r"|(?<=/)(?<!checkpoints/)\d+(?=(/(params|checkpoints).*)?$)"
)
Config = Mapping[str, Any]


@functools.cache
def _every_default():
  """Returns the default of each option of the model."""
  return {f.name: f.default for f in dataclasses.fields(vit.Config)}


@functools.cache
def _defaults():
  """Returns the defaults of the options that name arms."""
  own = {*_OF_RECIPE, *vit.Config.TRAINING_ONLY}
  return {k: v for k, v in _every_default().items() if k not in own}


def extended(
  called: str, changes: Mapping[str, str], plain: Mapping[str, str | None]
) -> str:
  """Returns the name of an arm with further fields, as JSON by path.

  Preprocessing with as many ops as the plain arm's shows those that differ.
  """
  parts = [] if called == BASE and len(changes) else [called]
  for field, value in changes.items():
    short = re.sub(r"^model/(image/)?", "", field).replace("/", ".")
    both = value, plain.get(field) or ""
    ops, usual = (text.strip('"').split("|") for text in both)
    if len(ops) == len(usual) > 1:
      pairs = zip(usual, ops, strict=True)
      ops = [f"{old}->{new}" for old, new in pairs if old != new]
    parts.append(f"{short}={'|'.join(ops)}")
  return "+".join(parts)


def image_model(config: Config) -> Config:
  """Returns the options of config.model, or of the image tower of two."""
  model = config.get("model") or {}
  return model["image"] if isinstance(model.get("image"), Mapping) else model


def says_arm(model: Config) -> bool:
  """Returns whether config.model sets an option that names arms."""
  return any(_is_arm(f"model/{key}") for key in model)


def model_name(model: Config) -> str:
  """Returns the arm of config.model: "dpn+sub_ln", "lape"; "" if plain."""
  defaults = _defaults()
  model = stems.spelled(model)
  stem = model.get("stem_ln") or defaults["stem_ln"]
  # "patch_stats" alone would be Dual PatchNorm with it.
  alone = stems.WORDS.get(model.get("stem"), {}).get("stem_ln", stem)
  parts = ["" if stem == alone == defaults["stem_ln"] else stem, _block(model)]
  parts += [_choice(model, key) for key in _NAMED]
  named = {"stem_ln", "block_ln", "block_ln_kw", *_NAMED}
  named |= {f"{key}_kw" for key in _NAMED}
  for key in sorted(defaults.keys() - named):
    value = model.get(key)
    if isinstance(value, Mapping):
      parts += [f"{key}.{k}={v}" for k, v in value.items()]
    elif value not in (None, defaults[key]):
      parts.append(f"{key}={value}")
  return "+".join(filter(None, parts))


def _choice(model, key):
  """Returns an option of `_NAMED` with its own options, "" if plain."""
  plain = _defaults()[key]
  chosen, kw = model.get(key) or plain, dict(model.get(f"{key}_kw") or {})
  if kw.get("norm") == "layernorm":  # LaPE's default
    del kw["norm"]
  kw = [
    f"{k}={v}" for k, v in kw.items() if v is not False and k not in _NAMED[key]
  ]
  return "" if chosen == plain and not kw else ",".join([chosen, *kw])


def _block(model):
  """Returns the placement of LayerNorms in blocks; "" for the usual one."""
  block, kw = model.get("block_ln"), dict(model.get("block_ln_kw") or {})
  parts = [block]
  if block in (None, "placement"):
    parts, kw = [], {"sa": "pre", "mlp": "pre"} | kw
    if kw["sa"] == kw["mlp"] == "pre":
      kw.pop("post", None)  # nothing is "post"
  kw = {k: v for k, v in kw.items() if v != _PLACEMENT.get(k, ...)}
  text = ",".join([*parts, *(f"{k}={v}" for k, v in kw.items())])
  return "" if text == PLAIN_BLOCK else text


def _is_arm(field):
  """Returns whether `model_name` expresses a field, as "model/stem_ln"."""
  match = _OPTION.fullmatch(field)
  if not match or match[1] not in _defaults():
    return False
  return match[2] not in _NAMED.get(match[1], ())


def is_free(field: str) -> bool:
  """Returns whether a field, "a/b", may differ among the seeds of an arm."""
  return bool(_FREE.fullmatch(field) or workdir.RESUMABLE_KEYS.fullmatch(field))


def _flat(config):
  """Returns the fields of a config by names such as "input/data/name".

  Blocks, stems and norms are one field each, by the paper's name. `model_init`
  is without the seed; `subset_seed` says only whether it is set.
  """
  flat = flax.traverse_util.flatten_dict(dict(config), sep="/")
  model, whole = image_model(config), config.get("model") or {}
  prefix = "model/image/" if model is whole.get("image") else "model/"
  model = stems.spelled(model)
  flat[prefix + "stem_ln"] = model.get("stem_ln")
  for key in ("block_ln", *_NAMED):
    kept = [f"{prefix}{key}_kw/{option}" for option in _NAMED.get(key, ())]
    for field in [f for f in flat if f.startswith(f"{prefix}{key}_kw/")]:
      if field not in kept:
        del flat[field]
    spelled = _block(model) if key == "block_ln" else _choice(model, key)
    flat[prefix + key] = spelled or None
  for field in [f for f in flat if f.endswith("data/subset_seed")]:
    flat[field] = "*"
  for field in [*filter(_INIT.fullmatch, flat)]:
    flat[field] = _SEED.sub("*", str(flat[field] or "")) or None
  return {k: v for k, v in flat.items() if v is not None}


def fields(configs: Iterable[Config]) -> pd.DataFrame:
  """Returns configs as JSON text, (runs, fields), "absent" where unset."""
  dumps = functools.partial(json.dumps, ensure_ascii=False)
  flat = [{k: dumps(v) for k, v in _flat(config).items()} for config in configs]
  return pd.DataFrame(flat).fillna(ABSENT).sort_index(axis=1)


def _filled_in(table):
  """Returns `fields` with the model's defaults in place of "absent"."""
  return table.apply(lambda x: x.replace(ABSENT, _default(x.name)))


def _default(field):
  """Returns a field's default as JSON; "absent" if it has none."""
  match = _OPTION.fullmatch(field)
  if not match or match[2] or match[1] not in (defaults := _every_default()):
    return ABSENT
  return json.dumps(defaults[match[1]], default=dict)


def row_hash(config: Config) -> str:
  """Returns a hash of what runs without config.table share within a row.

  Arms may start from parameters of their own, but then all of them must.
  """
  same = {
    k: "set" if _INIT.fullmatch(k) else v
    for k, v in _flat(config).items()
    if not _is_arm(k) and not is_free(k)
  }
  return workdir.config_hash(same)


def told_apart(configs: Mapping[str, Config]) -> pd.DataFrame:
  """Returns the few fields, apart from their arms, in which configs differ.

  The shape is (names, fields), the values are JSON. There is no field if more
  than `MOST_FIELDS` differ, too many to make a name.
  """
  table = _filled_in(fields(configs.values())).set_axis([*configs])
  for field in filter(_INIT.fullmatch, table):  # as for `row_hash`
    table[field] = table[field].where(table[field] == ABSENT, "set")
  differ = [
    field
    for field in table
    if table[field].nunique() > 1 and not is_free(field) and not _is_arm(field)
  ]
  return table[[] if len(differ) > MOST_FIELDS else differ]


def are_settings(fields_: Iterable[str]) -> bool:
  """Returns whether fields may name arms: none sets the task or the start."""
  return not any(_TASK.fullmatch(f) or _INIT.fullmatch(f) for f in fields_)


def within_row(
  configs: Sequence[Config], names: Sequence[str], no_plain: bool = False
) -> list[str]:
  """Returns the names of a row's arms, made distinct where two share a name.

  Runs of a name that differ in few fields get these in their names: "base" and
  "pool_type=map". The plain name goes to the model's default, or else to what
  most runs of the row have. Where there is neither, all keep the common name,
  or with `no_plain` all get the field in their names.
  """
  if len(set(names)) == len(names):
    return [*names]
  table, named = _filled_in(fields(configs)), [*names]
  for called in dict.fromkeys(names):
    places = [i for i, other in enumerate(names) if other == called]
    found = table.iloc[places]
    differ = [f for f in table if found[f].nunique() > 1 and not is_free(f)]
    if {"lr", "wd"} <= {*differ} and _decays_as_rate(found):
      differ.remove("wd")
    plain = {field: _plain(table[field]) for field in differ}
    if (
      len(differ) > MOST_FIELDS
      or not are_settings(differ)
      or (None in plain.values() and not no_plain)
    ):
      continue
    for i in places:
      changes = {f: table[f].iloc[i] for f in differ}
      changes = {f: v for f, v in changes.items() if v != plain[f]}
      named[i] = extended(called, changes, plain)
  return named


def _decays_as_rate(found) -> bool:
  """Returns whether config.wd is the same multiple of config.lr in all rows."""
  decay, rate = (pd.to_numeric(found[f], errors="coerce") for f in ("wd", "lr"))
  return bool((decay / rate).round(9).nunique(dropna=False) == 1)


def _plain(values):
  """Returns the value of a field that an arm is not named after, or None."""
  if (default := _default(values.name)) in set(values):
    return default
  (value, count), *_ = collections.Counter(values).most_common(1)
  return value if 2 * count > len(values) else None


def differing(
  configs: Iterable[Config], arms: bool = False
) -> dict[str, list[str]]:
  """Returns the fields, "a.b", in which runs differ but must not, with values.

  Of evaluators it compares the one that config.table.metric names, among the
  runs that have it: older archives do not.

  Args:
    configs: of the runs of a cell.
    arms: whether they are of several arms, which may start from parameters of
      their own.
  """
  configs = list(configs)
  table = _filled_in(fields(configs))
  if arms:
    table = table.drop(columns=[*filter(_is_arm, table)])
    for field in filter(_INIT.fullmatch, table):
      if table[field].nunique() > 1:
        pattern = _names(configs)
        table[field] = table[field].str.replace(pattern, "*", regex=True)
  compared = {f: values for f, values in table.items() if not is_free(f)}
  for section in {evaluator(config) for config in configs}:
    of = table.filter(regex=f"^evals/{re.escape(section)}/")
    of = of[of.ne(ABSENT).any(axis=1)]
    defaults = _evaluator_defaults(
      section, tuple(of.get(f"evals/{section}/type", ()))
    )
    for field, values in of.items():
      name = field.removeprefix(f"evals/{section}/")
      if not is_free(name) and name not in _OF_EVALUATION:
        compared[field] = values.replace(ABSENT, defaults.get(name, ABSENT))
  return {
    field.replace("/", "."): list(values.unique())
    for field, values in compared.items()
    if values.nunique() > 1
  }


@functools.cache
def _evaluator_defaults(section, kinds):
  """Returns an evaluator's defaults as JSON, by field, if its type is ours."""
  kind = next((json.loads(x) for x in kinds if x != ABSENT), section)
  found = {"type": json.dumps(section)}
  known = kind in evaluators_base.TYPES
  for x in dataclasses.fields(evaluators_base.find(kind)) if known else ():
    if isinstance(x.default, str | int | float | tuple | None):
      found[x.name] = json.dumps(x.default)
  return found


def evaluator(config: Config) -> str:
  """Returns the name of the evaluator that config.table.metric is from."""
  metric = (config.get("table") or {}).get("metric") or ""
  return metric.partition("/")[0]


def _names(configs):
  """Returns the pattern of what paths may call the arms of configs."""
  arms = {model_name(image_model(config)) for config in configs}
  # The longest first: "dpn+patch_stats" before "dpn"; "." is any letter.
  patterns = [re.sub(r"\W", ".", arm) for arm in sorted(arms, key=len)[::-1]]
  anyone = "|".join(pattern or "none|base|plain" for pattern in patterns)
  return re.compile(rf"(?<![a-zA-Z0-9])({anyone})(?![a-zA-Z0-9])")
