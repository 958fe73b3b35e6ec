"""What a person sees of a run, and what the run writes down."""

import importlib.metadata
import json
import math
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from absl import logging
from clu import parameter_overview

from dpn import flops, metrics
from dpn import timing as clock
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


def totals(timing: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
  """Returns what a run took as a whole.

  Args:
    timing: the rows of timing.jsonl.

  Returns:
    seconds, core_hours, and the medians images_per_sec and mfu, in [0, 1];
    None where nothing is known.
  """

  def median(name):
    values = [row[name] for row in timing if name in row]
    return statistics.median(values) if values else None

  mfu_percent = median("mfu_percent")
  return {
    "seconds": round(sum(row.get("secs", 0) for row in timing), 1),
    "core_hours": timing[-1].get("core_hours") if timing else None,
    "images_per_sec": median("img_per_sec"),
    "mfu": None if mfu_percent is None else mfu_percent / 100,
  }


class Log:
  """The journal of one run: progress to the person, metrics to the disk.

  Metrics of a step are fetched after the next one has begun, so that the device
  never waits for them; `flush` fetches them at once.
  """

  def __init__(self, experiment, workdir: str, step: int, split: clock.Split):
    self._experiment = experiment
    self.split = split
    self._clock = clock.Clock(experiment.batch_size)
    self._started = self._row_time = time.monotonic()
    self._first_step = self._finite_step = step
    self._bar = sys.stdout.isatty()
    self._pending = self._row = None
    peak = flops.peak(jax.devices()[0])
    self._peak = peak and peak * jax.device_count()
    self._flops = peak and experiment.flops()
    rows = metrics.read(os.path.join(workdir, metrics.TIMING))
    self._core_hours = rows[-1].get("core_hours", 0.0) if rows else 0.0
    self._writer = None
    if jax.process_index() == 0:
      self._writer = metrics.Writer(
        workdir, step=step, wandb=experiment.config.get("wandb")
      )
    rows = metrics.read(os.path.join(workdir, metrics.METRICS))
    self.last_row = rows[-1] if rows else {}

  def tick(self, step: int):
    """Notes that all steps but the one just begun are done."""
    self.flush()
    self._clock.tick()
    if step == self._first_step + 1:
      self._started = time.monotonic()  # the estimate leaves start-up out
      say(f"First step under way after {self._parts()}.")

  def training(self, step: int, values: Mapping[str, jax.Array], batches):
    """Takes the step's values, to be written; ends the clock's interval."""
    figures = {}
    try:
      figures = self._figures(batches.wait_secs)
    except Exception as e:  # whatever it is, it is not worth a run
      logging.warning("The clock failed, the run goes on: %r", e)
    batches.wait_secs = 0.0
    self._pending = (step, values, figures)

  def evaluation(
    self, evaluator: evaluators_base.Scheduled, variables: Mapping[str, Any]
  ) -> dict[str, float]:
    """Returns the metrics of one evaluator and prints them.

    If it fails there are none, and the run goes on; unless
    `config.strict_evals` or other processes, which would wait for this one.
    """
    self.settle()
    begin = time.monotonic()
    with self.split.part("eval"):
      try:
        row = evaluator.run(variables)
      except evaluators_base.EvaluatorError as e:
        strict = self._experiment.config.get("strict_evals")
        if strict or jax.process_count() > 1:
          raise
        self._line(f"  {e} (the run goes on; config.strict_evals stops it)\n")
        logging.warning("%s", e, exc_info=e)
        row = {}
    secs = time.monotonic() - begin
    self._clock.pause(secs)
    shown = ", ".join(
      f"{k} {v:.4f}" for k, v in row.items() if "-seed-" not in k
    )
    if row:
      self._line(f"  {shown}  ({secs:.1f} s)\n")
    return row

  def settle(self):
    """Fetches and prints what `training` took last."""
    if self._pending:
      step, values, figures = self._pending
      self._pending = None
      row = {k: float(v) for k, v in jax.device_get(values).items()}
      self._check_row(step, row)
      self._progress(step, row["loss"], figures)
      self._row = (step, row | self._learning_rates(step))
      if self._writer:
        self._writer.write(step, figures, metrics.TIMING)

  def flush(self, step: int | None = None, row: Mapping[str, float] = {}):
    """Puts on the disk what is not yet there, and a `row` of that `step`."""
    self.settle()
    if self._row:
      step, trained = self._row
      self._row, row = None, trained | row
    if row:
      metrics.check_finite(step, self._finite_step, row)
      self.last_row = {"step": step, **row}
      if self._writer:
        self._writer.write(step, row)

  def take_row(self) -> dict[str, float]:
    """Returns what `flush` would have written; now nobody does."""
    self.settle()
    (_, row), self._row = self._row or (None, {}), None
    return row

  def check_finite(self, step: int, values: Mapping[str, jax.Array]):
    """Raises NonFiniteError if a value of this step is not finite."""
    values = jax.device_get(values)
    self._check_row(step, {k: float(v) for k, v in values.items()})

  def close(self):
    """Says where the time went, and closes the files."""
    say(f"Time: {self._parts()}.")
    if self._writer:
      self._writer.close()

  def _parts(self):
    parts = self.split.secs()
    listed = ", ".join(f"{k} {v:.1f}" for k, v in parts.items() if v >= 0.05)
    return f"{sum(parts.values()):.1f} s ({listed})"

  def _figures(self, wait_secs):
    """Returns the interval's timing."""
    self.split.add("input", wait_secs)
    before, self._row_time = self._row_time, time.monotonic()
    secs = self._row_time - before  # since the last row, evaluations and all
    self._core_hours += jax.device_count() * secs / 3600
    figures = self._clock.lap(wait_secs)
    if self._flops:
      per_sec = figures["img_per_sec"] / self._experiment.batch_size
      figures["mfu_percent"] = 100 * self._flops * per_sec / self._peak
    parts = {f"{k}_secs": v for k, v in self.split.secs().items()}
    return figures | parts | {"core_hours": self._core_hours, "secs": secs}

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
      f"{figures.get('img_per_sec', math.nan):.0f} img/s  "
      f"waiting for data {figures.get('data_wait_percent', math.nan):.0f}%  "
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
