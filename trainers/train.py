"""Trains what a config describes.

  python -m trainers.train --config configs/digits.py:stem_ln=dpn --workdir W

Started again with the same working directory it resumes where it stopped.
README.md lists what it leaves there.
"""

import os
import time
import traceback

import jax
from absl import flags

from dpn import host_memory, timing
from trainers import cli, distributed, loop

OUT_OF_MEMORY = (
  "the device's memory does not suffice. Three knobs, cheapest first:\n"
  "  config.grad_accum=2 (or 4, …): a smaller part of the batch at a time\n"
  '  config.model.remat_policy="nothing_saveable", config.model.scan=True: '
  "recompute activations\n"
  "  config.sharding_strategy=[('.*', 'fsdp(axis=\"data\")')]: "
  "spread parameters and optimizer over the devices\n"
  "python -m scripts.estimate_memory says what fits, without running."
)


def main():
  config = cli.define_config()
  workdir = flags.DEFINE_string(
    "workdir", None, "Directory of this run: its checkpoints and results."
  )
  allow_config_change = flags.DEFINE_bool(
    "allow_config_change",
    False,
    "Resume a working directory although its config differs from this one.",
  )
  coordinator = flags.DEFINE_string(
    "coordinator",
    None,
    "host:port of process 0. Slurm, Open MPI, Cloud TPU need none of this.",
  )
  num_processes = flags.DEFINE_integer(
    "num_processes", None, "How many processes run this together."
  )
  process_id = flags.DEFINE_integer(
    "process_id", None, "Which of them this is, from 0."
  )
  init_timeout_secs = flags.DEFINE_integer(
    "init_timeout_secs", 300, "How long to wait for the other processes."
  )

  def run():
    phases = timing.PhaseTimer(timing.process_start())
    phases.add("imports", time.monotonic() - timing.process_start())
    _configure_jax(config.value)
    with phases.phase("cluster"):
      distributed.join(
        coordinator.value,
        num_processes.value,
        process_id.value,
        timeout_secs=init_timeout_secs.value,
      )
      host_memory.keep_between_steps()
    loop.train(
      config.value,
      workdir.value,
      allow_config_change=allow_config_change.value,
      phases=phases,
    )

  cli.run(lambda: _explaining(run), ["config", "workdir"])


def _explaining(run):
  """Calls `run`; what it raises becomes a message where one is known."""
  try:
    run()
  except KeyboardInterrupt:
    cli.fail("interrupted. The same command resumes from the last checkpoint.")
  except Exception as e:
    # Of whatever type: JAX raises others where the main thread runs the steps.
    if "RESOURCE_EXHAUSTED" in str(e):
      cli.fail(MemoryError(f"{OUT_OF_MEMORY}\nJAX says: {e}"))
    if isinstance(e, cli.EXPECTED) or not jax.distributed.is_initialized():
      raise
    traceback.print_exception(e)
    cli.fail("see above.")


def _configure_jax(config):
  """Sets what must be set before JAX touches a device."""
  if config.get("deterministic"):
    before = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{before} --xla_gpu_deterministic_ops=true"
  if jax.config.jax_compilation_cache_dir is None:
    caches = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    jax.config.update(
      "jax_compilation_cache_dir", os.path.join(caches, "dual-patchnorm")
    )


if __name__ == "__main__":
  main()
