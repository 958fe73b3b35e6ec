"""The keys that a config may have; any other is an error."""

from collections.abc import Mapping

import dpn.tasks
from dpn import errors, schedules, schema
from dpn.input_pipeline import pipeline

# Durations, `<name>_<unit>` in a unit of `schedules.UNITS`, and what they span.
DURATIONS = {
  "total": "the training",
  "log_training": "between two rows of training metrics",
  "log_eval": "between two evaluations, unless an evaluator has its own",
  "ckpt": "between two checkpoints",
  "keep_ckpt": "checkpoints at multiples of it are kept",
}
# What the trainer reads; `dpn.tasks` adds what the task reads.
FIELDS = {
  "seed": "of initialization, data order, augmentation and dropout",
  "task": "what is learned: one of the tasks below, or an import path",
  "table": "which cell of which table the run fills, see docs/tables.md",
  "wandb": "arguments of `wandb.init`; logs to Weights & Biases, too",
  "input": "the training data, see below",
  "pp_modules": "modules with preprocessing ops of your own",
  "evals": "the evaluators: a section each, see below",
  "strict_evals": "whether an evaluator that fails ends the run, as it always "
  "does one of several processes",
  "model_init": "what to start from: a parameter file, a run, a checkpoint",
  "model_load": "how `model_init` is read, see below",
  "resume": "a run whose whole train state to go on from, in another folder",
  "ckpt_timeout": "seconds after which a save is an error, 1200 without it",
  "optax_name": "the optimizer, see below",
  "optax": "the optimizer's arguments",
  "lr": "base learning rate",
  "lr_mults": "list of (pattern, factor of `lr`)",
  "wd": "weight decay, decoupled; times the schedule, not times `lr`",
  "wd_mults": "list of (pattern, factor of `wd`); kernels alone without it",
  "schedule": "the learning rate over time, or a list by pattern; see below",
  "projection": "what parameters become after each update: an import path",
  "grad_clip_norm": "largest norm of the gradient, or a list by pattern",
  "grad_accum": "in how many parts a batch is processed",
  "ema_decay": "of the moving average of parameters, to evaluate and export",
  "log_grad_depth": "log gradients by depth: True, or over how many steps",
  "mesh": "list of (axis, size) of devices, -1 for the rest",
  "sharding_strategy": "list of (pattern, rule) of how parameters are split",
  "prefetch_to_device": "batches to copy to the devices ahead",
  "deterministic": "whether a GPU has to give the same bits every time",
}
TRAINER = {
  *FIELDS,
  *(f"{name}_{unit}" for name in DURATIONS for unit in schedules.UNITS),
}
# Arguments of `load.load_variables`.
MODEL_LOAD = {
  "dont_load": "patterns of parameters that stay as they were initialized",
  "dont_check": "differences between the file's model and this one to accept",
  "arch": "timm's name of the model, for files that do not say",
  "posemb_grid": "(rows, cols) of the model's patches, if no pp tells",
  "posemb_align_corners": "how position embeddings are resized",
}
# The types of some keys; the code that reads a key checks the others.
TYPES = {
  "seed": int,
  **dict.fromkeys(("num_classes", "ignore_label"), int | None),
  **dict.fromkeys(("init_head_bias", "lr", "wd", "ema_decay"), float | None),
  **dict.fromkeys(("grad_accum", "prefetch_to_device"), int | None),
  **dict.fromkeys(("strict_evals", "deterministic"), bool | None),
  **dict.fromkeys(("input", "evals", "table", "optax"), Mapping | None),
  "ckpt_timeout": float | None,
}
# Keys of big_vision that mean nothing here, with the reason why.
IGNORED_KEYS = {
  "sharding_rules": "activations are split over the batch, on all axes",
  "mesh_allow_split_physical_axes": "JAX places the mesh",
}


def known(config: Mapping) -> set[str]:
  """Returns the top-level keys that a config with this task may have."""
  return TRAINER | IGNORED_KEYS.keys() | {*dpn.tasks.find(config).config_keys}


def check(config: Mapping) -> list[str]:
  """Returns a note on each key that is accepted but has no effect.

  The values, and the keys of `input`, `model`, `optax`, `schedule` and
  `evals.<name>`, are checked where they are read.

  Raises:
    ValueError: at the first unknown key, or value of the wrong type.
  """
  for key in config:
    errors.check_known("key in config:", key, known(config))
  if not config.get("input"):
    raise ValueError("config.input is missing.")
  for key, hint in TYPES.items():
    if key in config:
      schema.check("config", key, config[key], hint)
  for key in ("prefetch_to_device", "ckpt_timeout"):
    if not (config.get(key) is None or config[key] > 0):
      raise ValueError(f"config.{key} must be above 0, got {config[key]!r}.")
  towers = dpn.tasks.find(config).towers
  options = [*MODEL_LOAD, *(f"{tower}_load_kw" for tower in towers)]
  for key in config.get("model_load") or {}:
    errors.check_known("key in config.model_load:", key, options)
  unused = []
  if config.get("model_load") and not config.get("model_init"):
    unused = ["config.model_load is not used: config.model_init is not set."]
  if config.get("resume") and config.get("model_init"):
    unused += ["config.model_init is not used: config.resume is set."]
  return unused + [
    f"{path}.{key} is accepted and ignored: {why}."
    for path, section, ignored in (
      ("config", config, IGNORED_KEYS),
      ("config.input", config["input"], pipeline.IGNORED_KEYS),
    )
    for key, why in ignored.items()
    if key in section
  ]
