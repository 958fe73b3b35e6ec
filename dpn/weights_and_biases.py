"""A run at Weights & Biases, one for each run's folder."""

import importlib
import inspect
import os
import pathlib
import re
import secrets
import types
from collections.abc import Mapping
from typing import Any

from absl import logging

from dpn import errors

ID = "wandb_id.txt"


def check(options: Mapping[str, Any]) -> types.ModuleType:
  """Returns the package if `config.wandb`, arguments of `wandb.init`, can work.

  Raises:
    ValueError: it cannot, on this machine or with these options.
  """
  try:
    wandb = importlib.import_module("wandb")
  except ImportError as e:
    raise ValueError(
      f"config.wandb is set and the package wandb cannot be imported ({e}). "
      "Install it, `pip install wandb`, or leave out config.wandb."
    ) from e
  known = inspect.signature(wandb.init).parameters
  if not any(p.kind is p.VAR_KEYWORD for p in known.values()):
    for key in options:
      errors.check_known("key in config.wandb:", key, known)
  return wandb


def start(workdir: str, config: Mapping[str, Any]):
  """Returns the W&B run of a run's folder; the same one after a restart.

  It is named after the folder, and the seeds of a sweep's arm, "<arm>-s<seed>",
  form a group, unless config.wandb says otherwise.

  Returns None if a run that W&B already knows cannot be continued there: that
  is no reason to stop training.

  Raises:
    ValueError: a new run cannot start there.
  """
  wandb = check(config["wandb"])
  name = os.path.basename(os.path.abspath(workdir))
  told = {"dir": workdir, "name": name, "config": dict(config)}
  told["resume"] = "allow"
  if arm := re.fullmatch(rf"(.+)-s{config.get('seed', 0)}", name):
    told["group"] = arm[1]
  path = pathlib.Path(workdir, ID)
  known = path.exists()
  told["id"] = path.read_text().strip() if known else secrets.token_hex(4)
  told |= config["wandb"]
  try:
    run = wandb.init(**told)
  except Exception as e:
    if known:
      logging.warning("wandb failed, the run goes on without: %r", e)
      return None
    raise ValueError(
      f"config.wandb is set and wandb.init failed: {type(e).__name__}: {e}. "
      "Log in with `wandb login`, set WANDB_MODE=offline, or leave out "
      "config.wandb."
    ) from e
  path.write_text(f"{told['id']}\n")
  return run
