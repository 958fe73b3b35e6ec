"""The keys that a config may have; any other is an error."""

from collections.abc import Mapping

import dpn.tasks
from dpn import errors, schedules
from dpn.input_pipeline import pipeline

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
# Of `load.load_variables`.
MODEL_LOAD = (
  *("dont_load", "dont_check", "arch"),
  *("posemb_grid", "posemb_align_corners"),
)
NUMBERS = (
  *("seed", "num_classes", "ignore_label", "init_head_bias", "lr", "wd"),
  *("grad_accum", "ema_decay"),
)
# Keys of big_vision that mean nothing here, with the reason why.
IGNORED_KEYS = {
  "sharding_rules": "activations are split over the batch, on all axes",
  "mesh_allow_split_physical_axes": "JAX places the mesh",
}


def known(config: Mapping) -> set[str]:
  """Returns the top-level keys that a config with this task may have."""
  return TRAINER | IGNORED_KEYS.keys() | {*dpn.tasks.find(config).config_keys}


def check(config: Mapping) -> list[str]:
  """Returns a note on each key that is accepted and means nothing.

  The values, and the keys of `input`, `model`, `optax`, `schedule` and
  `evals.<name>`, are checked where they are read.

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
  towers = getattr(dpn.tasks.find(config), "towers", ())
  options = [*MODEL_LOAD, *(f"{tower}_load_kw" for tower in towers)]
  for key in config.get("model_load") or {}:
    errors.check_known("key in config.model_load:", key, options)
  unused = []
  if config.get("model_load") and not config.get("model_init"):
    unused = ["config.model_load is not used: config.model_init is not set."]
  return unused + [
    f"{path}.{key} is accepted and ignored: {why}."
    for path, section, ignored in (
      ("config", config, IGNORED_KEYS),
      ("config.input", config["input"], pipeline.IGNORED_KEYS),
    )
    for key, why in ignored.items()
    if key in section
  ]
