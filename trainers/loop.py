"""Trains, evaluates and saves until a run is done: of one seed, or several."""

import contextlib
import os
import pathlib
import time
from collections.abc import Sequence

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from dpn import errors, metrics, processes, timing, weights_and_biases
from dpn.trainers import build, distributed, ends, mean_loss
from dpn.trainers import log as log_lib
from dpn.trainers import seeds as seeds_lib
from dpn.trainers import workdir as workdir_lib
from dpn.weights import checkpoint, files


def train(
  config,
  workdir: str,
  seeds: Sequence[int] | None = None,
  *,
  allow_config_change: bool = False,
  phases: timing.PhaseTimer | None = None,
):
  """Trains and evaluates from wherever `workdir` stands to the end.

  Args:
    config: of the run; with `seeds`, of every run but for its seed.
    workdir: of the run; with `seeds` a pattern that contains "{seed}".
    seeds: to train together, in a program whose every step is a step of all.
      Seeds that are done or have diverged are left out.
    allow_config_change: see `workdir.lock`.
    phases: says where the time of this process went so far.

  Raises:
    ValueError, OSError: the config, the data or a directory is wrong; or the
      seeds stand at different steps.
    errors.NonFiniteError: training diverged. With several seeds, one did, now
      or before; the others are done.
    errors.EvaluatorError: with `config.strict_evals` or several processes.
  """
  phases = phases or timing.PhaseTimer(time.monotonic())
  every = seeds_lib.of_config(config, workdir, seeds)
  done = [ends.done_step(seed.workdir) is not None for seed in every]
  processes.agree(lambda: _command(config, workdir, done, allow_config_change))
  lock = lambda seed: workdir_lib.lock(
    seed.workdir, seed.config.to_dict(), allow_config_change=allow_config_change
  )
  if all(done) and not allow_config_change:
    for seed in every:
      with lock(seed):
        pass
    log_lib.say(f"{workdir} is done already; see {workdir_lib.DONE} there.")
    return
  finished = [s for s, ended in zip(every, done, strict=True) if ended]
  todo = [s for s, ended in zip(every, done, strict=True) if not ended] or every
  others = [] if all(done) else finished
  if others:
    named = errors.some_of(seed.workdir for seed in others)
    log_lib.say(f"Done already, and left out: {named}.")
  failures = [e for s in todo if seeds and (e := s.previous_failure())]
  if failures:
    todo = [seed for seed in todo if not seed.previous_failure()]
  if not todo:
    raise failures[0]
  log_lib.environment(config, workdir)
  if config.get("wandb") is not None and jax.process_index() == 0:
    weights_and_biases.check(config.wandb)
  with phases.phase("build"):
    todo[0].run = build.from_config(todo[0].config)
    for seed in todo[1:]:
      seed.run = todo[0].run.of_seed(seed.config)
  # Locked only now, after everything that can fail on a wrong config.
  with contextlib.ExitStack() as stack:
    for seed in [*todo, *([] if allow_config_change else others)]:
      stack.enter_context(lock(seed))
    for seed in todo:
      mark = pathlib.Path(seed.workdir, workdir_lib.DIVERGED)
      mark.unlink(missing_ok=True)
    workdir_lib.check_shared(workdir)
    if not _train(todo, phases, extends=all(done)):
      return
  failures += [seed.failure for seed in todo if seed.failure]
  if failures:
    raise failures[0]


def _train(seeds, phases, *, extends) -> bool:
  """Trains runs that are locked; returns whether all that remained is done.

  `extends` says that they were finished runs.
  """
  with distributed.PreemptionHandler() as preemption:
    if extends:
      seeds = [s for s in seeds if ends.has_steps_left(s.run, s.workdir)]
    if not seeds:
      return True
    together = seeds_lib.Together(seeds)
    if not _resume(together, seeds, phases, preemption, extends):
      healthy = [seed.workdir for seed in together.healthy]
      saved = f"step {together.step}" + " of all seeds" * (len(healthy) > 1)
      if not any(
        os.listdir(os.path.join(x, files.CHECKPOINTS)) for x in healthy
      ):
        saved = ""
      log_lib.say(preemption.report(saved))
      return False
    for seed, own in together.states():
      ends.finish(seed.run, seed.workdir, own, seed.log)
  return True


