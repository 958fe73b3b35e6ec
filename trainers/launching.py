"""A tiny run as one of two processes, for tests."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import ml_collections
from jax.experimental import multihost_utils

from trainers import distributed, preemption, testing, train
from trainers import log as report

FSDP = [(".*", "fsdp(axis='data', min_size_to_shard_mb=0)")]


def config() -> ml_collections.ConfigDict:
  """Returns a tiny run, everything sharded, with a row for every step."""
  return testing.tiny_config(
    sharding_strategy=FSDP,
    log_training_steps=1,
    # Adam would turn rounding errors of vanishing gradients into whole steps.
    optax_name="trace",
    optax={"decay": 0.9},
  )


def start(
  args: list[str], *, devices: int, log: pathlib.Path | None = None
) -> subprocess.Popen:
  """Starts `python -m args` with so many CPU devices, its output in `log`."""
  # The other flags decide what XLA compiles, and so how it rounds: keep them.
  flags = os.environ.get("XLA_FLAGS", "")
  flags += f" --xla_force_host_platform_device_count={devices}"
  with open(log or os.devnull, "w") as f:
    return subprocess.Popen(
      [sys.executable, "-m", *args],
      env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
      cwd=pathlib.Path(__file__).parent.parent,
      stdout=f,
      stderr=subprocess.STDOUT,
    )


def free_port() -> int:
  """Returns a port at which nothing listens just now."""
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    return s.getsockname()[1]


def wait_for(
  process: subprocess.Popen,
  log: pathlib.Path,
  text: str,
  timeout_secs: float = 120,
):
  """Returns once the log of a process holds the text.

  Raises:
    TimeoutError: it does not come.
  """
  end = time.monotonic() + timeout_secs
  while text not in log.read_text():
    if time.monotonic() > end or process.poll() is not None:
      raise TimeoutError(f"No {text!r} in {log}:\n{log.read_text()}")
    time.sleep(0.05)


def _worker(workdir: pathlib.Path, port: int, process_id: int):
  """Trains, stopped by a signal to process 1 and resumed; then in one go."""
  distributed.join(f"localhost:{port}", 2, process_id)
  jax.config.update("jax_compilation_cache_dir", str(workdir / "cache"))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  tick = report.Log.tick

  def slow_tick(log, step):
    if process_id == 1 and step == 1:
      os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.7)  # the notice takes its time from one to the other
    tick(log, step)

  report.Log.tick = slow_tick
  train.train(config(), str(workdir / "stopped"))
  report.Log.tick = tick
  if process_id == 0:
    shutil.copytree(workdir / "stopped", workdir / "moved")
  multihost_utils.sync_global_devices("copied")
  train.train(config(), str(workdir / "stopped"))
  # JAX would stop every run of this process after the step agreed upon.
  preemption.Notice.stop_after = lambda notice, step: False
  train.train(config(), str(workdir / "whole"))


if __name__ == "__main__":
  _worker(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
