"""What a person sees of a run, and what the run writes down."""

import importlib.metadata
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
from clu import parameter_overview

from dpn import clock, metrics
from evaluators import base as evaluators_base

PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def say(message: str):
  """Prints a message, once per run however many processes it has."""
  if jax.process_index() == 0:
    print(message, flush=True)


def environment(config, workdir: str):
  """Prints the resolved config, the versions and the devices."""
  say(f"Config:\n{json.dumps(config.to_dict(), indent=2)}")
  versions = [f"{p} {importlib.metadata.version(p)}" for p in PACKAGES]
  say(f"Versions: Python {platform.python_version()}, {', '.join(versions)}")
  kinds = sorted({d.device_kind for d in jax.devices()})
  say(
    f"Devices: {jax.device_count()} x {', '.join(kinds)}, in "
    f"{jax.process_count()} process(es)"
  )
  say(f"Working directory: {workdir}")


def start(experiment, state, source: str):
  """Prints what is trained, on how much, and from where."""
  for note in experiment.notes:
    say(f"Note: {note}")
  say(
    parameter_overview.get_parameter_overview(
      experiment.shapes.params, include_stats=False
    )
  )
  step, total = int(state.step), experiment.total_steps
  epochs = total * experiment.batch_size / experiment.data.num_examples
  say(
    f"Training on {experiment.data.num_examples} examples for {total} steps of "
    f"{experiment.batch_size} ({epochs:.1f} epochs), from step {step}: {source}"
  )


class Log:
  """The journal of one run: progress to the person, metrics to the disk."""

  def __init__(self, experiment, workdir: str, step: int):
    self._experiment = experiment
    self._clock = clock.Clock(experiment.batch_size)
    self._started = self._row_time = time.monotonic()
    self._first_step = self._finite_step = step
    self._bar = sys.stdout.isatty()
    self._writer = None
    if jax.process_index() == 0:
      self._writer = metrics.Writer(
        workdir, step=step, wandb=experiment.config.get("wandb")
      )
    rows = metrics.read(os.path.join(workdir, metrics.METRICS))
    self.last_row = rows[-1] if rows else {}

  def tick(self, step: int):
    """Notes that all steps but the one just begun are done."""
    self._clock.tick()
    if step == self._first_step + 1:
      secs = time.monotonic() - self._started
      self._started += secs  # the estimate leaves compilation out
      say(f"First step under way after {secs:.1f} s (compilation included).")

  def training(
    self, step: int, values: Mapping[str, jax.Array], batches
  ) -> dict[str, float]:
    """Returns the step's training metrics; prints and times the interval."""
    row = {k: float(v) for k, v in jax.device_get(values).items()}
    metrics.check_finite(step, self._finite_step, row)
    row |= self._learning_rates(step)
    figures = self._clock.lap(batches.wait_secs) | {"secs": self._since_row()}
    batches.wait_secs = 0.0
    if self._writer:
      self._writer.write(step, figures, metrics.TIMING)
    self._progress(step, row["loss"], figures)
    return row

  def evaluation(
    self, evaluator: evaluators_base.Scheduled, variables: Mapping[str, Any]
  ) -> dict[str, float]:
    """Returns the metrics of one evaluator and prints them."""
    begin = time.monotonic()
    row = evaluator.run(variables)
    secs = time.monotonic() - begin
    self._clock.pause(secs)
    shown = ", ".join(
      f"{k} {v:.4f}" for k, v in row.items() if "-seed-" not in k
    )
    self._line(f"  {shown}  ({secs:.1f} s)\n")
    return row

  def write(self, step: int, row: Mapping[str, float]):
    """Puts one step's metrics on the disk."""
    self._check_row(step, row)
    if self._writer:
      self._writer.write(step, row)

  def check_finite(self, step: int, values: Mapping[str, jax.Array]):
    """Raises NonFiniteError if a value of this step is not finite."""
    values = jax.device_get(values)
    self._check_row(step, {k: float(v) for k, v in values.items()})

  def close(self):
    if self._writer:
      self._writer.close()

  def _since_row(self):
    """Returns the seconds since the last row, evaluations and all."""
    before, self._row_time = self._row_time, time.monotonic()
    return self._row_time - before

  def _check_row(self, step, row):
    metrics.check_finite(step, self._finite_step, row)
    self._finite_step = step

  def _learning_rates(self, step):
    """Returns the rates that made this step: `lr`, `lr_1` and so on."""
    lr = self._experiment.config["lr"]
    return {
      f"lr_{i}" if i else "lr": lr * float(fn(step - 1))
      for i, fn in enumerate(self._experiment.schedule_fns)
    }

  def _progress(self, step, loss, figures):
    total = self._experiment.total_steps
    per_step = (time.monotonic() - self._started) / (step - self._first_step)
    text = (
      f"step {step}/{total} ({step / total:.0%})  loss {loss:.4g}  "
      f"{figures['img_per_sec']:.0f} img/s  "
      f"waiting for data {figures['data_wait_percent']:.0f}%  "
      f"ETA {clock.hms(per_step * (total - step))}"
    )
    if self._bar:
      cells = 20
      done = cells * step // total
      text = f"[{'#' * done}{'.' * (cells - done)}] {text}"
      end = "\n" if step == total else ""
    else:
      end = "\n"
    self._line(text + end)

  def _line(self, text):
    """Prints over the current line of a terminal, below it elsewhere."""
    if jax.process_index() == 0:
      if self._bar:
        width = shutil.get_terminal_size().columns
        text = (
          f"\r\x1b[K{text if text.endswith(chr(10)) else text[: width - 1]}"
        )
      print(text, end="", flush=True)
