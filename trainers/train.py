"""Trains what a config describes.

  python -m trainers.train --config configs/digits.py:stem_ln=dpn --workdir W

Started again with the same working directory it goes on where it was.
README.md lists what it leaves there.
"""

import contextlib
import os
import sys
import traceback

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from dpn import checkpoint, metrics, sharding
from input_pipeline import device
from trainers import build, report
from trainers import workdir as run_directory

DONE = "done.json"


def train(config, workdir: str, *, allow_config_change: bool = False):
  """Trains and evaluates from wherever `workdir` stands to the end.

  Args:
    config: a ConfigDict.
    workdir: directory of the run.
    allow_config_change: go on although the run there began with another config.

  Raises:
    ValueError, OSError: something in the config, the data or the working
      directory is wrong.
    metrics.NonFiniteError: training diverged.
  """
  prepare = lambda: run_directory.prepare(
    workdir, config.to_dict(), allow_config_change=allow_config_change
  )
  if os.path.exists(os.path.join(workdir, DONE)):
    prepare()
    report.say(f"{workdir} is done already; see {DONE} there.")
    return
  report.environment(config, workdir)
  experiment = build.from_config(config)
  prepare()  # after all that a wrong config could fail at
  checkpoints = checkpoint.Checkpointer(
    os.path.join(workdir, build.CHECKPOINTS),
    timeout_secs=config.get("ckpt_timeout") or 1200,
  )
  with contextlib.closing(checkpoints):
    state, position, source = build.initial_state(experiment, checkpoints)
    report.start(experiment, state, source)
    state, last = loop(experiment, state, position, checkpoints, workdir)
  checkpoint.save_params(
    os.path.join(workdir, "params.safetensors"), state.params
  )
  if jax.process_index() == 0:
    timing = metrics.read(os.path.join(workdir, metrics.TIMING))
    done = {
      "step": experiment.total_steps,
      "seconds": round(sum(row["secs"] for row in timing), 1),
      "metrics": {k: v for k, v in last.items() if k != "step"},
    }
    checkpoint.write_json(os.path.join(workdir, DONE), done)
  report.say(f"Done. Results are in {workdir}.")


def loop(experiment, state, position, checkpoints, workdir):
  """Trains to the last step.

  A step's metrics are on disk before a checkpoint of that step begins: so a
  restart, which drops the metrics after its checkpoint, misses none.

  Args:
    experiment: as built.
    state: to start from; it is consumed.
    position: `examples_seen` before the first step.
    checkpoints: where to save.
    workdir: where to write metrics.

  Returns:
    The last state and the last step's metrics.
  """
  step, seen = int(state.step), position["examples_seen"]
  log = report.Log(experiment, workdir, step)
  batches = device.to_device(
    experiment.data.batches(seen),
    sharding.batch(experiment.mesh),
    prefetch=experiment.config.get("prefetch_to_device") or 2,
  )
  # Every 0 steps: at the end alone.
  due = lambda every: (
    step == experiment.total_steps or (every and step % every == 0)
  )

  def evaluate():
    row = {}
    for evaluator in experiment.evaluators:
      if due(evaluator.every_steps):
        row |= log.evaluation(evaluator, state.variables)
    return row

  values, row = None, log.last_row
  with contextlib.closing(log), contextlib.closing(batches):
    if experiment.total_steps == 0:  # evaluates config.model_init
      row = evaluate()
      log.write(step, row)
    while step < experiment.total_steps:
      previous = values
      state, values = experiment.update(state, next(batches))
      step, seen = step + 1, seen + experiment.batch_size
      # Waiting for the step before keeps the device fed, one step ahead.
      jax.block_until_ready(previous)
      log.tick(step)

      row = {}
      if due(experiment.log_steps):
        row |= log.training(step, values, batches)
      row |= evaluate()
      if row:
        log.write(step, row)
      if due(experiment.ckpt_steps):
        log.check_finite(step, values)
        checkpoints.save(step, state, {"examples_seen": seen})
  return state, row


def main(argv):
  del argv
  if not flags.FLAGS["verbosity"].present:
    logging.set_verbosity(logging.WARNING)  # libraries tell a lot at INFO
  try:
    train(
      _CONFIG.value,
      _WORKDIR.value,
      allow_config_change=_ALLOW_CONFIG_CHANGE.value,
    )
  except (ValueError, OSError, metrics.NonFiniteError) as e:
    fail(e)
  except KeyboardInterrupt:
    sys.exit(
      "\nInterrupted. The same command goes on from the last checkpoint."
    )


def fail(error: BaseException):
  """Ends the process with the message alone, or all of it when asked."""
  if "--traceback" in sys.argv:  # flags may not be parsed yet
    traceback.print_exception(error)
  sys.exit(f"Error: {error}\n(--traceback shows where it comes from.)")


def _parse_flags(argv):
  """Parses flags; what is wrong with a config is an error like any other."""
  try:
    return flags.FLAGS(argv)
  except flags.Error as e:
    fail(_config_error(e) or e)
  except (ValueError, OSError, KeyError, AttributeError) as e:
    fail(e)


def _config_error(error: BaseException | None) -> BaseException | None:
  """Returns what the config raised, which ml_collections wraps in text."""
  while error and "whilst parsing config file" not in str(error.__context__):
    error = error.__context__
  return error and error.__context__.__context__


if __name__ == "__main__":
  _CONFIG = config_flags.DEFINE_config_file(
    "config",
    None,
    "Path of a config file, its arguments after a colon.",
    # Any field may be set; trainers.schema refuses the unknown ones.
    lock_config=False,
    accept_new_attributes=True,
  )
  _WORKDIR = flags.DEFINE_string(
    "workdir", None, "Directory of this run: its checkpoints and results."
  )
  _ALLOW_CONFIG_CHANGE = flags.DEFINE_bool(
    "allow_config_change",
    False,
    "Go on in a working directory although the config differs from its own.",
  )
  flags.DEFINE_bool("traceback", False, "Show where an error comes from.")
  flags.mark_flags_as_required(["config", "workdir"])
  app.run(main, flags_parser=_parse_flags)
