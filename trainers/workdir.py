"""A run's directory: created, kept to one run at a time and to one config."""

import contextlib
import fcntl
import json
import os
import re
import socket
import time

import jax
from absl import logging

from dpn import trees
from dpn.weights import checkpoint

# What decides where and how fast a run goes, not what it computes.
FREE = re.compile(
  r"input/(num_workers|num_threads|prefetch)|prefetch_to_device"
  r"|(.*/)?data_dir|mesh(/.*)?|sharding_strategy(/.*)?|wandb(/.*)?|ckpt_.*"
)

CONFIG = "config.json"
LOCK = "lock"


@contextlib.contextmanager
def hold(workdir: str, config: dict, *, allow_config_change: bool = False):
  """Creates `workdir` and keeps it to this run and its config.

  Args:
    workdir: the directory.
    config: resolved, as nested dicts.
    allow_config_change: go on although the config there differs.

  Raises:
    OSError: nothing can be written there.
    ValueError: another run is using it, or began with another config; or it is
      not a folder.
  """
  if "://" in workdir:
    raise ValueError(
      f"--workdir={workdir}: expected a folder, got an address. Mount the "
      "bucket, as docs/launch.md says."
    )
  with contextlib.ExitStack() as stack:
    try:
      os.makedirs(workdir, exist_ok=True)
      stack.enter_context(_lock(workdir))
      if not allow_config_change:
        _check_config(workdir, config)
    except OSError as e:
      raise type(e)(
        f"Cannot write to --workdir={workdir}: {e.strerror or e}. Give a "
        "directory in which this user may create files."
      ) from e
    yield


def _lock(workdir: str):
  """Returns a context in which no other run can enter the same one.

  The system drops the lock with the process, however it ends: no stale lock
  can block a restart. Network file systems pass it on to other machines.
  """
  if jax.process_index() != 0:
    return contextlib.nullcontext()
  f = open(os.path.join(workdir, LOCK), "a+")  # noqa: SIM115, it is returned
  try:
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as e:
    f.seek(0)
    with f:
      holder = f.read().strip()
    raise ValueError(
      f"Another run is using {workdir}: {holder}. Wait for its end, stop it, "
      "or give another --workdir."
    ) from e
  except OSError as e:
    logging.warning("%s: no locks here (%s); start one run only.", workdir, e)
  since = time.strftime("%Y-%m-%d %H:%M:%S")
  f.truncate(0)
  f.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
  f.flush()
  return f


def write_config(workdir: str, config: dict):
  """Writes config.json: from the first checkpoint on, the run's config."""
  checkpoint.write_json(os.path.join(workdir, CONFIG), config)


def _check_config(workdir, config):
  """Raises ValueError if the config of the run there is another one."""
  path = os.path.join(workdir, CONFIG)
  if _has_checkpoint(workdir) and os.path.exists(path):
    with open(path) as f:
      _check_same(workdir, json.load(f), json.loads(json.dumps(config)))


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
