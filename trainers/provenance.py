"""What made a run: code, config, machine and command, in environment.json."""

import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax

from dpn.weights import checkpoint

FILE = "environment.json"


def record(workdir: str, config: Mapping[str, Any]):
  """Adds an entry for this start to the list in `workdir`/environment.json.

  Args:
    workdir: of the run; it exists.
    config: resolved, as nested dicts.

  Raises:
    OSError: the file cannot be written.
  """
  path = os.path.join(workdir, FILE)
  starts = []
  if os.path.exists(path):
    with open(path) as f:
      starts = json.load(f)
  checkpoint.write_json(path, [*starts, describe(config)])


def describe(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the entry of a process that starts now with this config."""
  return {
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
  }


def config_hash(config: Mapping[str, Any]) -> str:
  """Returns 12 hex digits of the SHA-256 of the config's canonical JSON."""
  text = json.dumps(config, sort_keys=True, separators=(",", ":"))
  return hashlib.sha256(text.encode()).hexdigest()[:12]


def commit(folder: pathlib.Path) -> str | None:
  """Returns the Git commit of a folder; None outside of a checkout.

  It ends in "+changes" if tracked files differ from it.
  """

  def git(*args):
    done = subprocess.run(
      ["git", *args], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()

  try:
    head = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
  except (OSError, subprocess.CalledProcessError):
    return None
  return head + "+changes" * bool(changed)
