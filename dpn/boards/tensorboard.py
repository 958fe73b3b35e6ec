"""Files of TensorBoard, without TensorFlow."""

import functools
import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from tensorboardX import record_writer, summary
from tensorboardX.proto import event_pb2, summary_pb2

from dpn.boards import appending


class TensorBoard:
  """Writes curves, the config and pictures for one start of a run.

  Opens its file when something is written first. tensorboardX's own writer can
  hang on a full disk, and changes names: "val/prec@1" to "val/prec_1".
  """

  def __init__(self, workdir: str, *, purge_step: int):
    """What earlier starts wrote at `purge_step` and later does not count."""
    self._folder = os.path.join(workdir, "tensorboard")
    self._purge_step = purge_step

  def numbers(self, step: int, values: Mapping[str, float]):
    """Adds a point to the curve of each tag."""
    points = (
      summary_pb2.Summary.Value(tag=tag, simple_value=x)
      for tag, x in values.items()
    )
    self._write(step, [summary_pb2.Summary(value=[point]) for point in points])

  def config(self, config: Mapping[str, Any]):
    """Shows a config among the texts."""
    text = json.dumps(config, indent=2).replace("\n", "\n    ")
    self._write(0, [summary.text("config", f"    {text}")])

  def pictures(self, images: np.ndarray):
    """Shows images, (images, rows, cols, channels), side by side.

    Their own lowest and highest value become black and white.
    """
    low, high = images.min(), images.max()
    levels = (images - low) * (255 / max(high - low, 1e-9))
    row = np.concatenate(levels.astype(np.uint8), axis=1)
    picture = summary.image("train/pictures", row, dataformats="HWC")
    self._write(0, [picture])

  def close(self):
    if "_file" in vars(self):
      self._file.close()

  @functools.cached_property
  def _file(self):
    os.makedirs(self._folder, exist_ok=True)
    name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
    file = appending.opened(os.path.join(self._folder, name))
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    events = {"file_version": "brain.Event:2"}, {"session_log": start}
    records = [_record(self._purge_step, **kw) for kw in events]
    appending.append(file, b"".join(records))
    return file

  def _write(self, step, summaries):
    records = [_record(step, summary=found) for found in summaries]
    appending.append(self._file, b"".join(records))


def _record(step, **kw) -> bytes:
  """Returns an event as TensorBoard's files hold it."""
  event = event_pb2.Event(step=step, wall_time=time.time(), **kw)
  data = event.SerializeToString()
  size = struct.pack("<Q", len(data))
  crc = lambda x: struct.pack("<I", record_writer.masked_crc32c(x))
  return size + crc(size) + data + crc(data)
