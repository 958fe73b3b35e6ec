"""A tiny run for tests, alone or as one process of several."""

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

from configs import digits
from trainers import cluster, preemption, report, train


def config(**kw) -> ml_collections.ConfigDict:
  """Returns six steps of a tiny model, sharded, evaluated, checkpointed."""
  config = digits.get_config()
  config.update(total_steps=6, ckpt_steps=2, log_training_steps=1)
  del config.total_epochs
  config.schedule.warmup_percent = 0.5
  config.lr = 0.001
  config.log_grad_depth = False
  config.model.update(width=16, depth=1, mlp_dim=32, num_heads=2)
  config.input.batch_size = 16
  config.sharding_strategy = [
    (".*", "fsdp(axis='data', min_size_to_shard_mb=0)")
  ]
  for name in config.evals:
    del config.evals[name].log_percent
    config.evals[name].log_steps = 3
  config.evals.fewshot.shots = (2,)
  config.update(kw)
  return config


def start(
  args: list[str], *, devices: int, log: pathlib.Path | None = None
) -> subprocess.Popen:
  """Starts `python -m args` with so many CPU devices, its output in `log`."""
  flags = f"--xla_force_host_platform_device_count={devices}"
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


def wait_for(log: pathlib.Path, text: str, timeout_secs: float = 120):
  """Returns once the file holds the text.

  Raises:
    TimeoutError: it does not come.
  """
  end = time.monotonic() + timeout_secs
  while text not in log.read_text():
    if time.monotonic() > end:
      raise TimeoutError(f"No {text!r} in {log}:\n{log.read_text()}")
    time.sleep(0.05)


def _worker(workdir: pathlib.Path, port: int, process_id: int):
  """Trains, stopped by a signal to process 1 and resumed; then in one go."""
  cluster.join(f"localhost:{port}", 2, process_id)
  jax.config.update("jax_compilation_cache_dir", str(workdir / "cache"))
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
