"""The options of `vit.Model` that say what function its parameters compute.

Stands in for `vit.options` until the model's options are plain fields.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpn.models import norms, placement, posemb, posemb_join, vit

_PLAIN = (
  "num_classes",
  "patch_size",
  "width",
  "depth",
  "mlp_dim",
  "num_heads",
  "stem_ln",
  "posemb",
  "gelu",
  "qkv_bias",
  "rep_size",
  "pool_type",
)


def options(model) -> dict[str, Any]:
  """Returns the options of a `vit.Model`, JSON-able, defaults resolved."""
  result = {name: getattr(model, name) for name in _PLAIN}
  result["posemb"] = model.posemb.partition(",")[0]
  result["stem"], result["stem_kw"] = "patch", {}
  if model.conv_stem:
    kernel_size, num_layers = model.conv_stem
    result["stem"] = "conv"
    result["stem_kw"] = {"kernel_size": kernel_size, "num_layers": num_layers}
  norm = norms.make(model.norm)
  result["norm"] = model.norm.partition(",")[0]
  result["norm_kw"] = {
    f.name: getattr(norm, f.name)
    for f in dataclasses.fields(norm)
    if f.name not in ("parent", "name", "layout", "dtype")
  }
  join = posemb_join.get(model.posemb_join)
  result["posemb_join"] = model.posemb_join.partition(",")[0]
  result["posemb_join_kw"] = dataclasses.asdict(join)
  block = placement.get(model.block_ln)
  result["block_ln"] = model.block_ln.partition(",")[0]
  result["block_ln_kw"] = dataclasses.asdict(block)
  if "=" in result["block_ln"]:
    keys = ("sa", "mlp", "post")
    result["block_ln"] = "placement"
    result["block_ln_kw"] = {k: getattr(block, k) for k in keys}
  return json.loads(json.dumps(result))


def make(options: Mapping[str, Any]):
  """Returns the `vit.Model` with these options; the inverse of `options`."""
  kw = dict(options)
  if kw.pop("stem", "patch") == "conv":
    stem_kw = kw.pop("stem_kw")
    kw["conv_stem"] = [stem_kw["kernel_size"], stem_kw["num_layers"]]
  kw.pop("stem_kw", None)
  kw.pop("posemb_kw", None)
  for name in ("norm", "posemb_join", "block_ln"):
    if f"{name}_kw" in kw or name in kw:
      text = kw.get(name, getattr(vit.Model(), name))
      given = [f"{k}={v}" for k, v in kw.pop(f"{name}_kw", {}).items()]
      if text in placement.PRESETS:
        given = []
      given = [text] * (text != "placement") + given
      kw[name] = ",".join(given)
  return vit.Model(**kw)


def posemb_table(options: Mapping[str, Any], grid: tuple[int, int], row: bool):
  """Returns fixed positions (1, tokens, width), None if they are not.

  Args:
    options: of the model.
    grid: (rows, cols) of patches.
    row: whether a first one is for the class token.
  """
  if options["posemb"] in ("learn", "rpe"):
    return None
  kind = posemb.get_kind(options["posemb"])
  return np.asarray(kind.table(None, grid, options["width"], int(row)))
