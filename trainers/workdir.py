"""A run's directory: locked to one run and one config, with what made it."""

import contextlib
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

import dpn
from dpn import atomic, damage, processes, schema, trees
from dpn.input_pipeline import fingerprint
from dpn.trainers import distributed
from dpn.weights import files

# Keys that may change when a run is resumed: they decide where and how fast it
# runs, not what it computes.
RESUMABLE_KEYS = re.compile(
  r"input/(num_workers|num_threads|prefetch)|prefetch_to_device"
  r"|(.*/)?data_dir|mesh(/.*)?|sharding_strategy(/.*)?|wandb(/.*)?|(keep_)?ckpt_.*"
)

CONFIG = "config.json"
DONE = "done.json"
PARAMS = "params.safetensors"
DIVERGED = "diverged.txt"  # why
TEST = "test.json"  # what scripts.select_best measured after the run
REPLACE = "--allow_config_change replaces it by this config and resumes."


@contextlib.contextmanager
def lock(workdir: str, config: dict, *, allow_config_change: bool = False):
  """Creates `workdir` and locks it to this run and its config.

  Raises ValueError if another run is using it or, unless `allow_config_change`,
  if the run there began with another config.
  """
  if "://" in workdir:
    raise ValueError(
      f"--workdir={workdir}: expected a folder, got an address. Mount the "
      "bucket, as docs/launch.md says."
    )
  with contextlib.ExitStack() as stack:
    try:
      os.makedirs(workdir, exist_ok=True)
      stack.enter_context(_flock(workdir))
      if not allow_config_change:
        _check_config(workdir, config)
    except OSError as e:
      raise type(e)(
        f"Cannot write to --workdir={workdir}: {e.strerror or e}. Give a "
        "directory in which this user may create files."
      ) from e
    yield


def check_shared(workdir: str):
  """Raises ValueError, on all processes, unless they share this folder.

  Otherwise each host would make a folder of that name on its own disk, and a
  save would wait in vain for the others' parts. Process 0 writes a file with a
  new name, as network file systems keep what they knew of old ones.
  """
  if jax.process_count() == 1:
    return
  number = np.random.default_rng().integers(2**31, dtype=np.int32)
  number = multihost_utils.broadcast_one_to_all(number)
  path = pathlib.Path(workdir, f"of-process-0-{number}")
  if jax.process_index() == 0:
    path.touch()
  distributed.wait_for_others("the working directory")
  shared = path.exists()
  try:
    processes.agree(lambda: {"--workdir is a folder on process 0": shared})
  except ValueError as e:
    raise ValueError(
      f"{e} The working directory must be on a disk that all hosts share, such "
      "as NFS or a mounted bucket."
    ) from e
  finally:
    if jax.process_index() == 0:
      path.unlink()


def _flock(workdir: str):
  """Returns a context that no other run can enter at the same time.

  The system drops the lock with the process, however it ends. Network file
  systems pass it on to other machines; a server may keep it for one that died.
  """
  if jax.process_index() != 0:
    return contextlib.nullcontext()
  no_link = lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o666)
  path = os.path.join(workdir, "lock")
  f = open(path, "a+", opener=no_link)  # noqa: SIM115, it is returned
  try:
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as e:
    f.seek(0)
    with f:
      holder = f.read().strip()
    raise ValueError(
      f"Another run is using {workdir}: {holder}. Wait for its end, stop it, "
      f"or give another --workdir. If its machine is gone, remove {path}."
    ) from e
  except OSError as e:
    logging.warning("%s: no locks here (%s); start one run only.", workdir, e)
  since = time.strftime("%Y-%m-%d %H:%M:%S")
  f.truncate(0)
  f.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
  f.flush()
  return f


def changes(workdir: str, config: dict) -> str:
  """Returns the fields in which a run that saved or is done there differs."""
  path = pathlib.Path(workdir, CONFIG)
  settled = _saved(workdir) or path.with_name(DONE).exists()
  if not settled or not path.exists():
    return ""
  try:
    old = schema.read_json(str(path), dict)
  except ValueError as e:
    raise ValueError(f"{e} {REPLACE}") from e
  new = json.loads(json.dumps(config))
  return "\n".join(
    f"  {name.replace('/', '.')}: {there!r} there, {now!r} now"
    for name, there, now in trees.differences(old, new)
    if not RESUMABLE_KEYS.fullmatch(name)
  )


def _check_config(workdir, config):
  if changed := changes(workdir, config):
    advice = ", or --allow_config_change to resume anyway"
    if pathlib.Path(workdir, DONE).exists():
      more = ", or --allow_config_change if this finished run is to train on"
      advice = f"{more}, for more steps" if _saved(workdir) else ""
    raise ValueError(
      f"The run in {workdir} began with another config:\n{changed}\n"
      f"Give another --workdir{advice}."
    )


