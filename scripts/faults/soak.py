"""A long run, whose memory, descriptors, threads and speed must stay flat."""

import os
import pathlib
import statistics
import time

from dpn import metrics
from dpn.scripts.faults.runs import Runs

FLAGS = (
  "--config.total_epochs=100000",
  "--config.ckpt_steps=7",
  "--config.log_training_steps=5",
  "--config.evals.test.log_percent=1e-5",  # of 1.1 million steps
  "--config.evals.fewshot.log_percent=4e-5",
)
# From the second third of the time to the last one.
MAY_GROW = {
  "memory_mb": lambda before: 0.02 * before + 10,
  "descriptors": lambda before: 2,
  "threads": lambda before: 2,
  "step_secs": lambda before: 0.25 * before,
}


def soak(runs: Runs, minutes: float) -> dict[str, tuple[float, float]]:
  """Returns what a run used, in the second and in the last third of a time.

  Medians of resident memory, file descriptors, threads and seconds per step.

  Raises:
    AssertionError: one of them grew.
  """
  process = runs.start("soak", *FLAGS)
  try:
    runs.wait_for(process, "soak", "step 10/")
    samples, end = [], time.monotonic() + 60 * minutes
    while time.monotonic() < end:
      assert process.poll() is None, f"ended: {runs.log('soak')[-300:]}"
      samples.append(sample(process.pid))
      time.sleep(minutes / 5)  # 300 samples
  finally:
    process.kill()
    process.wait()
  rows = metrics.read(str(runs.root / "soak" / metrics.TIMING))
  steps = [{"step_secs": row["step_secs_p50"]} for row in rows]
  return assert_flat(samples) | assert_flat(steps)


def sample(pid: int) -> dict[str, float]:
  """Returns what a process uses now."""
  folder = pathlib.Path("/proc", str(pid))
  pages = int((folder / "statm").read_text().split()[1])
  return {
    "memory_mb": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
    "descriptors": len(os.listdir(folder / "fd")),
    "threads": len(os.listdir(folder / "task")),
  }


def assert_flat(samples) -> dict[str, tuple[float, float]]:
  """Returns medians of the second and the last third, by name.

  Raises AssertionError where they differ by more than `MAY_GROW`.
  """
  third, found = len(samples) // 3, {}
  assert third, "too short for a comparison"
  for name in samples[0]:
    before, after = (
      statistics.median(sample[name] for sample in part)
      for part in (samples[third : 2 * third], samples[2 * third :])
    )
    limit = before + MAY_GROW[name](before)
    assert after <= limit, f"{name} grew from {before:g} to {after:g}"
    found[name] = before, after
  return found
