"""The keys that a config may have; any other is an error."""

import inspect
from collections.abc import Mapping

import dpn.tasks
from dpn import errors, schedules
from dpn.weights import load

DURATIONS = ("total", "log_training", "log_eval", "ckpt", "keep_ckpt")
# What the trainer reads; `dpn.tasks` adds what the task reads.
TRAINER = {
  *("seed", "task", "table", "wandb", "input", "pp_modules"),
  *(f"{name}_{unit}" for name in DURATIONS for unit in schedules.UNITS),
  *("model_init", "model_load", "resume", "ckpt_timeout"),
  *("optax_name", "optax", "lr", "wd", "lr_mults", "wd_mults", "schedule"),
  *("grad_clip_norm", "grad_accum", "ema_decay", "log_grad_depth"),
  *("mesh", "sharding_strategy", "prefetch_to_device", "deterministic"),
  *("evals", "strict_evals"),
}
NUMBERS = (
  *("seed", "num_classes", "init_head_bias", "lr", "wd"),
  *("grad_clip_norm", "grad_accum", "ema_decay"),
)
# Keys of big_vision that mean nothing here, with the reason why.
IGNORED_KEYS = {
  "config.sharding_rules": "activations are split over the batch, on all axes",
  "config.mesh_allow_split_physical_axes": "JAX places the mesh",
  "config.input.shuffle_buffer_size": "every epoch is shuffled as a whole",
  "config.input.cache_raw": "records are read from disk as needed",
  "config.input.cache": "records are read from disk as needed",
}


def known(config: Mapping) -> set[str]:
  """Returns the top-level keys that a config with this task may have."""
  ignored = {path.removeprefix("config.") for path in IGNORED_KEYS}
  return TRAINER | ignored | {*dpn.tasks.find(config).config_keys}


def check(config: Mapping) -> list[str]:
  """Returns a note on each key that big_vision has and that means nothing here.

  The values, and the keys of `input`, `model`, `optax`, `schedule` and
  `evals.<name>`, are checked by whoever reads them.

  Raises:
    ValueError: at the first unknown key, or text for a number.
  """
  for key in config:
    errors.check_known("key in config:", key, known(config))
  if not config.get("input"):
    raise ValueError("config.input is missing.")
  for key in NUMBERS:
    if not isinstance(config.get(key), int | float | None):
      raise ValueError(f"config.{key} must be a number, got {config[key]!r}.")
  keywords = inspect.signature(load.load_variables).parameters
  options = [name for name in keywords if name.startswith("dont_")]
  for key in config.get("model_load") or {}:
    errors.check_known("key in config.model_load:", key, options)
  notes = []
  for path, why in IGNORED_KEYS.items():
    section = config["input"] if path.startswith("config.input.") else config
    if path.rpartition(".")[2] in section:
      notes.append(f"{path} is accepted and ignored: {why}.")
  return notes