def _saved(workdir):
  return any(pathlib.Path(workdir, files.CHECKPOINTS).glob("*"))


def record(
  workdir: str, config: Mapping[str, Any], checksums: Mapping[str, str] = {}
) -> str:
  """Writes config.json, and an entry for this start to environment.json.

  From the first checkpoint on, config.json is the run's config. Returns a
  sentence if the code, or what one of the `checksums` is of, such as the
  "data", has changed since the last start.
  """
  atomic.write_json(os.path.join(workdir, CONFIG), config)
  path = pathlib.Path(workdir, files.ENVIRONMENT)
  try:
    starts = schema.read_json(str(path), list[dict]) if path.exists() else []
  except ValueError as e:
    logging.warning("%s It is set aside.", e)
    path.rename(damage.free_name(path))
    starts = []
  this = {
    "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    "commit": commit(pathlib.Path(__file__).parent),
    "config_hash": config_hash(config),
    "device_kind": jax.devices()[0].device_kind,
    "num_devices": jax.device_count(),
    "num_processes": jax.process_count(),
    "python": platform.python_version(),
    "jax": importlib.metadata.version("jax"),
    "jaxlib": importlib.metadata.version("jaxlib"),
    "command": sys.argv,
    "loader": fingerprint.of_config(config),
    "code": code_checksum(),
    **checksums,
  }
  before = [x["loader"] for x in starts if isinstance(x.get("loader"), dict)]
  if before:
    fingerprint.compare(workdir, before[-1], this["loader"])
  atomic.write_json(str(path), [*starts, this])
  last = starts[-1] if starts else {}
  changed = [
    f"the {name} ({last[name]} before, {this[name]} now)"
    for name in ("code", *checksums)
    if last.get(name) not in (None, this[name])
  ]
  if not changed:
    return ""
  return (
    f"changed since the last start of this run: {' and '.join(changed)}. Its "
    f"results are of both; {path.name} has the commits."
  )


def check_own(workdir: str, config: Mapping, position: Mapping[str, Any]):
  """Raises ValueError if a checkpoint belongs to none of this run's configs.

  Those are `config` and the ones of earlier starts, whose hashes are on record.
  """
  path = os.path.join(workdir, files.ENVIRONMENT)
  try:
    starts = schema.read_json(path, list[dict])
  except (OSError, ValueError):
    return  # lost, as `record` says: then nothing can be compared
  known = [config_hash(config), *(s.get("config_hash") for s in starts)]
  hashes = dict.fromkeys(map(str, known))
  found = position.get("config_hash")  # old ones have none
  if found and found not in hashes:
    raise ValueError(
      f"The checkpoint in {workdir} is from another run: its config has the "
      f"hash {found}, and this run's have {', '.join(hashes)} ({path}). Put "
      "the run's own checkpoints back; or go on from that run's state with "
      "config.resume and another --workdir."
    )


def config_hash(config: Mapping[str, Any]) -> str:
  """Returns 12 hex digits of the SHA-256 of the config's canonical JSON."""
  text = json.dumps(config, sort_keys=True, separators=(",", ":"))
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def code_checksum(more: Sequence[pathlib.Path] = ()) -> str:
  """Returns 8 hex digits that depend on the code that trains, not on its tests.

  They depend on the code in `more` folders, too.
  """
  # In a wheel the other packages lie in dpn; in a checkout they are links.
  inside = pathlib.Path(dpn.__file__).parent.iterdir()
  parts = [p for p in inside if p.name not in ("configs", "scripts")]
  checksum = 0
  for part in [*sorted(parts), *more]:
    found = part.resolve().rglob("*.py") if part.is_dir() else [part]
    for path in sorted(found):
      if path.suffix == ".py" and not path.stem.endswith("test"):
        checksum = zlib.crc32(path.read_bytes(), checksum)
  return f"{checksum:08x}"


def commit(folder: pathlib.Path) -> str | None:
  """Returns the Git commit of a folder; None where Git tracks none of it.

  It ends in "+changes" if tracked files differ from it.
  """
  git = functools.partial(
    subprocess.check_output, cwd=folder, stderr=subprocess.DEVNULL, text=True
  )
  try:
    # A virtual environment may lie in somebody's repository, untracked.
    git(["git", "ls-files", "--error-unmatch", "."])
    head = git(["git", "rev-parse", "HEAD"]).strip()
    changed = git(["git", "status", "--porcelain", "--untracked-files=no"])
  except (OSError, subprocess.CalledProcessError):
    return None
  return head + "+changes" * bool(changed)
