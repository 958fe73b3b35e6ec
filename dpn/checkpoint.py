"""Checkpoints of a run (Orbax, asynchronous, atomic) and exported parameters.

A checkpoint holds the train state's arrays and, beside them, a small JSON
`position`: where the run was in its data.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import safetensors.numpy
from orbax.checkpoint import v1 as ocp

from dpn import trees

KEEP = 2  # the latest, and the one before should the latest be damaged


class Checkpointer:
  """Saves and restores train states under `<directory>/<step>`.

  A save that was cut off leaves nothing that `latest` would find. All
  processes of a run must make the same calls.
  """

  def __init__(
    self, directory: str, *, timeout_secs: int = 1200, read_only: bool = False
  ):
    """Opens, and creates if needed, `directory`.

    Args:
      directory: where the checkpoints lie.
      timeout_secs: a save that takes longer is an error.
      read_only: leave unfinished saves alone: another run may be writing.
    """
    policies = ocp.training.preservation_policies
    context = ocp.Context()
    context.asynchronous.timeout_secs = timeout_secs
    self._orbax = ocp.training.Checkpointer(
      os.path.abspath(directory),
      context=context,
      preservation_policy=policies.LatestN(KEEP),
      cleanup_tmp_directories=not read_only,
    )

  @property
  def latest(self) -> int | None:
    """The step of the latest complete checkpoint, None if there is none."""
    checkpoint = self._orbax.latest
    return checkpoint.step if checkpoint else None

  def save(self, step: int, state: Any, position: Mapping[str, int]):
    """Starts saving; returns once `state` may be donated.

    Waits for the save before, and raises what went wrong there.
    """
    if jax.default_backend() == "cpu":
      # On CPU device memory is host memory: without a copy the writer would
      # read buffers that the next, donating step overwrites.
      state = jax.tree.map(lambda x: x.copy(), state)
    self._orbax.save_async(
      step, state, force=True, custom_metadata={"position": dict(position)}
    )

  def restore(self, state: Any) -> tuple[Any, dict[str, int]]:
    """Returns (state, position) of the latest checkpoint.

    Args:
      state: tree of `jax.ShapeDtypeStruct` with explicit shardings. The mesh
        may differ from the one that saved.

    Raises:
      ValueError: the checkpoint holds other arrays.
    """
    metadata = self._orbax.metadata(self.latest)
    path = os.path.join(str(self._orbax.directory), str(self.latest))
    _check_shapes(path, metadata.metadata, state)
    position = metadata.custom_metadata["position"]
    return self._orbax.load(self.latest, state), position

  def close(self):
    """Waits for the last save and raises what went wrong there."""
    self._orbax.close()


def _check_shapes(path: str, saved: Any, state: Any):
  there = {k: tuple(v.shape) for k, v in trees.flatten(saved).items()}
  here = {k: tuple(v.shape) for k, v in trees.flatten(state).items()}
  absent = "absent"
  differ = [
    f"  {name}: {there.get(name, absent)} there, {here.get(name, absent)} here"
    # The optimizer's arrays only repeat what is wrong with the parameters.
    for name in sorted({*there, *here}, key=lambda n: ("opt_state" in n, n))
    if there.get(name) != here.get(name)
  ]
  if differ:
    more = f"\n  and {len(differ) - 20} more" if len(differ) > 20 else ""
    raise ValueError(
      f"The checkpoint {path} is of another model or optimizer:\n"
      + "\n".join(differ[:20])
      + more
      + "\nUse the config that made it, or config.model_init to take over "
      "parameters alone."
    )


def write_atomically(path: str, data: bytes):
  """Writes `path` so that it is never seen half written."""
  partial = f"{path}.partial"
  with open(partial, "wb") as f:
    f.write(data)
    f.flush()
    os.fsync(f.fileno())
  os.replace(partial, path)


def write_json(path: str, value: Any):
  """Writes `value` as indented JSON, atomically."""
  write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def save_params(path: str, params: Any):
  """Writes parameters as float32 safetensors, names joined by "/".

  In a run of many processes all must call this; the first one writes.
  """
  flat = {}
  for name, leaf in trees.flatten(params).items():
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
      from jax.experimental import multihost_utils

      leaf = multihost_utils.process_allgather(leaf, tiled=True)
    flat[name] = np.ascontiguousarray(leaf, np.float32)
  if jax.process_index() == 0:
    write_atomically(path, safetensors.numpy.save(flat))
