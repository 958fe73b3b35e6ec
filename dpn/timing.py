"""Where the time of a run goes."""

import collections
import contextlib
import math
import os
import time
from typing import Any

import jax
import numpy as np

from dpn import host_memory


class StepTimer:
  """Times steps in intervals; every `lap` starts a new interval.

  Call `tick` once a step has really finished.
  """

  def __init__(self, batch_size: int):
    self._batch_size = batch_size
    self._restart()

  def _restart(self):
    self._start = self._last = time.monotonic()
    self._paused_secs = 0.0
    self._steps = []

  def tick(self):
    """Notes that one more step is done."""
    before, self._last = self._last, time.monotonic()
    self._steps.append(self._last - before)

  def pause(self, secs: float):
    """Leaves `secs`, just spent outside of training, out of the interval."""
    self._paused_secs += secs
    self._last += secs

  def lap(self, wait_secs: float) -> dict[str, float]:
    """Returns the interval's figures; `wait_secs` of it were waits for data."""
    secs = max(time.monotonic() - self._start - self._paused_secs, 1e-9)
    steps = self._steps or [math.nan]
    speed = len(self._steps) * self._batch_size / secs
    figures = {
      "images_per_sec": speed if self._steps else math.nan,
      "step_secs_p50": float(np.percentile(steps, 50)),
      "step_secs_p95": float(np.percentile(steps, 95)),
      "data_wait_percent": min(100.0, 100.0 * wait_secs / secs),
      "peak_memory_gb": peak_memory_bytes() / 2**30,
    }
    self._restart()
    return figures


def process_start() -> float:
  """Returns when this process began, by time.monotonic(); else the time now."""
  try:
    with open("/proc/self/stat") as f:
      ticks = int(f.read().rpartition(")")[2].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    age = since_boot - ticks / os.sysconf("SC_CLK_TCK")
  except OSError:  # not Linux
    age = 0.0
  return time.monotonic() - age


class PhaseTimer:
  """Wall-clock seconds by phase; time outside any phase counts as training.

  Counts from `begin`, by time.monotonic().
  """

  def __init__(self, begin: float):
    self._begin = begin
    self._secs: Any = collections.Counter()

  @contextlib.contextmanager
  def phase(self, name: str):
    """Counts the time spent inside towards the phase `name`."""
    begin = time.monotonic()
    try:
      yield
    finally:
      self.add(name, time.monotonic() - begin)

  def add(self, name: str, secs: float):
    """Counts `secs`, just spent, towards the phase `name`."""
    self._secs[name] += secs

  def secs(self) -> dict[str, float]:
    """Returns the seconds of each phase, and those of training."""
    rest = time.monotonic() - self._begin - self._secs.total()
    return {**self._secs, "train": max(0.0, rest)}


def peak_memory_bytes() -> int:
  """Returns the most memory used so far, by the device or else the process."""
  stats = jax.local_devices()[0].memory_stats() or {}
  if "peak_bytes_in_use" in stats:
    return stats["peak_bytes_in_use"]
  return host_memory.peak_bytes()