def _resume(together, seeds, phases, preemption, extends) -> bool:
  """Opens the files that training writes, and trains from where the runs stand.

  Returns what `loop` returns, after closing all files.
  """
  run = together.run
  with contextlib.ExitStack() as stack:
    for seed in seeds:
      seed.checkpoints = checkpoint.Checkpointer(
        os.path.join(seed.workdir, files.CHECKPOINTS),
        timeout_secs=run.config.get("ckpt_timeout") or 1200,
        keep_every_steps=run.keep_ckpt_steps,
      )
      stack.enter_context(contextlib.closing(seed.checkpoints))
    log_lib.start(run)
    # Read before a process moves done.json: all meet in `restore`.
    steps = [ends.done_step(seed.workdir) for seed in seeds if extends]
    with phases.phase("state"):
      source = together.restore(extends=extends)
    step, seen = together.step, seeds[0].position["examples_seen"]
    ends.check_total(run, step, source)
    if extends:
      for seed, end in zip(seeds, steps, strict=True):
        ends.extend(run, seed.workdir, end, step)
    log_lib.begin(run, step, source, seen)
    progress = log_lib.Progress(
      run, seeds[0].workdir, step, phases, seeds=len(seeds)
    )
    stack.enter_context(contextlib.closing(progress))
    for seed, own in together.states():
      seed.log = stack.enter_context(open_log(run, seed, own, progress))
    return loop(together, progress, preemption)


@contextlib.contextmanager
def open_log(run, seed, state, progress):
  """Yields the log, with what is evaluated before this start's first step."""
  config, step = seed.config.to_dict(), int(state.step)
  if jax.process_index() == 0:
    data = {"data": run.data.checksum()}
    if changed := workdir_lib.record(seed.workdir, config, data):
      log_lib.say_wrapped(f"Warning: {changed}")
  position, written, at_end = seed.position, {}, step == run.total_steps
  unlogged = position.keys() & {"unevaluated", mean_loss.KEY}
  if at_end or unlogged:
    written = metrics.row_of(os.path.join(seed.workdir, metrics.METRICS), step)
  # Its row came after the checkpoint where a run was to end here, or goes on.
  later = written and position.pop("unevaluated", None) is not None
  if "loss" in written:
    position.pop(mean_loss.KEY, None)
  row = (mean_loss.since_logged(position) if at_end else {}) | written
  row = row | position.get("unevaluated", {})
  row |= evaluate(run, due_first(run, step, position, row), state, progress)
  again = row != written
  log = log_lib.MetricsLog(
    seed.workdir,
    step=step,
    again=again,
    rows=position.get("rows", 0) + bool(later) - bool(again and written),
    config=config,
  )
  with contextlib.closing(log):
    log.add(step, row if again else {})
    log.flush()
    yield log


