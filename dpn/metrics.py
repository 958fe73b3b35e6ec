"""What a run writes down: metrics.jsonl, timing.jsonl, TensorBoard, wandb.

`metrics.jsonl` holds only what config and seed determine, one object per step,
so that it is the same file however often a run was cut off and resumed. What
depends on the machine (speed, memory) goes to `timing.jsonl`.
"""

import functools
import json
import math
import os
import pathlib
import socket
import struct
import time
from collections.abc import Mapping

from absl import logging
from tensorboardX import record_writer, summary
from tensorboardX.proto import event_pb2

from dpn import atomic, damage

METRICS = "metrics.jsonl"
TIMING = "timing.jsonl"


class NonFiniteError(RuntimeError):
  """A measured quantity became NaN or infinite."""


def check_finite(step: int, last_step: int, values: Mapping[str, float]):
  """Raises NonFiniteError if a value of `step` is not finite.

  `last_step` is where they were last seen finite.
  """
  found = [f"{k} = {v}" for k, v in values.items() if not math.isfinite(v)]
  if found:
    raise NonFiniteError(
      f"{', '.join(sorted(found))} at step {step}; finite until step "
      f"{last_step}. The run stops here and keeps its last good checkpoint. "
      "Try a lower lr, a longer warmup or grad_clip_norm."
    )


def read(path: str) -> list[dict]:
  """Returns the rows of a .jsonl file that can be trusted, see `scan`."""
  return scan(path)[0]


def scan(
  path: str, *, any_order: bool = False
) -> tuple[list[dict], list[bytes]]:
  """Returns the rows of a .jsonl file, and the lines that are damaged.

  A row is an object of finite numbers, with a `step` that is, unless
  `any_order`, after that of the row before. A torn last line is in neither.
  """
  rows, damaged = [], []
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

  def __init__(self, workdir: str, *, step: int, wandb: Mapping | None = None):
    """Opens the logs, dropping whatever is from after `step`.

    Damaged lines are moved to a file of their own.

    `wandb` holds arguments of wandb.init. Whatever goes wrong there is logged,
    and the run goes on without it.
    """
    self._files = {
      name: _reopen(os.path.join(workdir, name), step)
      for name in (METRICS, TIMING)
    }
    self._workdir, self._purge_step = workdir, step + 1
    self._wandb = None
    if wandb is not None:
      self._try("wandb", lambda: self._start_wandb(workdir, wandb))

  def write(self, step: int, values: Mapping[str, float], file: str = METRICS):
    """Writes one step's values, all at once and through to the disk.

    What cannot be written is logged and left out: a run does not end for it.
    """
    values = {k: float(v) for k, v in values.items()}
    line = json.dumps({"step": step, **values}) + "\n"
    self._try(file, lambda: _append(self._files[file], line.encode()))
    self._try("TensorBoard", lambda: self._show(step, values))
    if self._wandb is not None and not self._try(
      "wandb", lambda: self._wandb.log(values, step=step)
    ):
      self._wandb = None

  def close(self):
    for name, f in self._files.items():
      self._try(name, f.close)
    if "_board" in vars(self):
      self._try("TensorBoard", self._board.close)
    if self._wandb is not None:
      self._try("wandb", self._wandb.finish)

  @functools.cached_property
  def _board(self):
    """TensorBoard's file; tensorboardX's writer can hang on a full disk."""
    folder = os.path.join(self._workdir, "tensorboard")
    os.makedirs(folder, exist_ok=True)
    name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
    f = _open(os.path.join(folder, name))
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    events = {"file_version": "brain.Event:2"}, {"session_log": start}
    _append(f, b"".join(_record(self._purge_step, **kw) for kw in events))
    return f

  def _show(self, step, values):
    shown = (summary.scalar(key, value) for key, value in values.items())
    _append(self._board, b"".join(_record(step, summary=x) for x in shown))

  def _start_wandb(self, workdir, kw):
    import wandb

    self._wandb = wandb.init(dir=workdir, **kw)

  def _try(self, what, action) -> bool:
    """Returns whether the action worked; logs what it raised."""
    try:
      action()
    except Exception as e:
      logging.warning("%s failed, the run goes on without: %r", what, e)
      return False
    return True


def _record(step, **kw) -> bytes:
  """Returns an event as TensorBoard's files hold it."""
  event = event_pb2.Event(step=step, wall_time=time.time(), **kw)
  data = event.SerializeToString()
  size = struct.pack("<Q", len(data))
  crc = lambda x: struct.pack("<I", record_writer.masked_crc32c(x))
  return size + crc(size) + data + crc(data)


def _append(f, line: bytes):
  """Writes a whole line or, when that fails, nothing of it."""
  begin = os.fstat(f.fileno()).st_size
  try:
    if f.write(line) != len(line):
      raise OSError("no space left for a whole line")
    os.fsync(f.fileno())
  except OSError:
    f.truncate(begin)
    raise


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
  return _open(path)


def _open(path):
  return open(path, "ab", buffering=0)
