"""Ends of runs: what a finished run leaves, and how it trains further."""

import os
import pathlib
from typing import Any

import jax

from dpn import atomic, damage, metrics, schema
from dpn.trainers import build
from dpn.trainers import log as log_lib
from dpn.trainers import workdir as workdir_lib
from dpn.weights import checkpoint, files


def done_step(workdir: str) -> int | None:
  """Returns the step at which a run is done by its done.json, None if not."""
  path = os.path.join(workdir, workdir_lib.DONE)
  if not os.path.exists(path):
    return None
  try:
    return schema.read_json(path, files.Done).get("step")
  except ValueError as e:
    log_lib.say(f"{e} It is written anew.")
    return None


def check_total(run: build.Run, step: int, source: str):
  """Raises ValueError if a run would end before the step it starts from."""
  if step > run.total_steps:
    raise ValueError(
      f"The checkpoint is of step {step} ({source}), and the config's total is "
      f"{run.total_steps} steps. Set config.total_steps to {step} or more, or "
      "give another --workdir."
    )


def has_steps_left(run: build.Run, workdir: str) -> bool:
  """Returns whether a finished run has more steps to do; says so if not.

  Raises ValueError if it has no checkpoint, or one beyond the last step.
  """
  folder = os.path.join(workdir, files.CHECKPOINTS)
  step = checkpoint.Checkpointer(folder, read_only=True).latest
  if step is None:
    raise ValueError(
      f"{workdir} is done and has no checkpoint from which it could go on. "
      f"Train its parameters further with config.model_init={workdir!r} and "
      "another --workdir."
    )
  check_total(run, step, "this run's checkpoint")
  if step == run.total_steps:
    log_lib.say_wrapped(
      f"{workdir} is done already, at step {step}: more steps than these, with "
      "--allow_config_change, would continue it."
    )
  return step < run.total_steps


def extend(run: build.Run, workdir: str, end: int | None, step: int):
  """Sets the results of a finished run aside, and says how it goes on.

  It was done at step `end`, and goes on from `step`: the same, or an earlier
  one if the last checkpoint is damaged.
  """
  aside = []
  # done.json comes last: without it the run is no longer a finished one.
  for name in (workdir_lib.PARAMS, workdir_lib.TEST, workdir_lib.DONE):
    there = os.path.join(workdir, name)
    if os.path.exists(there):
      aside.append(name.replace(".", f"-{end}."))
      if jax.process_index() == 0:
        os.replace(there, os.path.join(workdir, aside[-1]))
  log_lib.say_wrapped(
    f"{workdir} was done at step {end} and goes on to {run.total_steps}"
    f"{f', from step {step}' * (step != end)}. From here on its schedule is "
    f"that of {run.total_steps} steps: a rate that has decayed rises again. "
    f"Results until now: {', '.join(aside)}."
  )


def finish(run: build.Run, workdir: str, state, log: log_lib.MetricsLog):
  """Exports the parameters and writes, last of all, done.json."""
  files.save_params(
    os.path.join(workdir, workdir_lib.PARAMS),
    state.variables["params"],
    state.variables.get(files.STATISTICS),
    build.params_metadata(run),
  )
  if jax.process_index() == 0:
    folder, step = pathlib.Path(workdir), int(state.step)
    rows = metrics.read(os.path.join(workdir, metrics.TIMING))
    row = {k: v for k, v in log.last_row.items() if k != "step"}
    done: dict[str, Any] = {
      "step": step,
      "metrics_crc32": metrics.checksum(os.path.join(workdir, metrics.METRICS)),
      **log_lib.totals(rows),
      "metrics": row,
    }
    before = (p.stem.split("-", 1)[1] for p in folder.glob("done-*.json"))
    ends = sorted(int(end) for end in before if end.isdecimal())
    notes: dict[str, Any] = {
      "lost_rows": log.lost,
      "extended_at": [end for end in ends if end < step],
      "damaged": damage.found(folder),
    }
    done |= {name: value for name, value in notes.items() if value}
    atomic.write_json(os.path.join(workdir, workdir_lib.DONE), done)
  log_lib.say(f"Done. Results are in {workdir}.")
