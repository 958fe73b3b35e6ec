"""Curves, config and pictures of a run in TensorBoard's files."""

import functools
import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorboardX import record_writer, summary
from tensorboardX.proto import event_pb2, summary_pb2


class TensorBoard:
  """Writes a file for one start of a run, opened when something is written.

  Built on tensorboardX's record writer: its SummaryWriter has a thread of its
  own, can hang on a full disk and renames "val/prec@1" to "val/prec_1".
  """

  def __init__(self, workdir: str, *, purge_step: int):
    """Invalidates what earlier starts wrote at `purge_step` and later."""
    self._folder = os.path.join(workdir, "tensorboard")
    self._purge_step = purge_step

  def numbers(self, step: int, values: Mapping[str, float]):
    """Adds a point to the curve of each tag."""
    for tag, x in values.items():
      point = summary_pb2.Summary.Value(tag=tag, simple_value=x)
      self._write(step, summary=summary_pb2.Summary(value=[point]))
    self._file.flush()

  def config(self, config: Mapping[str, Any]):
    """Shows a config among the texts."""
    text = json.dumps(config, indent=2).replace("\n", "\n    ")
    self._write(0, summary=summary.text("config", f"    {text}"))

  def pictures(self, images: np.ndarray):
    """Shows images, (images, rows, cols, channels), side by side.

    Their lowest value becomes black and their highest white.
    """
    low, high = images.min(), images.max()
    levels = (images - low) * (255 / max(high - low, 1e-9))
    row = np.concatenate(levels.astype(np.uint8), axis=1)
    picture = summary.image("train/pictures", row, dataformats="HWC")
    self._write(0, summary=picture)

  def close(self):
    if "_file" in vars(self):
      self._file.close()

  @functools.cached_property
  def _file(self):
    os.makedirs(self._folder, exist_ok=True)
    name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
    file = record_writer.RecordWriter(os.path.join(self._folder, name))
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    for kw in ({"file_version": "brain.Event:2"}, {"session_log": start}):
      file.write(_event(self._purge_step, **kw))
    return file

  def _write(self, step, **kw):
    self._file.write(_event(step, **kw))


def _event(step, **kw) -> bytes:
  event = event_pb2.Event(step=step, wall_time=time.time(), **kw)
  return event.SerializeToString()
