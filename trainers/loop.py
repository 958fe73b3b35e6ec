"""Trains, evaluates and saves until a run is done."""

import contextlib
import os
import pathlib
import time

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from dpn import atomic, damage, metrics, processes, schema, timing, trees
from dpn.boards import weights_and_biases
from dpn.evaluators import base as evaluators_base
from dpn.trainers import build, distributed
from dpn.trainers import log as log_lib
from dpn.trainers import workdir as workdir_lib
from dpn.weights import checkpoint, files


def train(
  config,
  workdir: str,
  *,
  allow_config_change: bool = False,
  phases: timing.PhaseTimer | None = None,
):
  """Trains and evaluates from wherever `workdir` stands to the end.

  `phases` says where the time of this process went so far.

  Raises:
    ValueError, OSError: the config, the data or the directory is wrong.
    metrics.NonFiniteError: training diverged.
    evaluators.base.EvaluatorError: with `config.strict_evals`.
  """
  phases = phases or timing.PhaseTimer(time.monotonic())
  lock = lambda: workdir_lib.lock(
    workdir, config.to_dict(), allow_config_change=allow_config_change
  )
  ended = is_done(workdir)
  processes.agree(lambda: _command(config, workdir, ended))
  if ended and not allow_config_change:
    with lock():
      log_lib.say(f"{workdir} is done already; see {workdir_lib.DONE} there.")
    return
  log_lib.environment(config, workdir)
  if config.get("wandb") is not None and jax.process_index() == 0:
    weights_and_biases.check(config.wandb)
  with phases.phase("build"):
    run = build.from_config(config)
  # Locked only now, after all that a wrong config could fail at.
  with lock(), distributed.PreemptionHandler() as preemption:
    if ended and not has_steps_left(run, workdir):
      return
    state, log, done = _resume(run, config, workdir, phases, preemption, ended)
    if done:
      finish(workdir, run, state, log)
    else:
      log_lib.say(preemption.report(f"step {int(state.step)}"))


def _resume(run, config, workdir, phases, preemption, ended):
  """Trains a run that is locked from wherever it stands, perhaps at its end.

  Returns the last state, the log, closed, and whether nothing remains to be
  done.
  """
  with contextlib.ExitStack() as stack:
    checkpoints = open_checkpoints(run, workdir)
    stack.enter_context(contextlib.closing(checkpoints))
    log_lib.start(run)
    with phases.phase("state"):
      state, position, source = build.initial_state(run, checkpoints)
      if checkpoints.latest is not None:
        workdir_lib.check_own(workdir, config.to_dict(), position)
      processes.agree(lambda: _restored(state, position, source))
    step = int(state.step)
    check_total(run, step, source)
    if ended:
      extend(run, workdir, step)
    log_lib.begin(run, step, source, position["examples_seen"])
    progress = log_lib.Progress(run, workdir, step, phases)
    stack.enter_context(contextlib.closing(progress))
    log = stack.enter_context(
      open_log(run, config, workdir, state, position, progress)
    )
    state, done = loop(
      run, state, position, checkpoints, log, progress, preemption
    )
  return state, log, done


@contextlib.contextmanager
def open_log(run, config, workdir, state, position, progress):
  """Yields the log, with what is evaluated before this start's first step."""
  config, step = config.to_dict(), int(state.step)
  if jax.process_index() == 0:
    workdir_lib.record(workdir, config)
  found = evaluate(run, due_first(run, step, position), state, progress)
  row = position.get("unevaluated", {}) | found
  log = log_lib.MetricsLog(
    workdir,
    step=step,
    again=bool(row),
    rows=position.get("rows", 0),
    config=config,
  )
  with contextlib.closing(log):
    log.add(step, row)
    log.flush()
    yield log


def check_total(run, step, source):
  """Raises ValueError if a run is to end before where it starts."""
  if step > run.total_steps:
    raise ValueError(
      f"The checkpoint is of step {step} ({source}), and the config's total is "
      f"{run.total_steps} steps. Set config.total_steps to {step} or more, or "
      "give another --workdir."
    )


