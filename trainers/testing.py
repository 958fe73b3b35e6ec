"""Runs of seconds, in this process or in others, for tests.

As a program it is one of two processes that train together.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import jax
import ml_collections
from jax.experimental import multihost_utils

from trainers import distributed, loop
from trainers import log as log_lib

ROOT = pathlib.Path(__file__).parent.parent

PP = "resize(20)|central_crop(16)|value_range(-1, 1)"
LABELS = '|onehot(10, key="label", key_result="labels")|keep("image", "labels")'
DIGITS = "arrays:digits"
FSDP = [(".*", "fsdp(axis='data', min_size_to_shard_mb=0)")]


def tiny_config(**changes: Any) -> ml_collections.ConfigDict:
  """Returns a run of six steps on digits, with everything random in it.

  Args:
    **changes: by dotted name, given as {"model.width": 32}; new keys may be
      wrong ones.
  """
  config = ml_collections.ConfigDict(
    {
      "seed": 0,
      "num_classes": 10,
      "loss": "softmax_xent",
      "total_steps": 6,
      "log_training_steps": 2,
      "ckpt_steps": 2,
      "log_grad_depth": True,
      "input": {
        "data": {"name": DIGITS, "split": "train[:40]"},
        "batch_size": 8,
        "pp": PP.replace("central", "random") + LABELS,
      },
      "mixup": {"p": 0.2},
      "model": {
        "width": 16,
        "depth": 1,
        "mlp_dim": 32,
        "num_heads": 2,
        "patch_size": (8, 8),
        "pool_type": "tok",
        "stem_ln": "dpn",
        "dropout": 0.1,
      },
      "optax_name": "scale_by_adam",
      "grad_clip_norm": 1.0,
      "lr": 0.002,
      "wd": 0.0002,
      "schedule": {"warmup_steps": 1, "decay_type": "cosine"},
      "evals": {
        "test": {
          "type": "classification",
          "data": {"name": DIGITS, "split": "test[:20]"},
          "pp_fn": PP + LABELS,
          "loss_name": "softmax_xent",
          "log_steps": 3,
        },
        "fewshot": {
          "type": "fewshot_lsr",
          "datasets": {"digits": (DIGITS, "train[:60]", "test[:20]")},
          "pp_train": f'{PP}|keep("image", "label")',
          "pp_eval": f'{PP}|keep("image", "label")',
          "shots": (1, 2),
          "log_steps": 6,
        },
      },
    }
  )
  for name, value in changes.items():
    *parents, key = name.split(".")
    section = config
    for parent in parents:
      section = section[parent]
    with section.unlocked(), section.ignore_type():
      section[key] = value
  return config


def sharded_config() -> ml_collections.ConfigDict:
  """Returns a tiny run, everything sharded, with a row for every step."""
  return tiny_config(
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
      cwd=ROOT,
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
  tick = log_lib.Progress.tick

  def slow_tick(progress, step):
    if process_id == 1 and step == 1:
      os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.7)  # the notice takes its time from one to the other
    tick(progress, step)

  log_lib.Progress.tick = slow_tick
  loop.train(sharded_config(), str(workdir / "stopped"))
  log_lib.Progress.tick = tick
  if process_id == 0:
    shutil.copytree(workdir / "stopped", workdir / "moved")
  multihost_utils.sync_global_devices("copied")
  loop.train(sharded_config(), str(workdir / "stopped"))
  # JAX would stop every run of this process after the step agreed upon.
  distributed.PreemptionHandler.should_stop = lambda handler, step: False
  loop.train(sharded_config(), str(workdir / "whole"))


if __name__ == "__main__":
  _worker(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
