"""What a run writes down: metrics.jsonl, timing.jsonl, TensorBoard, wandb.

`metrics.jsonl` holds only what config and seed determine, one object per step,
so that it is the same file however often a run was interrupted and resumed.
What depends on the machine (speed, memory) goes to `timing.jsonl`.
"""

import json
import math
import os
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from absl import logging

from dpn import atomic, damage, errors, tensorboard, weights_and_biases

METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"
# The group in which TensorBoard shows numbers whose names have no "/".
GROUPS = {METRICS: "train", TIMING: "time"}


def check_finite(step: int, last_step: int, values: Mapping[str, float]):
  """Raises NonFiniteError if a value of `step` is not finite.

  `last_step` is the step at which all values were last seen finite.
  """
  found = [f"{k} = {v}" for k, v in values.items() if not math.isfinite(v)]
  if found:
    raise errors.NonFiniteError(
      f"{', '.join(sorted(found))} at step {step}; finite until step "
      f"{last_step}. The run stops here and keeps its last good checkpoint. "
      "Try a lower lr, a longer warmup or grad_clip_norm."
    )


def read(path: str) -> list[dict]:
  """Returns the rows of a .jsonl file that can be trusted, see `scan`."""
  return scan(path)[0]


def row_of(path: str, step: int) -> dict[str, float]:
  """Returns the metrics of a step, empty if there are none."""
  found = next((row for row in read(path) if row["step"] == step), {})
  return {name: value for name, value in found.items() if name != "step"}


def scan(
  path: str, *, any_order: bool = False
) -> tuple[list[dict], list[bytes]]:
  """Returns the rows of a .jsonl file, and the lines that are damaged.

  A row is an object of finite numbers whose `step` is after the previous row's,
  unless `any_order`. A last line that was cut off is in neither list.
  """
  rows: list[dict] = []
  damaged: list[bytes] = []
  if not os.path.isfile(path):
    return rows, damaged
  with open(path, "rb") as f:
    lines = [line for line in f if line.endswith(b"\n")]
  for line in lines:
    row = _parse(line)
    last = -1 if any_order or not rows else rows[-1]["step"]
    if row is None or row["step"] <= last:
      damaged.append(line)
    else:
      rows.append(row)
  return rows, damaged


def checksum(path: str) -> str:
  """Returns 8 hex digits that depend on every byte of a log."""
  with open(path, "rb") as f:
    return f"{zlib.crc32(f.read()):08x}"


def _parse(line):
  """Returns a line's row, None if it is none."""
  try:
    row = json.loads(line)
    whole = type(row["step"]) is int and all(map(math.isfinite, row.values()))
  except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
    return None
  return row if whole else None


class Writer:
  """Appends to a run's logs; only the first process should make one."""

  def __init__(
    self,
    workdir: str,
    *,
    step: int,
    timing_step: int | None = None,
    config: Mapping[str, Any] | None = None,
  ):
    """Opens the logs, dropping whatever is from after `step`.

    In timing.jsonl, whatever is from after `timing_step`, if given. Damaged
    lines are moved to a separate file. The config is shown beside the curves.

    Raises:
      ValueError: `config.wandb` is set and cannot work.
    """
    config = config or {}
    self._wandb = None
    if config.get("wandb") is not None:
      # The only log that may stop a run, and only before the run begins.
      self._wandb = weights_and_biases.start(workdir, config)
    last = {METRICS: step, TIMING: step if timing_step is None else timing_step}
    self._files = {
      name: _reopen(os.path.join(workdir, name), last[name]) for name in GROUPS
    }
    self._board = tensorboard.TensorBoard(workdir, purge_step=step + 1)
    if config:
      self._try("TensorBoard", lambda: self._board.config(config))

  def write(self, step: int, values: Mapping[str, float], file: str = METRICS):
    """Writes one step's values, all at once and through to the disk.

    What cannot be written is left out with a warning, and the run goes on.
    """
    values = {k: float(v) for k, v in values.items()}
    line = json.dumps({"step": step, **values}) + "\n"
    self._try(file, lambda: _append(self._files[file], line.encode()))
    group = GROUPS[file]
    shown = {k if "/" in k else f"{group}/{k}": v for k, v in values.items()}
    self._try("TensorBoard", lambda: self._board.numbers(step, shown))
    if self._wandb is not None and not self._try(
      "wandb", lambda: self._wandb.log(shown, step=step)
    ):
      self._wandb = None

  def pictures(self, images: np.ndarray):
    """Shows training images, (images, rows, cols, channels)."""
    self._try("TensorBoard", lambda: self._board.pictures(images))

  def close(self):
    for name, f in self._files.items():
      self._try(name, f.close)
    self._try("TensorBoard", self._board.close)
    if self._wandb is not None:
      self._try("wandb", self._wandb.finish)

  def _try(self, what, action) -> bool:
    """Returns whether the action worked; logs what it raised."""
    try:
      action()
    except Exception as e:
      logging.warning("%s failed, the run goes on without: %r", what, e)
      return False
    return True


def _reopen(path: str, step: int):
  """Opens `path` for appending after its lines up to and with `step`."""
  rows, damaged = scan(path)
  if os.path.lexists(path) and not os.path.isfile(path):
    aside = damage.free_name(pathlib.Path(path))
    os.rename(path, aside)
    logging.warning("%s is no file; it is now %s.", path, aside.name)
  if damaged:
    aside = damage.free_name(pathlib.Path(path))
    atomic.write(str(aside), b"".join(damaged))
    logging.warning(
      "%s: %d damaged lines are now in %s, the other %d rows are kept.",
      *(path, len(damaged), aside.name, len(rows)),
    )
  kept = [json.dumps(row) + "\n" for row in rows if row["step"] <= step]
  atomic.write(path, "".join(kept).encode())
  return open(path, "ab", buffering=0)


def _append(f, piece: bytes):
  """Writes a whole piece through to the disk or, when that fails, nothing."""
  begin = os.fstat(f.fileno()).st_size
  try:
    if f.write(piece) != len(piece):
      raise OSError("no space left for all of it")
    os.fsync(f.fileno())
  except OSError:
    f.truncate(begin)
    raise