def has_steps_left(run, workdir) -> bool:
  """Returns whether a finished run has more steps to do; says so if not.

  Raises ValueError if it cannot do them, or has done more.
  """
  folder = os.path.join(workdir, files.CHECKPOINTS)
  step = checkpoint.Checkpointer(folder, read_only=True).latest
  workdir_lib.check_extendable(workdir, step)
  check_total(run, step, "this run's checkpoint")
  if step == run.total_steps:
    log_lib.say_wrapped(
      f"{workdir} is done already, at step {step}: more steps than these, with "
      "--allow_config_change, would continue it."
    )
  return step < run.total_steps


def extend(run, workdir, step):
  """Sets the results of a finished run aside, and says how it goes on."""
  aside = workdir_lib.set_results_aside(workdir, step)
  log_lib.say_wrapped(
    f"{workdir} was done at step {step} and goes on to {run.total_steps}. From "
    f"here on its schedule is that of {run.total_steps} steps: a rate that has "
    f"decayed rises again. Results until now: {', '.join(aside)}."
  )


def is_done(workdir):
  """Returns whether a run is done; not if its done.json is damaged."""
  path = os.path.join(workdir, workdir_lib.DONE)
  if not os.path.exists(path):
    return False
  try:
    schema.read_json(path, files.Done)
  except ValueError as e:
    log_lib.say(f"{e} It is written anew.")
    return False
  return True


def _command(config, workdir, done):
  """Returns what must be the same on all processes before anything is built."""
  return {
    "config": config.to_dict(),
    "workdir": {"path": os.path.abspath(workdir), "done": done},
    "versions": log_lib.versions(),
    "code": workdir_lib.code_checksum(),
  }


def _restored(state, position, source):
  """Returns what must be the same on all processes where training begins."""
  whole = (x for x in jax.tree.leaves(state) if x.is_fully_replicated)
  local = [x.addressable_data(0) for x in whole]
  checksum = trees.checksum(local)
  return {"position": position, "source": source, "checksum": checksum}


def loop(run, state, position, checkpoints, log, progress, preemption):
  """Trains to the last step, or to where the scheduler asks to stop.

  A step's metrics are on disk before a checkpoint of that step begins: so a
  restart, which drops the metrics after its checkpoint, misses none. Where
  SIGTERM cuts an evaluation short, the step's own metrics go into the
  checkpoint, as `unevaluated`, and the restart begins with that evaluation.
  `position` says how many `examples_seen`, `rows` of metrics.jsonl, and perhaps
  `skipped`, came before; in a checkpoint, also the `config_hash` of its run.

  Returns the last state, and whether nothing remains to be done.
  """
  step, seen = int(state.step), position["examples_seen"]
  if step == run.total_steps:
    return state, True
  with progress.compiling():
    update = run.step.compile()
  values, stop, unevaluated = None, False, {}
  batches = run.batches(seen)
  with contextlib.closing(batches), _naming_leaves(lambda: state):
    while step < run.total_steps and not stop:
      previous, batch = values, next(batches)
      if step == 0:
        log.show_pictures(batch)
      state, values = update(state, batch)
      step, seen = step + 1, seen + run.batch_size
      # Waiting for the step before keeps the device fed, one step ahead.
      jax.block_until_ready(previous)
      progress.tick(step)
      log.flush()
      if run.due(run.log_steps, step):
        log.add_timing(step, progress.lap(batches.wait_secs))
        found = values | _skipped(run, position, batches)
        log.add(step, deferred_row(run, step, found, progress.show))
      if due := run.evaluators_due(step):
        log.fetch()
        log.check_finite(step, values)  # stops here if training has diverged
        try:
          with preemption.interruptible():
            log.add(step, evaluate(run, due, state, progress))
          log.flush()
        except distributed.Preempted:
          unevaluated = {"unevaluated": log.pop()}
      stop = preemption.should_stop(step)
      if stop or run.checkpoint_due(step):
        log.flush()
        log.check_finite(step, values)
        with progress.phases.phase("checkpoint"):
          counts = saved_position(run, seen, log) | _skipped(
            run, position, batches
          )
          checkpoints.save(step, state, counts | unevaluated)
  return state, step == run.total_steps and not unevaluated


