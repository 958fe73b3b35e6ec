"""Checkpoints of a run (Orbax, asynchronous, atomic) and exported parameters.

A checkpoint holds the train state's arrays and, beside them, a small JSON: the
run's `position` in its data, and checksums of this position, of the arrays'
names and shapes, and of the state's parts. Nothing without a checksum is read.
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from typing import Any, TypedDict

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils
from orbax.checkpoint import v1 as ocp

from dpn import damage, paths, schema, trees

KEEP = 2  # the latest, and the previous one in case the latest is damaged


class _Position(TypedDict, total=False):
  step: int
  examples_seen: int
  rows: int
  unevaluated: Mapping[str, Any]


class Checkpointer:
  """Saves and restores train states under `<directory>/<step>`.

  An interrupted save leaves nothing that `latest` would find. All processes of
  a run must make the same calls.
  """

  def __init__(
    self,
    directory: str,
    *,
    timeout_secs: int = 1200,
    keep_every_steps: int = 0,
    read_only: bool = False,
  ):
    """Opens, and creates if needed, `directory`.

    Args:
      directory: the folder of the checkpoints.
      timeout_secs: a save that takes longer is an error.
      keep_every_steps: never delete checkpoints at multiples of this step; 0
        to keep the last two only.
      read_only: leave unfinished saves alone: another run may be writing.

    Raises:
      OSError: nothing can be created there.
    """
    self._directory = pathlib.Path(os.path.abspath(directory))
    self._read_only = read_only
    self._timeout_secs = timeout_secs
    self._keep_every_steps = keep_every_steps
    self._saving = None  # what Orbax returned for the last save
    self._orbax: Any = None  # the writer
    if not read_only:
      _check_writable(directory)
      if self.latest is None:
        self._open()

  def _open(self):
    """Lets Orbax look at the folder, and remove unfinished saves.

    Call it only once damaged checkpoints are set aside: Orbax fails at them.
    """
    if self._orbax is not None:
      return
    policies = ocp.training.preservation_policies
    kept = [policies.LatestN(KEEP)]
    if self._keep_every_steps:
      kept.append(policies.EveryNSteps(self._keep_every_steps))
    context = ocp.Context()
    context.asynchronous.timeout_secs = self._timeout_secs
    self._orbax = ocp.training.Checkpointer(
      self._directory,
      context=context,
      preservation_policy=policies.AnyPreservationPolicy(kept),
      cleanup_tmp_directories=True,
    )

  @property
  def steps(self) -> list[int]:
    """The steps of the complete checkpoints, in order."""
    names = (path.name for path in self._directory.glob("[0-9]*"))
    return sorted(map(int, filter(re.compile(r"0|[1-9]\d*").fullmatch, names)))

  @property
  def latest(self) -> int | None:
    """The step of the latest complete checkpoint, None if there is none."""
    return max(self.steps, default=None)

  def drop_after(self, step: int):
    """Deletes the checkpoints after `step`, from which the run is to continue.

    For runs of a single process.
    """
    self.close()
    for later in self.steps:
      if later > step:
        # Renamed first, so that a kill leaves no half checkpoint of that name.
        dropped = self._directory / f".{later}"
        shutil.rmtree(dropped, ignore_errors=True)
        shutil.rmtree((self._directory / str(later)).rename(dropped))

  def save(self, step: int, state: Any, position: Mapping[str, int]):
    """Starts saving; returns once `state` may be donated.

    Waits for the previous save, and raises its error if it failed.

    Raises:
      OSError: a checkpoint cannot be written.
    """
    if jax.default_backend() == "cpu":
      # On CPU device memory is host memory: without a copy the writer would
      # read buffers that the next, donating step overwrites.
      state = jax.tree.map(lambda x: x.copy(), state)
    notes = {"position": dict(position), "checksums": _state_checksums(state)}
    notes["checksums"] |= _description_checksums(notes["position"], state)
    self.wait()
    with self._explained():
      self._open()
      self._saving = self._orbax.save_async(
        step, state, force=True, custom_metadata=notes
      )

  def wait(self):
    """Waits for the last save, and raises its error if it failed.

    Without this call, the save's thread and files would stay open.
    """
    if self._saving is not None:
      saving, self._saving = self._saving, None
      with self._explained():
        saving.result()

  def restore(
    self, state: Any, *, step: int | None = None
  ) -> tuple[Any, dict[str, int]]:
    """Returns (state, position) of the latest undamaged checkpoint.

    Damaged ones are logged and, unless read_only, set aside under another name.
    If all are damaged they stay, so that the next start fails like this one.

    Args:
      state: tree of `jax.ShapeDtypeStruct` with explicit shardings. The mesh
        may differ from the one that saved.
      step: the step of the only checkpoint to try; None for the latest.

    Raises:
      MismatchError: the checkpoint holds other arrays.
      OSError: every checkpoint is damaged, or there is none.
    """
    restored, notes, _ = self._first_whole(step, lambda saved: state)
    return restored, notes["position"]

  def restore_variables(
    self, step: int | None = None
  ) -> tuple[dict[str, Any], int]:
    """Returns (variables, step) of the latest undamaged checkpoint.

    The parameters, averaged if the run kept an average, and the other
    collections, as NumPy arrays. The checkpoint itself says what it holds, so
    this needs no model, no optimizer and none of the run's devices.

    Raises:
      OSError: every checkpoint is damaged, or there is none.
    """
    restored, _, step = self._first_whole(step, _only_variables)
    params = restored.get("ema") or restored["params"]
    return {"params": params, **(restored.get("model_state") or {})}, step

  def _first_whole(self, step, wanted):
    """Returns (state, notes, step) of the latest undamaged checkpoint.

    `wanted` maps what a checkpoint holds to the tree to load.
    """
    found = self.steps
    if step in found:
      found = [step]
    elif step is not None or not found:
      raise FileNotFoundError(
        f"There is no checkpoint{'' if step is None else f' of step {step}'}"
        f" in {self._directory}; it has those of steps {found}."
      )
    for step in reversed(found):
      path = self._directory / str(step)
      restored, notes, error = _load(path, wanted)
      if error is None:
        if not self._read_only:
          self._set_damaged_aside(found, step)
        return restored, notes, step
      logging.error(
        "Checkpoint %s is damaged, trying the one before: %s", path, error
      )
    raise OSError(
      f"No checkpoint in {self._directory} can be read; steps {found} are "
      "damaged, see above. Restore them from a copy; or, to start over, delete "
      "this folder or give another --workdir."
    )

  def _set_damaged_aside(self, found, whole):
    """Renames checkpoints after `whole`, and those Orbax would trip over."""
    if jax.process_index() == 0:
      for step in found:
        path = self._directory / str(step)
        try:
          if step <= whole:
            _metadata(path)
            continue
        except Exception as e:
          logging.error("Checkpoint %s is damaged: %s", path, e)
        path.rename(damage.free_name(path))
    multihost_utils.sync_global_devices("damaged checkpoints are set aside")
    self._open()

  @contextlib.contextmanager
  def _explained(self):
    """Turns any error in writing into an OSError that explains it."""
    try:
      yield
    except Exception as e:
      raise OSError(
        f"Cannot write a checkpoint to {self._directory}: {e}\nThe last good "
        f"one is of step {self.latest}. Free some space, or make the directory "
        "writable (of a mounted bucket see docs/launch.md); the same command "
        "then resumes from there."
      ) from e

  def close(self):
    """Waits for the last save and raises its error if it failed."""
    self.wait()
    if self._orbax is not None:
      writer, self._orbax = self._orbax, None
      with self._explained():
        writer.close()


def _check_writable(directory):
  """Raises OSError if nothing can be created; Orbax would wait for minutes."""
  try:
    os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory):
      pass
  except OSError as e:
    raise type(e)(
      f"Cannot write checkpoints to {directory}: {e.strerror}. It must be a "
      "directory in which this user may create files."
    ) from e


def _load(path, wanted):
  """Returns a checkpoint's (state, notes, what is wrong with it).

  The last is None on all processes, or on none of them.
  """

  def load():
    restored = ocp.load(path, state)
    _check(notes["checksums"], _state_checksums(restored))
    return restored

  # `ocp.load` waits for all processes, so they must know before that whether
  # one cannot take part.
  read, error = _unless_damaged(path, lambda: _metadata(path))
  if error is not None:
    return None, None, error
  saved, notes = read
  state = wanted(saved)
  _check_shapes(path, saved, state)
  restored, error = _unless_damaged(path, load)
  return restored, notes, error


def _unless_damaged(path, read):
  """Returns (what `read` returns, what is wrong on this or another process)."""
  result = error = None
  try:
    result = read()
  except Exception as e:
    damage.reraise_if_transient(path, e)
    error = e
  if not multihost_utils.process_allgather(np.array(error is None)).all():
    error = error or ValueError("another process cannot read it")
  return result, error


def _metadata(path):
  """Returns what a checkpoint holds, as shapes, and its notes.

  Raises:
    Exception: of any type, if the metadata is damaged.
  """
  for file in path.rglob("*"):
    paths.check_regular(file)
  found = ocp.metadata(path)
  if found.metadata is None:
    raise ValueError("its metadata cannot be read")
  notes = found.custom_metadata or {}
  where = str(path / "_CHECKPOINT_METADATA")
  schema.check(where, "checksums", notes.get("checksums"), Mapping[str, int])
  schema.check(where, "position", notes.get("position"), _Position)
  described = _description_checksums(notes["position"], found.metadata)
  _check(notes["checksums"], described)
  step = notes["position"].get("step")
  if step is not None and step != int(path.name):
    raise ValueError(f"it is of step {step}: it has been renamed or copied")
  return found.metadata, notes


def _only_variables(saved):
  """Returns what to load of a train state: NumPy arrays, or `...` to skip."""
  load = lambda x: np.empty(x.shape, x.dtype)
  skip = lambda _: ...
  kept = ("ema" if saved.get("ema") else "params", "model_state")
  return {
    name: jax.tree.map(load if name in kept else skip, part)
    for name, part in saved.items()
  }


def _state_checksums(state) -> dict[str, int]:
  """Returns a checksum of each part of the state that has been loaded."""
  parts = dict(state) if isinstance(state, Mapping) else vars(state)
  return {
    name: trees.checksum(part)
    for name, part in parts.items()
    if (leaves := jax.tree.leaves(part)) and leaves[0] is not ...
  }


def _description_checksums(position, state) -> dict[str, int]:
  """Returns checksums of a position, and of the state's names and shapes."""
  shapes = {k: [*map(int, v.shape)] for k, v in trees.flatten(state).items()}
  parts = {"its position": position, "its shapes": shapes}
  crc = lambda part: zlib.crc32(json.dumps(part, sort_keys=True).encode())
  return {name: crc(part) for name, part in parts.items()}


