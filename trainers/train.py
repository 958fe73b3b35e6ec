"""Trains what a config describes.

  python -m trainers.train --config configs/digits.py:stem_ln=dpn --workdir W

Started again with the same working directory it goes on where it was.
README.md lists what it leaves there.
"""

import contextlib
import os
import time
import traceback

import jax
import numpy as np
from absl import flags
from jax.experimental import multihost_utils

from dpn import host_memory, metrics, sharding, trees
from dpn import timing as clock
from dpn.weights import checkpoint, files
from input_pipeline import device
from trainers import build, cli, distributed, preemption, provenance
from trainers import log as report
from trainers import workdir as run_directory

DONE = "done.json"
OUT_OF_MEMORY = (
  "the device's memory does not suffice. Three knobs, cheapest first:\n"
  "  config.grad_accum=2 (or 4, …): a smaller part of the batch at a time\n"
  '  config.model.remat_policy="nothing_saveable", config.model.scan=True: '
  "recompute activations\n"
  "  config.sharding_strategy=[('.*', 'fsdp(axis=\"data\")')]: "
  "spread parameters and optimizer over the devices\n"
  "python -m scripts.estimate_memory says what fits, without running."
)


def train(
  config,
  workdir: str,
  *,
  allow_config_change: bool = False,
  split: clock.Split | None = None,
):
  """Trains and evaluates from wherever `workdir` stands to the end.

  Args:
    config: a ConfigDict.
    workdir: directory of the run.
    allow_config_change: go on although the run there began with another config.
    split: where the time of this process went so far; None to start counting.

  Raises:
    ValueError, OSError: something in the config, the data or the working
      directory is wrong.
    metrics.NonFiniteError: training diverged.
    evaluators.base.EvaluatorError: with `config.strict_evals`.
  """
  split = split or clock.Split(time.monotonic())
  hold = lambda: run_directory.hold(
    workdir, config.to_dict(), allow_config_change=allow_config_change
  )
  if os.path.exists(os.path.join(workdir, DONE)):
    with hold():
      report.say(f"{workdir} is done already; see {DONE} there.")
    return
  report.environment(config, workdir)
  with split.part("build"):
    experiment = build.from_config(config)
  # Only now, after all that a wrong config could fail at.
  with hold(), preemption.Notice() as notice:
    checkpoints = checkpoint.Checkpointer(
      os.path.join(workdir, build.CHECKPOINTS),
      timeout_secs=config.get("ckpt_timeout") or 1200,
    )
    with contextlib.closing(checkpoints):
      with split.part("state"):
        state, position, source = build.initial_state(experiment, checkpoints)
      if jax.process_index() == 0:
        run_directory.write_config(workdir, config.to_dict())
        provenance.record(workdir, config.to_dict())
      report.start(experiment, state, source)
      log = report.Log(experiment, workdir, int(state.step), split)
      with contextlib.closing(log):
        state, done = loop(
          experiment, state, position, checkpoints, log, notice
        )
    if not done:
      report.say(
        f"Asked to stop (SIGTERM), and saved step {int(state.step)}. The same "
        "command goes on from there."
      )
    else:
      finish(workdir, experiment, state, log.last_row)


def finish(workdir, experiment, state, last_row):
  """Exports the parameters and writes, last of all, done.json."""
  checkpoint.save_params(
    os.path.join(workdir, "params.safetensors"),
    state.variables["params"],
    state.variables.get(files.STATISTICS),
    build.description(experiment),
  )
  if jax.process_index() == 0:
    timing = metrics.read(os.path.join(workdir, metrics.TIMING))
    done = {
      "step": int(state.step),
      **report.totals(timing),
      "metrics": {k: v for k, v in last_row.items() if k != "step"},
    }
    checkpoint.write_json(os.path.join(workdir, DONE), done)
  report.say(f"Done. Results are in {workdir}.")


