"""The keys a config may have; anything else is an error."""

import inspect
from collections.abc import Iterable, Mapping

from dpn import errors, schedules
from dpn.weights import load


def _duration(name: str) -> set[str]:
  return {f"{name}_{unit}" for unit in schedules.UNITS}


TOP = {
  "seed",
  "task",
  "input",
  "num_classes",
  "loss",
  "init_head_bias",
  *_duration("total"),
  "model_name",
  "model",
  "model_init",
  "model_load",
  "resume",
  "optax_name",
  "optax",
  "lr",
  "wd",
  "wd_mults",
  "lr_mults",
  "grad_clip_norm",
  "schedule",
  "mixup",
  *_duration("log_training"),
  *_duration("log_eval"),
  *_duration("ckpt"),
  "ckpt_timeout",
  "log_grad_depth",
  "prefetch_to_device",
  "evals",
  "mesh",
  "sharding_strategy",
  "wandb",
  "pp_modules",
  "deterministic",
  "ema_decay",
  "grad_accum",
  "strict_evals",
  "table",
}
MIXUP = {"p", "cutmix_p", "switch_prob", "fold_in", "scope"}
NUMBERS = (
  "seed",
  "num_classes",
  "init_head_bias",
  "lr",
  "wd",
  "grad_clip_norm",
  "ema_decay",
  "grad_accum",
)
NO_MEANING = {
  "config.pp_modules": "all preprocessing ops are always known",
  "config.input.shuffle_buffer_size": "every epoch is shuffled as a whole",
  "config.input.cache_raw": "records are read from disk as needed",
  "config.input.cache": "records are read from disk as needed",
}


def check(config: Mapping) -> list[str]:
  """Returns a note on each key that big_vision has and that means nothing here.

  The values, and the keys of `input`, `model`, `optax`, `schedule` and
  `evals.<name>`, are checked by whoever reads them.

  Raises:
    ValueError: at the first unknown key, or text for a number.
  """
  _check("config", config, TOP)
  if not config.get("input"):
    raise ValueError("config.input is missing.")
  for key in NUMBERS:
    if not isinstance(config.get(key), int | float | None):
      raise ValueError(f"config.{key} must be a number, got {config[key]!r}.")
  _check("config.mixup", config.get("mixup") or {}, MIXUP)
  options = inspect.signature(load.load_variables).parameters
  options = [name for name in options if name.startswith("dont_")]
  _check("config.model_load", config.get("model_load") or {}, options)
  notes = []
  for path, why in NO_MEANING.items():
    section = config["input"] if path.startswith("config.input.") else config
    if path.rpartition(".")[2] in section:
      notes.append(f"{path} is accepted and ignored: {why}.")
  return notes


def _check(path: str, section: Mapping, known: Iterable[str]):
  for key in section:
    if key not in known:
      raise ValueError(errors.unknown(f"key in {path}:", key, known))