def _command(config, workdir, done, allow_config_change):
  """Returns what must be the same on all processes before anything is built."""
  return {
    "config": config.to_dict(),
    "workdir": {"path": os.path.abspath(workdir), "done": done},
    "versions": log_lib.versions(),
    "code": workdir_lib.code_checksum(),
    "allow_config_change": allow_config_change,
    **{name: _flags(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")},
  }


def _flags(variable):
  """Returns the flags of an environment variable that may change a program."""
  of_host = ("--xla_dump_", "--xla_gpu_cuda_data_dir", "--xla_force_host_")
  flags = os.environ.get(variable, "").split()
  return sorted(flag for flag in flags if not flag.startswith(of_host))


def loop(together, progress, preemption) -> bool:
  """Trains to the last step, or to where the scheduler asks to stop.

  Returns whether nothing remains to be done.
  """
  run, step, values, stop = together.run, together.step, None, False
  if step == run.total_steps:
    return True
  if preemption.should_stop():  # compiling may outlast the time that is left
    return False
  with progress.compiling():
    update = together.compile()
  losses = mean_loss.MeanLoss(together)
  with contextlib.closing(together.batches()) as batches:
    while step < run.total_steps and not stop:
      previous, batch = values, next(batches)
      if previous is None:
        log_lib.first_batch(batch.get("image"))
      if step == 0:
        for seed, own in together.each(batch):
          seed.log.show_pictures(own)
      together.state, values = update(together.state, batch)
      losses.add(values["loss"])
      step += 1
      # Waiting for the previous step keeps the device fed, one step ahead.
      jax.block_until_ready(previous)
      progress.tick(step)
      for seed in together.healthy:
        with together.may_diverge(seed):
          seed.log.flush()
      if logged := run.due(run.log_steps, step):
        row = {**values, "loss": losses.take()}
        log_step(together, step, row, batches, progress)
      if due := run.evaluators_due(step):
        evaluate_all(together, due, step, values, progress, preemption)
      stop = preemption.should_stop()
      if stop or run.checkpoint_due(step):
        jax.block_until_ready(values)  # or the step would be timed as saving
        with progress.phase("checkpoint"):
          save(together, step, values, batches, losses)
      if logged or stop:
        log_timing(together, step, progress.row())
  unevaluated = any(seed.unevaluated for seed in together.healthy)
  return step == run.total_steps and not unevaluated


def log_step(together, step, values, batches, progress):
  """Adds the metrics of a row to the logs; the first healthy seed's are shown.

  All are of this step, except the loss: that is the mean since the last row.
  """
  progress.lap(batches.wait_secs)
  shown = together.healthy[0]
  for seed, own in together.each(values):
    show = progress.show if seed is shown else None
    found = own | _skipped(seed, batches)
    with together.may_diverge(seed):
      seed.log.add(step, deferred_row(seed.run, step, found, show))


def log_timing(together, step, row):
  """Adds a row with each seed's share of the costs to its timing.jsonl."""
  seeds = len(together)
  cost = {k: row[k] / seeds for k in ("seconds", "core_hours") if k in row}
  use = {"mfu": row["mfu"] * seeds} if "mfu" in row else {}
  for seed in together.healthy:
    seed.log.add_timing(step, row | cost | use)


def deferred_row(run, step, values, show=None):
  """Returns a function that returns the metrics of a training step.

  It also calls `show` with the step and its loss.
  """

  def fetch():
    row = {k: float(v) for k, v in jax.device_get(values).items()}
    if show:
      show(step, row["loss"])
    rates = {  # those that this step used
      f"lr_{i}" if i else "lr": run.config["lr"] * float(fn(step - 1))
      for i, fn in enumerate(run.step.schedule_fns)
    }
    return row | rates

  return fetch


def _skipped(seed, batches):
  """Returns how many examples failed so far, if config.input skips them."""
  if seed.config["input"].get("on_error") != "skip":
    return {}
  here = multihost_utils.process_allgather(np.int32(batches.skipped))
  return {"skipped": seed.position.get("skipped", 0) + int(np.sum(here))}


def evaluate_all(together, due, step, values, progress, preemption):
  """Adds what evaluators measure to the logs, unless a seed has diverged.

  If SIGTERM cuts this short, the step's own metrics go into the checkpoint, as
  `unevaluated`, and the restart begins with this evaluation.
  """
  for seed, own in together.each(values):
    with together.may_diverge(seed):
      seed.log.fetch()
      seed.log.check_finite(step, own)
  try:
    for seed, own in together.states():
      with together.may_diverge(seed), preemption.interruptible():
        found = evaluate(together.run, due, own, progress)
        seed.log.add(step, found)
    for seed in together.healthy:
      with together.may_diverge(seed):
        seed.log.flush()
  except distributed.Preempted:
    for seed in together.healthy:
      seed.unevaluated = {"unevaluated": seed.log.pop()}


def evaluate(run, evaluators, state, progress):
  """Returns the metrics of these evaluators.

  If one fails, the run goes on without its metrics; but not if there is
  `config.strict_evals`, or other processes, which would wait for this one.
  """
  row = {}
  for evaluator in evaluators:
    begin, found = time.monotonic(), {}
    with progress.phase("eval"):
      try:
        found = evaluator.run(state.variables)
      except errors.EvaluatorError as e:
        if run.config.get("strict_evals") or jax.process_count() > 1:
          raise
        log_lib.say(f"  {e} (the run goes on; config.strict_evals stops it)")
        logging.warning("%s", e, exc_info=e)
    progress.evaluated(int(state.step), found, time.monotonic() - begin)
    row |= found
  return row


def due_first(run, step, position, row):
  """Returns the evaluators to run before the first step of this process.

  Those are what SIGTERM cut short; at step 0, those with `skip_first` off; at
  the last step, where a stopped run has no more steps to do, those that `row`
  lacks; and in a run without steps all of them, on config.model_init.
  """
  if "unevaluated" in position:
    return run.evaluators_due(step)
  if step == run.total_steps:
    due = run.evaluators_due(step) if step else run.evaluators
    prefixes = sorted((e.prefix for e in run.evaluators), key=len, reverse=True)
    done = {next(filter(key.startswith, prefixes), None) for key in row}
    return [e for e in due if e.prefix not in done]
  return [e for e in run.evaluators if step == 0 and e.first]


def save(together, step, values, batches, losses):
  """Begins checkpoints of all healthy seeds.

  Metrics until `step` are on disk first: a restart drops those after its
  checkpoint, and so misses none. A checkpoint's `position` says its `step`, how
  many `examples_seen` and `rows` of metrics.jsonl came before, the
  `config_hash` of its run and perhaps `skipped`, `unevaluated` and the losses
  of steps that no row has yet.
  """
  for seed, own in together.each(values):
    with together.may_diverge(seed):
      seed.log.flush()
      seed.log.check_finite(step, own)
  # No seed may be two saves ahead of one whose save failed.
  for seed in together.healthy:
    seed.checkpoints.wait()
  unlogged = losses.positions()
  for (seed, own), loss in zip(together.states(), unlogged, strict=True):
    done_here = (step - seed.first_step) * seed.run.batch_size
    position = {
      "step": step,
      "examples_seen": seed.position["examples_seen"] + done_here,
      "rows": seed.log.rows,
      "config_hash": workdir_lib.config_hash(seed.config.to_dict()),
      **_skipped(seed, batches),
      **seed.unevaluated,
      **loss,
    }
    seed.checkpoints.save(step, own, position)
