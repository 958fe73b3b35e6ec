"""Trains what a config describes.

  python -m trainers.train --config configs/digits.py:stem_ln=dpn --workdir W

Started again with the same working directory, it resumes where it stopped.
docs/training.md lists what it leaves there.
"""

import glob
import os
import signal
import sys
import time
import traceback

import jax
from absl import flags

from dpn import errors, host_memory, timing
from dpn.trainers import cli, distributed, loop

OUT_OF_MEMORY = (
  "the device's memory does not suffice. Three knobs, cheapest first:\n"
  "  config.grad_accum=2 (or 4, …): a smaller part of the batch at a time\n"
  '  config.model.remat_policy="nothing_saveable", config.model.scan=True: '
  "recompute activations\n"
  "  config.sharding_strategy=[('.*', 'fsdp(axis=\"data\")')]: "
  "spread parameters and optimizer over the devices\n"
  "On a GPU, XLA_CLIENT_MEM_FRACTION=0.95 in the environment gives JAX more "
  "than three quarters of its memory.\n"
  "python -m scripts.compile says what fits, without running."
)

NVIDIA = "/dev/nvidia[0-9]*"  # where Linux lists GPUs
WITHOUT_GPU = (
  "JAX has fallen back to the CPU, though this machine has an NVIDIA GPU. "
  "JAX's message above says what failed; pip install -e '.[cuda13]' brings "
  "CUDA's libraries. To train on the CPU: JAX_PLATFORMS=cpu in the environment."
)
UNSAVED = "Interrupted. The same command resumes from the last checkpoint."
LOST = (
  "Another process of this run may have ended: its own output says why. The "
  "same command, for all processes, resumes from the last checkpoint."
)


def main():
  config = cli.define_config()
  text, number = flags.DEFINE_string, flags.DEFINE_integer
  workdir = text("workdir", None, "Folder for checkpoints and results.")
  allow_config_change = flags.DEFINE_bool(
    "allow_config_change", False, "Resume even if the config differs."
  )
  seeds = flags.DEFINE_list(
    "seeds", None, "Seeds to train together, in W/…{seed}…; see trainers.seeds."
  )
  flags.register_validator(
    seeds,
    lambda given: all(seed.isdecimal() for seed in given or ()),
    "expected whole numbers such as 0,1,2",
  )
  # Not needed where JAX finds the others, as with Slurm and on a Cloud TPU.
  coordinator = text("coordinator", None, "Address of process 0: host:port.")
  num_processes = number("num_processes", None, "Number of processes.")
  process_id = number("process_id", None, "Number of this process, from 0.")
  timeout = number("init_timeout_secs", 300, "Time to wait for all processes.")

  def run():
    distributed.PreemptionHandler.after = signal.SIG_IGN
    began = timing.process_start()
    phases = timing.PhaseTimer(began)
    phases.add("imports", time.monotonic() - began)
    _configure_jax(config.value)
    with phases.phase("cluster"):
      distributed.join(
        coordinator.value,
        num_processes.value,
        process_id.value,
        timeout_secs=timeout.value,
      )
      _check_backend()
      host_memory.keep_between_steps()
    loop.train(
      config.value,
      workdir.value,
      seeds.value and [int(seed) for seed in seeds.value],
      allow_config_change=allow_config_change.value,
      phases=phases,
    )
    distributed.wait_for_others("the end of the run")

  cli.run(lambda: _explaining(run), ["config", "workdir"])


def _explaining(run):
  """Calls `run`; where a message for its exception is known, shows that."""
  try:
    run()
  except KeyboardInterrupt as e:
    print(str(e) or UNSAVED, file=sys.stderr)
    sys.exit(distributed.INTERRUPTED)
  except Exception as e:
    # By text, as types vary: JAX raises others where the main thread runs the
    # steps. In an OSError, about files, it means a full disk.
    if "RESOURCE_EXHAUSTED" in str(e) and not isinstance(e, OSError):
      knobs = OUT_OF_MEMORY
      if isinstance(e, errors.EvaluatorError):
        knobs = "set a smaller config.evals.NAME.batch_size."
      cli.fail(MemoryError(f"{knobs}\nJAX says: {e}"))
    if isinstance(e, cli.EXPECTED) and "Gloo" not in str(e):
      raise
    if not jax.distributed.is_initialized():
      raise
    traceback.print_exception(e)
    cli.fail(LOST)


def _check_backend():
  """Raises OSError if JAX could not use a GPU, about which it only warns."""
  hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
  chosen = hidden or "JAX_PLATFORMS" in os.environ
  if jax.default_backend() == "cpu" and not chosen and glob.glob(NVIDIA):
    raise OSError(WITHOUT_GPU)


def _configure_jax(config):
  """Sets what must be set before JAX touches a device."""
  # host_memory.keep_between_steps needs it. JAX reads it when it makes its CPU
  # client, as distributed.join lets it.
  jax.config.update("jax_cpu_enable_async_dispatch", False)
  if config.get("deterministic"):
    before = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{before} --xla_gpu_deterministic_ops=true"
  if jax.config.jax_compilation_cache_dir is None:
    caches = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    folder = os.path.join(caches, "dual-patchnorm")
    jax.config.update("jax_compilation_cache_dir", folder)


if __name__ == "__main__":
  main()
