"""Page faults of steps that keep their memory."""

import ctypes
import json
import statistics
import subprocess
import sys

import pytest

from dpn import host_memory

# Each call needs 64 MB for x, 16,384 pages, that are neither its input nor its
# output; the loop keeps XLA from computing it row by row. prctl's 41 turns huge
# pages off, of which it would take only 32.
PROGRAM = """
import ctypes, resource, sys
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)
import jax
from dpn import host_memory
from dpn.trainers import distributed, train

if sys.argv[1] == "keep":  # as trainers.train does
  train._configure_jax({})
  distributed.join()
  host_memory.keep_between_steps()
host_memory.keep_images()  # as the input does

@jax.jit
def step(key):
  x = jax.random.uniform(key, (4096, 4096))
  return jax.lax.fori_loop(0, 3, lambda i, x: x * x, x).sum(1)

keys = jax.random.split(jax.random.key(0), 8)
faults = []
for key in keys:
  before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  step(key).block_until_ready()
  faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts Linux's pages")
@pytest.mark.slow
def test_a_step_takes_no_new_pages():
  # The median: in the first steps a small piece of memory that is still in use
  # may lie between two large ones, and the heap grows once more.
  faults = {
    how: statistics.median(
      json.loads(
        subprocess.run(
          [sys.executable, "-c", PROGRAM, how],
          capture_output=True,
          text=True,
          check=True,
        ).stdout
      )
    )
    for how in ("keep", "return")
  }
  assert faults["keep"] < 1000 < 16_000 < faults["return"]


def test_too_low_a_limit():
  code = "from dpn import host_memory; host_memory.check_limit()"
  limited = f"ulimit -v 1500000; exec {sys.executable} -c '{code}'"
  done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True)
  assert "may address 1.4 GiB of memory" in done.stderr


def test_other_c_libraries(monkeypatch):
  asked = []
  monkeypatch.setattr(ctypes, "CDLL", asked.append)  # None has no mallopt.
  host_memory.keep_images()
  assert asked == [None, None]
