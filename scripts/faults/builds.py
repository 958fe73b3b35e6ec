"""Builds with one safety taken out, and the faults that must notice it."""

import contextlib
import os
from collections.abc import Mapping
from typing import NamedTuple


class Build(NamedTuple):
  """What is patched in a build (see `Runs.start`), and what notices it."""

  patches: Mapping[str, str]
  noticed_by: str


def nothing(*unused, **kw):
  """Takes the place of a check."""


def no_lock(workdir):
  return contextlib.nullcontext()


def keep_all_rows(path, step):
  """Takes the place of `metrics._reopen`."""
  return open(path, "ab", buffering=0)


def write_in_place(path, data):
  """Takes the place of `atomic.write`."""
  try:
    with open(path, "wb") as f:
      f.write(data)
  except OSError as e:
    raise OSError(f"Cannot write {path}: {os.strerror(e.errno)}") from e


def _build(target, name, noticed_by):
  return Build({target: f"{__name__}:{name}"}, noticed_by)


BUILDS = {
  "checksum": _build("dpn.weights.checksums.check", "nothing", "damaged_notes"),
  "atomic_rename": _build("dpn.atomic.write", "write_in_place", "full_export"),
  "log_cut": _build("dpn.metrics._reopen", "keep_all_rows", "damaged_twice"),
  "lock": _build("dpn.trainers.workdir._flock", "no_lock", "two_runs"),
  "agreement": _build("dpn.processes.agree", "nothing", "differing_processes"),
  "watchdog": _build(
    "dpn.trainers.watchdog.Watchdog", "nothing", "stopped_process"
  ),
}
