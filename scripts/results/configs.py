"""Compares the configs of runs: their arms, and what else they differ in."""

import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from flax import traverse_util

from dpn.trainers import workdir

PLAIN_BLOCK = "sa=pre,mlp=pre"
# What an option of dpn.models.placement is when it is not given.
_DEFAULTS = {"post": "branch", "head_scale": "heads", "mlp_ln": "after_act"}
# Choices besides stem_ln and block that make an arm: what a plain ViT has, and
# options that say how a recipe's own models are, not which arm this is.
_CHOICES = {
  "stem": ("patch", ()),
  "norm": ("layernorm", ("eps",)),
  "posemb_join": ("add", ("cls",)),
}
# What an arm is made of, so that it does not tell rows apart.
_OF_ARM = re.compile(
  r"model/(stem_ln|block_ln|stem|norm|posemb_join)"
  r"|model/image/(stem_ln|block_ln|stem|norm|posemb_join)"
  r"|model/image/(block_ln|stem|posemb_join)_kw/.*"
)
_MOST_FIELDS = 3  # in the name of a row
# May differ between the seeds of a cell: where things are, what is watched.
_FREE = re.compile(
  r"(seed|table|evals|mesh|sharding_strategy|wandb|input/seed)(/.*)?"
  r"|log_.*|cache_.*|strict_evals|deterministic"
)
# What a run starts from: other parameters for each seed, "runs/dpn-s0" or
# "runs/dpn/0", but "runs/dpn/checkpoints/800" is no seed.
_INIT = re.compile(r"model_init(/.*)?")
_SEED = re.compile(
  r"(?<![a-zA-Z0-9])(s|seed)[-_=]?\d+(?![a-zA-Z0-9])"
  r"|(?<=/)(?<!checkpoints/)\d+(?=/|$)"
)


def arm(model: Mapping[str, Any]) -> str:
  """Returns the arm of config.model, "" for a plain ViT.

  That is its stem, block, normalizer and join of positions, as far as they are
  others than a plain ViT's: "dpn+sub_ln", "dtn,pos_init=released", "lape".
  """
  stem = model.get("stem_ln") or "none"
  parts = [*([stem] if stem != "none" else []), _block(model)]
  parts += [_choice(model, key) for key in _CHOICES]
  return "+".join(filter(None, parts))


def _choice(model, key):
  """Returns one of `_CHOICES` with its options, "" for a plain ViT's."""
  plain, ignored = _CHOICES[key]
  name, kw = model.get(key) or plain, dict(model.get(f"{key}_kw") or {})
  if kw.get("norm") == "layernorm":  # LaPE's default
    del kw["norm"]
  kw = [
    f"{k}={v}" for k, v in kw.items() if v is not False and k not in ignored
  ]
  return "" if name == plain and not kw else ",".join([name, *kw])


def _block(model):
  """Returns the placement of LayerNorms in blocks; "" for the usual one."""
  name, kw = model.get("block_ln"), dict(model.get("block_ln_kw") or {})
  parts = [name]
  if name in (None, "placement"):
    parts, kw = [], {"sa": "pre", "mlp": "pre"} | kw
    if kw["sa"] == kw["mlp"] == "pre":
      kw.pop("post", None)  # of nothing
  kw = {k: v for k, v in kw.items() if v != _DEFAULTS.get(k, ...)}
  text = ",".join([*parts, *(f"{k}={v}" for k, v in kw.items())])
  return "" if text == PLAIN_BLOCK else text


def _flat(config):
  """Returns the fields of a config by names such as "input/data/name".

  Of `model_init` without the seed, of `subset_seed` only whether it is set.
  """
  flat = traverse_util.flatten_dict(dict(config), sep="/")
  flat = {k: v for k, v in flat.items() if not k.startswith("model/block_ln")}
  model = config.get("model") or {}
  flat["model/block_ln"] = _block(model) or None
  for key, (_, kept) in _CHOICES.items():
    others = [k for k in flat if k.startswith(f"model/{key}_kw/")]
    for name in others:
      if name.rpartition("/")[2] not in kept:
        del flat[name]
    flat[f"model/{key}"] = _choice(model, key) or None
  if "input/data/subset_seed" in flat:
    flat["input/data/subset_seed"] = "*"
  for name in [*filter(_INIT.fullmatch, flat)]:
    flat[name] = _SEED.sub("*", str(flat[name] or "")) or None
  return {k: v for k, v in flat.items() if v is not None}


def image_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
  """Returns the options of config.model, or of the image tower of two."""
  model = config.get("model") or {}
  return model["image"] if isinstance(model.get("image"), Mapping) else model


def row_hash(config: Mapping[str, Any]) -> str:
  """Returns what runs without config.table share with others of their row.

  Arms may start from parameters of their own, but not some and others not.
  """
  same = {
    k: "set" if _INIT.fullmatch(k) else v
    for k, v in _flat(config).items()
    if not _OF_ARM.fullmatch(k) and not is_free(k)
  }
  return workdir.config_hash(same)


def told_apart(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
  """Returns by which few fields configs differ, but for their arm, by name.

  For example {"a": "lr = 0.001", "b": "lr = 0.01"}; {} if they are too many to
  make a name.
  """
  if len(configs) < 2:
    return {}
  table = fields(configs.values()).set_axis([*configs])
  for field in filter(_INIT.fullmatch, table):  # as for `row_hash`
    table[field] = table[field].where(table[field] == "absent", "set")
  differ = [
    field
    for field in table
    if table[field].nunique() > 1
    and not is_free(field)
    and not _OF_ARM.fullmatch(field)
  ]
  if not 1 <= len(differ) <= _MOST_FIELDS:
    return {}
  called = {f: f.replace("/", ".") for f in differ}
  return {
    name: ", ".join(f"{called[f]} = {row[f]}" for f in differ)
    for name, row in table.iterrows()
  }


def differing(
  configs: Iterable[Mapping[str, Any]], arms: bool = False
) -> dict[str, list[str]]:
  """Returns in which fields, "a.b", runs differ though they may not, and how.

  Args:
    configs: of the runs of a cell.
    arms: whether they are of several arms, which may start from parameters of
      their own.
  """
  configs = list(configs)
  table = fields(configs)
  if arms:
    table = table.drop(columns=[*filter(_OF_ARM.fullmatch, table)])
    for name in filter(_INIT.fullmatch, table):
      if table[name].nunique() > 1:
        table[name] = table[name].str.replace(_names(configs), "*", regex=True)
  return {
    name.replace("/", "."): list(values.unique())
    for name, values in table.items()
    if values.nunique() > 1 and not is_free(name)
  }


def _names(configs):
  """Returns the pattern of what paths may call the arms of configs."""
  arms = {arm(image_model(config)) for config in configs}
  # The longest first: "dpn+patch_stats" before "dpn"; "." is any letter.
  names = [re.sub(r"\W", ".", name) for name in sorted(arms, key=len)[::-1]]
  anyone = "|".join(name or "none|base|plain" for name in names)
  return re.compile(rf"(?<![a-zA-Z0-9])({anyone})(?![a-zA-Z0-9])")


def is_free(field: str) -> bool:
  """Returns whether a field, "a/b", may differ among the runs of a cell."""
  return bool(_FREE.fullmatch(field) or workdir.RESUMABLE_KEYS.fullmatch(field))


def fields(configs: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
  """Returns configs as JSON text, (runs, fields), "absent" where unset."""
  dumps = functools.partial(json.dumps, ensure_ascii=False)
  flat = [{k: dumps(v) for k, v in _flat(config).items()} for config in configs]
  return pd.DataFrame(flat).fillna("absent").sort_index(axis=1)
