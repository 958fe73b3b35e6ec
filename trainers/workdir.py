"""A run's directory: created, and kept to one config."""

import json
import os
import re

import jax

from dpn import checkpoint, trees

# What decides where and how fast a run goes, not what it computes.
FREE = re.compile(
  r"input/(num_workers|num_threads|prefetch)|prefetch_to_device"
  r"|(.*/)?data_dir|mesh(/.*)?|sharding_strategy(/.*)?|wandb(/.*)?|ckpt_.*"
)


def prepare(workdir: str, config: dict, *, allow_config_change: bool = False):
  """Creates `workdir` and writes config.json, or checks the one there.

  Args:
    workdir: the directory.
    config: resolved, as nested dicts.
    allow_config_change: go on although the config differs.

  Raises:
    OSError: nothing can be written there.
    ValueError: the run there began with another config.
  """
  path = os.path.join(workdir, "config.json")
  config = json.loads(json.dumps(config))
  try:
    os.makedirs(workdir, exist_ok=True)
    if _has_checkpoint(workdir) and not allow_config_change:
      with open(path) as f:
        _check_same(workdir, json.load(f), config)
    if jax.process_index() == 0:
      checkpoint.write_json(path, config)
  except OSError as e:
    raise type(e)(
      f"Cannot write to --workdir={workdir}: {e.strerror or e}. Give a "
      "directory in which this user may create files."
    ) from e


def _has_checkpoint(workdir: str) -> bool:
  """Returns whether a run got so far that its config is settled."""
  checkpoints = os.path.join(workdir, "checkpoints")
  return os.path.isdir(checkpoints) and bool(os.listdir(checkpoints))


def _check_same(workdir: str, old: dict, new: dict):
  old, new = trees.flatten(old), trees.flatten(new)
  absent = "absent"
  changes = [
    f"  {name.replace('/', '.')}: {old.get(name, absent)!r} there, "
    f"{new.get(name, absent)!r} now"
    for name in sorted({*old, *new})
    if old.get(name, absent) != new.get(name, absent)
    and not FREE.fullmatch(name)
  ]
  if changes:
    raise ValueError(
      f"The run in {workdir} began with another config:\n"
      + "\n".join(changes)
      + "\nGive another --workdir, or --allow_config_change to go on anyway."
    )