def _check(expected: Mapping[str, int], got: Mapping[str, int]):
  """Raises ValueError unless all that was read has its original checksum."""
  for part, value in got.items():
    if value != expected.get(part):
      raise ValueError(
        f"the checksum of {part} is {value}, expected {expected.get(part)}"
      )


class MismatchError(ValueError):
  """A checkpoint is of another model or optimizer."""


def _check_shapes(path, saved: Any, state: Any):
  """Raises MismatchError unless a checkpoint holds what is to be loaded."""
  kind = lambda v: f"{v.dtype}{v.shape}"
  there = {k: kind(v) for k, v in trees.flatten(saved).items()}
  here = {
    k: there[k] if v is ... else kind(v)
    for k, v in trees.flatten(state).items()
  }
  averaged, wanted = (any(k[:4] == "ema/" for k in x) for x in (there, here))
  if averaged != wanted:
    raise MismatchError(
      f"The checkpoint {path} holds {'a' if averaged else 'no'} moving average "
      "of the parameters and config.ema_decay is "
      f"{'set' if wanted else 'None'}. Set it as in that run; or take over the "
      "parameters alone, with config.model_init."
    )
  differ = trees.differences(there, here)
  if lines := [f"  {name}: {a} there, {b} here" for name, a, b in differ]:
    # The optimizer's arrays only repeat what is wrong with the parameters.
    lines.sort(key=lambda line: "opt_state" in line.partition(":")[0])
    more = [f"  and {len(lines) - 20} more"] if len(lines) > 20 else []
    raise MismatchError(
      f"The checkpoint {path} is of another model or optimizer:\n"
      + "\n".join(lines[:20] + more)
      + "\nUse the config that made it, or config.model_init to take over "
      "parameters alone."
    )