def open_checkpoints(run, workdir) -> checkpoint.Checkpointer:
  """Returns a run's checkpoints, which the caller closes."""
  return checkpoint.Checkpointer(
    os.path.join(workdir, files.CHECKPOINTS),
    timeout_secs=run.config.get("ckpt_timeout") or 1200,
    keep_every_steps=run.keep_ckpt_steps,
  )


def saved_position(run, examples_seen, log) -> dict[str, int | str]:
  """Returns what a checkpoint says of the run beside its state."""
  config_hash = workdir_lib.config_hash(run.config.to_dict())
  return {
    "examples_seen": examples_seen,
    "rows": log.rows,
    "config_hash": config_hash,
  }


def _skipped(run, position, batches):
  """Returns how many examples failed so far, if config.input skips them."""
  if run.config["input"].get("on_error") != "skip":
    return {}
  here = multihost_utils.process_allgather(np.int32(batches.skipped))
  return {"skipped": position.get("skipped", 0) + int(np.sum(here))}


def deferred_row(run, step, values, show):
  """Returns a function that returns the metrics of a training step.

  It also calls `show` with the step and its loss.
  """

  def fetch():
    row = {k: float(v) for k, v in jax.device_get(values).items()}
    show(step, row["loss"])
    rates = {  # those that made this step
      f"lr_{i}" if i else "lr": run.config["lr"] * float(fn(step - 1))
      for i, fn in enumerate(run.step.schedule_fns)
    }
    return row | rates

  return fetch


def due_first(run, step, position):
  """Returns the evaluators to run before the first step of this process.

  They are those that SIGTERM cut short; at step 0 those with `skip_first` off;
  and in a run without steps all of them, on config.model_init.
  """
  if "unevaluated" in position:
    return run.evaluators_due(step)
  every = step == run.total_steps == 0
  return [e for e in run.evaluators if step == 0 and (every or e.first)]


def evaluate(run, evaluators, state, progress):
  """Returns the metrics of these evaluators.

  One that fails has none, and the run continues; unless `config.strict_evals`
  or other processes, which would wait for this one.
  """
  row = {}
  for evaluator in evaluators:
    begin, found = time.monotonic(), {}
    with progress.phases.phase("eval"):
      try:
        found = evaluator.run(state.variables)
      except evaluators_base.EvaluatorError as e:
        if run.config.get("strict_evals") or jax.process_count() > 1:
          raise
        log_lib.say(f"  {e} (the run goes on; config.strict_evals stops it)")
        logging.warning("%s", e, exc_info=e)
    progress.evaluated(int(state.step), found, time.monotonic() - begin)
    row |= found
  return row


@contextlib.contextmanager
def _naming_leaves(state):
  """Adds to a NonFiniteError which arrays of state() are to blame."""
  try:
    yield
  except metrics.NonFiniteError as e:
    if leaves := trees.nonfinite(state()):
      rest = "." if len(leaves) <= 10 else f" and {len(leaves) - 10} more."
      found = f"Not finite now: {', '.join(leaves[:10])}{rest}"
    else:
      name, size = trees.largest(state().params)
      found = f"Finite still, but largest: params/{name}, {size:.3g}."
    e.args = (f"{e}\n{found}",)
    raise


def finish(workdir, run, state, log):
  """Exports the parameters and writes, last of all, done.json."""
  checkpoint.save_params(
    os.path.join(workdir, workdir_lib.PARAMS),
    state.variables["params"],
    state.variables.get(files.STATISTICS),
    build.params_metadata(run),
  )
  if jax.process_index() == 0:
    rows = metrics.read(os.path.join(workdir, metrics.TIMING))
    done = {
      "step": int(state.step),
      **log_lib.totals(rows),
      "metrics": {k: v for k, v in log.last_row.items() if k != "step"},
    }
    if log.lost:
      done["lost_rows"] = log.lost
    if ends := workdir_lib.earlier_ends(workdir, int(state.step)):
      done["extended_at"] = ends
    if damaged := damage.found(pathlib.Path(workdir)):
      done["damaged"] = damaged
    pathlib.Path(workdir, workdir_lib.DIVERGED).unlink(missing_ok=True)
    atomic.write_json(os.path.join(workdir, workdir_lib.DONE), done)
  log_lib.say(f"Done. Results are in {workdir}.")