def loop(experiment, state, position, checkpoints, log, notice):
  """Trains to the last step, or to where `notice` asks to stop.

  A step's metrics are on disk before a checkpoint of that step begins: so a
  restart, which drops the metrics after its checkpoint, misses none. Where
  SIGTERM cuts an evaluation short, the step's own metrics go into the
  checkpoint, and the restart begins with that evaluation.

  Args:
    experiment: as built.
    state: to start from; it is consumed.
    position: `examples_seen` before the first step, and perhaps `skipped` and
      `unevaluated`.
    checkpoints: where to save.
    log: where to write metrics.
    notice: whether to stop early.

  Returns:
    The last state, and whether nothing remains to be done.
  """
  step, seen = int(state.step), position["examples_seen"]
  evaluate_first(experiment, state, position, log)
  if step == experiment.total_steps:
    return state, True

  def skipped():
    return _skipped(experiment, batches, position.get("skipped", 0))

  def save(**position):
    with log.split.part("checkpoint"):
      counts = {"examples_seen": seen, **skipped()}
      checkpoints.save(step, state, counts | position)

  with log.split.part("compile"):
    update = experiment.compile()
  values, stop = None, False
  with (
    contextlib.closing(batches_from(experiment, seen)) as batches,
    _naming_leaves(lambda: state),
  ):
    while step < experiment.total_steps and not stop:
      previous = values
      state, values = update(state, next(batches))
      step, seen = step + 1, seen + experiment.batch_size
      # Waiting for the step before keeps the device fed, one step ahead.
      jax.block_until_ready(previous)
      log.tick(step)

      if experiment.due(experiment.log_steps, step):
        log.training(step, values | skipped(), batches)
      try:
        with notice.interrupts():
          row = evaluate(experiment, state, step, log)
      except preemption.Preempted:
        log.check_finite(step, values)
        save(unevaluated=log.take_row())
        return state, False
      if row:
        log.flush(step, row)
      stop = notice.stop_after(step)
      if experiment.due(experiment.ckpt_steps, step) or stop:
        log.flush()
        log.check_finite(step, values)
        save()
  return state, step == experiment.total_steps


def evaluate_first(experiment, state, position, log):
  """Runs the evaluations that come before any step.

  They are those that SIGTERM cut short and, in a run without steps, all: of
  config.model_init.
  """
  step = int(state.step)
  if "unevaluated" in position:
    row = evaluate(experiment, state, step, log)
    log.flush(step, position["unevaluated"] | row)
  elif experiment.total_steps == 0:
    log.flush(step, evaluate(experiment, state, step, log))


def evaluate(experiment, state, step, log):
  """Returns the metrics of the evaluators whose turn it is after `step`."""
  row = {}
  for evaluator in experiment.evaluators:
    if experiment.due(evaluator.every_steps, step):
      row |= log.evaluation(evaluator, state.variables)
  return row


def batches_from(experiment, examples_seen):
  """Returns an iterator of batches on the devices, from this position on."""
  return device.to_device(
    experiment.data.batches(examples_seen),
    sharding.batch(experiment.mesh),
    prefetch=experiment.config.get("prefetch_to_device") or 2,
  )


def _skipped(experiment, batches, before):
  """Returns how many examples failed so far, if config.input skips them."""
  if experiment.config.input.get("on_error") != "skip":
    return {}
  here = multihost_utils.process_allgather(np.int32(batches.skipped))
  return {"skipped": before + int(np.sum(here))}


@contextlib.contextmanager
def _naming_leaves(state):
  """Adds to a NonFiniteError which arrays of state() are to blame."""
  try:
    yield
  except metrics.NonFiniteError as e:
    if leaves := trees.nonfinite(state()):
      more = f" and {len(leaves) - 10} more" if len(leaves) > 10 else ""
      e.args = (f"{e}\nNot finite now: {', '.join(leaves[:10])}{more}.",)
    else:
      name, size = trees.largest(state().params)
      e.args = (f"{e}\nFinite still, but largest: params/{name}, {size:.3g}.",)
    raise


def main():
  split = clock.Split(clock.process_start())
  split.add("imports", time.monotonic() - clock.process_start())
  try:
    _configure_jax(_CONFIG.value)
    with split.part("cluster"):
      distributed.join(
        _COORDINATOR.value,
        _NUM_PROCESSES.value,
        _PROCESS_ID.value,
        timeout_secs=_INIT_TIMEOUT_SECS.value,
      )
      host_memory.keep_between_steps()
    train(
      _CONFIG.value,
      _WORKDIR.value,
      allow_config_change=_ALLOW_CONFIG_CHANGE.value,
      split=split,
    )
  except KeyboardInterrupt:
    cli.fail("interrupted. The same command goes on from the last checkpoint.")
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
    flags_so_far = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags_so_far} --xla_gpu_deterministic_ops=true"
  if jax.config.jax_compilation_cache_dir is None:
    caches = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    jax.config.update(
      "jax_compilation_cache_dir", os.path.join(caches, "dual-patchnorm")
    )


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of this run: its checkpoints and results."
  )
  _ALLOW_CONFIG_CHANGE = flags.DEFINE_bool(
    "allow_config_change",
    False,
    "Go on in a working directory although the config differs from its own.",
  )
  _COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "host:port of process 0. Slurm, Open MPI, Cloud TPU need none of this.",
  )
  _NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "How many processes run this together."
  )
  _PROCESS_ID = flags.DEFINE_integer(
    "process_id", None, "Which of them this is, from 0."
  )
  _INIT_TIMEOUT_SECS = flags.DEFINE_integer(
    "init_timeout_secs", 300, "How long to wait for the other processes."
  )
  cli.run(main, ["config", "workdir"])
