"""Says which cell of the paper's tables a run fills.

`config.table` says it (see configs/common.py). Where a run has none, as when
it is older or its config is somebody's own, ordinary fields do: data, loss,
resolution, length, model.variant and stem.
"""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.results import runs
from trainers import workdir

BASE, DPN = "base", "dpn"
PLAIN_BLOCK = "sa=pre,mlp=pre"
# May differ between the seeds of a cell: where things are, what is watched.
_FREE = re.compile(
  r"(seed|table|evals|mesh|sharding_strategy|wandb|input/seed)(/.*)?"
  r"|model_init|log_.*|cache_.*|strict_evals|deterministic"
)


@dataclasses.dataclass(frozen=True)
class Cell:
  """What a run has in common with the other seeds of its cell.

  Attributes:
    recipe: as in configs/common.py; the data set's name if it is none of them.
    arm: "base" for a plain ViT, else the stem or the placement of LayerNorms.
    keys: further names and values, as the rows of paper_tables.json have them.
    metric: what the config names as its result, "" if nothing.
  """

  recipe: str
  arm: str
  keys: tuple[tuple[str, Any], ...]
  metric: str = ""

  def get(self, key: str) -> str:
    """Returns the value of a row's key, "" if the run has none."""
    return str({"recipe": self.recipe, **dict(self.keys)}.get(key, ""))

  def title(self) -> str:
    """Returns recipe, model and what else tells cells apart, not the arm."""
    others = [
      f"{key.replace('_', ' ')} {value}" if isinstance(value, int) else value
      for key, value in self.keys
      if key != "arch" and value
    ]
    named = filter(None, (self.recipe, self.get("arch"), *others))
    return " ".join(map(str, named))


def of(run: runs.Run) -> Cell | None:
  """Returns the cell of a run, None for a trial run of `runlocal`."""
  table = dict(run.config.get("table") or {})
  if table.get("runlocal"):
    return None
  derived = _derived(run.config)
  recipe = table.pop("recipe", derived.pop("recipe"))
  arm = _arm(run.config.get("model") or {}, table.pop("arm", BASE))
  keys = {**derived, **table}
  for name in ("runlocal", "candidate"):
    keys.pop(name, None)
  metric = keys.pop("metric", "")
  return Cell(recipe, arm, tuple(sorted(keys.items())), metric)


def is_candidate(run: runs.Run) -> bool:
  """Returns whether a run counts only if a selection names it."""
  return bool((run.config.get("table") or {}).get("candidate"))


def differences(repetitions: Sequence[runs.Run]) -> dict[str, list[str]]:
  """Returns what the configs of a cell's runs differ in, beside the seed.

  Returns:
    Dotted name of a field → its values, in the order of the runs.
  """
  flat = [flatten(run.config) for run in repetitions]
  names = sorted({name for config in flat for name in config})
  found = {}
  for name in names:
    if is_free(name):
      continue
    values = [_canonical(name, config.get(name)) for config in flat]
    if any(value != values[0] for value in values):
      found[name.replace("/", ".")] = [str(value) for value in values]
  return found


def is_free(name: str) -> bool:
  """Returns whether a field, "a/b", may differ among the runs of a cell."""
  return bool(_FREE.fullmatch(name) or workdir.RESUMABLE_KEYS.fullmatch(name))


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  """Returns a config's values by names such as "input/data/name"."""
  flat = {}
  for name, value in config.items():
    if isinstance(value, Mapping):
      flat |= flatten(value, f"{prefix}{name}/")
    else:
      flat[prefix + name] = value
  return flat


def _canonical(name, value):
  """Returns a value of a field, one for all ways to write its default."""
  return _block(value) if name == "model/block_ln" else value


def _block(text: str | None) -> str:
  """Returns placements without "post=branch"; "" for the usual ones."""
  text = (text or "").replace(",post=branch", "")
  return "" if text == PLAIN_BLOCK else text


def _arm(model: Mapping[str, Any], otherwise: str) -> str:
  """Returns the arm of a model; `otherwise` if it does not say."""
  block, stem = _block(model.get("block_ln")), model.get("stem_ln")
  if stem is None and not block:
    return otherwise
  parts = [] if stem in (None, "none") else [stem]
  return "+".join(parts + [block] * bool(block)) or BASE


def _derived(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns recipe, arch and the row's other keys from ordinary fields."""
  source = (config.get("input") or {}).get("data") or {}
  name = source.get("name", "") if isinstance(source, Mapping) else ""
  name = _data_name(name)
  model = config.get("model") or {}
  found = {"recipe": name, "arch": _arch(model)}
  if name == "imagenet2012":
    found |= _imagenet(config)
  elif name.startswith("imagenet21k"):
    found |= {"recipe": "I21k", "steps": _pretraining_steps(config)}
  elif name.startswith("jft"):
    found |= {"recipe": "JFT", "steps": config.get("total_steps", "")}
  elif name == "sun397" and not config.get("model_init"):
    found |= {"recipe": "SUN397", "setting": _sun397(config)}
  return found


def _data_name(name):
  """Returns a data set's name, without version or folder."""
  kind, has_kind, rest = name.partition(":")
  if not has_kind or kind == "tfds":
    return re.split(r"[:/]", rest or kind)[0] or "unknown data"
  if kind in ("folder", "tar", "manifest", "parquet", "arrays", "custom"):
    return os.path.splitext(os.path.basename(rest.rstrip("/")))[0]
  return kind  # name:version


def _arch(model):
  size = model.get("variant")
  if size:
    return size
  width, depth = model.get("width"), model.get("depth")
  patch = model.get("patch_size") or ("?",)
  return f"{width}×{depth}/{patch[0]}" if width else "unknown model"


def _imagenet(config):
  pp = (config.get("input") or {}).get("pp", "")
  model = config.get("model") or {}
  if config.get("model_init"):
    crop = re.search(r"inception_crop\((\d+)", pp)
    return {"recipe": f"AugReg+{crop[1] if crop else '?'} finetune"}
  if "random_erasing" in pp or (config.get("mixup") or {}).get("cutmix_p"):
    return {"recipe": "DeiT"}
  if model.get("posemb") == "sincos2d":
    return {"recipe": "AugReg", "arch": f"{_arch(model)}+"}
  if config.get("loss", "sigmoid_xent") != "sigmoid_xent":
    return {}
  return {"recipe": "AugReg"}


def _pretraining_steps(config):
  by_epochs = {30: 93_000, 300: 930_000}  # batches of 4,096
  epochs = config.get("total_epochs")
  return config.get("total_steps") or by_epochs.get(epochs, f"{epochs} epochs")


def _sun397(config):
  if config.get("total_epochs", 0) >= 600:
    return "+ train longer (600 epochs)"
  augmented = "randaug" in (config.get("input") or {}).get("pp", "")
  mixed = (config.get("mixup") or {}).get("p", 0) > 0
  return "+ augmentation" if augmented or mixed else "from scratch"
