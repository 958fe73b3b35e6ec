"""What a run writes down (MetricsLog) and what a person sees (Progress)."""

import collections
import importlib.metadata
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import jax
import tqdm
from absl import logging
from clu import parameter_overview

from dpn import flops, metrics, timing
from dpn.trainers import build, update

PACKAGES = (
  *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy"),
)


def say(message: str):
  """Prints a message, once per run however many processes it has."""
  if jax.process_index() == 0:
    with tqdm.tqdm.external_write_mode():  # above the bar, if there is one
      print(message, flush=True)


def versions() -> dict[str, str]:
  """Returns the versions of Python and of the packages that matter most."""
  packages = {p: importlib.metadata.version(p) for p in PACKAGES}
  return {"Python": platform.python_version()} | packages


def environment(config, workdir: str):
  """Prints the resolved config, the versions and the devices."""
  say(f"Config:\n{json.dumps(config.to_dict(), indent=2)}")
  say(f"Versions: {', '.join(map(' '.join, versions().items()))}")
  kinds = sorted({d.device_kind for d in jax.devices()})
  say(
    f"Devices: {jax.device_count()} x {', '.join(kinds)}, in "
    f"{jax.process_count()} process(es)"
  )
  say(f"Working directory: {workdir}")


def start(run: build.Run, state: update.TrainState, source: str):
  """Prints what is trained, on how much, and from where."""
  for note in run.notes:
    say(f"Note: {note}")
  table = parameter_overview.get_parameter_overview
  say(table(run.step.shapes.params, include_stats=False))
  examples = run.data.num_examples
  epochs = run.total_steps * run.batch_size / examples
  say(
    f"Training on {examples} examples for {run.total_steps} steps of "
    f"{run.batch_size} ({epochs:.1f} epochs), from step {state.step}: {source}"
  )


def totals(rows: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
  """Returns what a run took as a whole, from the rows of timing.jsonl.

  images_per_sec and mfu, in [0, 1], are medians; None stands for unknown.
  """

  def median(name):
    values = [row[name] for row in rows if name in row]
    return statistics.median(values) if values else None

  return {
    "seconds": round(sum(row.get("seconds", 0) for row in rows), 1),
    "core_hours": rows[-1].get("core_hours") if rows else None,
    "images_per_sec": median("images_per_sec"),
    "mfu": median("mfu"),
  }


class Progress:
  """How far and how fast a run is: a bar on terminals, lines elsewhere."""

  def __init__(
    self, run: build.Run, workdir: str, step: int, phases: timing.PhaseTimer
  ):
    """Starts at `step`; adds to the core hours in the run's timing.jsonl."""
    self.phases = phases
    self._run, self._first_step = run, step
    self._steps = timing.StepTimer(run.batch_size)
    self._started = self._lap_time = time.monotonic()
    self._waited_secs = 0.0
    peak = flops.peak(jax.devices()[0])
    self._peak = peak and peak * jax.device_count()
    self._flops = peak and run.step.flops()
    rows = metrics.read(os.path.join(workdir, metrics.TIMING))
    self._core_hours = rows[-1].get("core_hours", 0.0) if rows else 0.0
    self._bar = tqdm.tqdm(
      total=run.total_steps,
      initial=step,
      unit="step",
      dynamic_ncols=True,
      disable=jax.process_index() != 0 or not sys.stderr.isatty(),
    )

  def tick(self, step: int):
    """Notes that all steps before `step`, which has just begun, are done."""
    self._steps.tick()
    if step == self._first_step + 1:
      self._started = time.monotonic()  # the estimate leaves start-up out
      say(f"First step under way after {self._phase_secs()}.")

  def lap(self, waited_secs: float) -> dict[str, float]:
    """Returns a row for timing.jsonl: the interval since the last one.

    So far, all steps together have waited `waited_secs` for data.
    """
    try:
      self._shown = self._figures(waited_secs)
    except Exception as e:  # whatever it is, it is not worth a run
      logging.warning("The clock failed, the run goes on: %r", e)
      self._shown = {}
    return self._shown

  def _figures(self, waited_secs):
    wait_secs = waited_secs - self._waited_secs
    self._waited_secs = waited_secs
    self.phases.add("input", wait_secs)
    now = time.monotonic()
    secs, self._lap_time = now - self._lap_time, now  # with evaluations
    self._core_hours += jax.device_count() * secs / 3600
    row = self._steps.lap(wait_secs)
    if self._flops:
      steps_per_sec = row["images_per_sec"] / self._run.batch_size
      row["mfu"] = self._flops * steps_per_sec / self._peak
    phases = {f"{k}_secs": v for k, v in self.phases.secs().items()}
    return row | phases | {"core_hours": self._core_hours, "seconds": secs}

  def show(self, step: int, loss: float):
    """Shows the loss of a step, with the speed of the last lap."""
    shown = collections.defaultdict(lambda: math.nan, self._shown)
    speed = (
      f"loss {loss:.4g}  {shown['images_per_sec']:.0f} img/s  "
      f"waiting for data {shown['data_wait_percent']:.0f}%"
    )
    if not self._bar.disable:
      self._bar.set_postfix_str(speed, refresh=False)
      self._bar.update(step - self._bar.n)
      return
    total = self._run.total_steps
    per_step = (time.monotonic() - self._started) / (step - self._first_step)
    eta = tqdm.tqdm.format_interval(per_step * (total - step))
    say(f"step {step}/{total} ({step / total:.0%})  {speed}  ETA {eta}")

  def evaluated(self, row: Mapping[str, float], secs: float):
    """Shows an evaluation's metrics and leaves its time out of the steps'."""
    self._steps.pause(secs)
    shown = [f"{k} {v:.4f}" for k, v in row.items() if "-seed-" not in k]
    if shown:
      say(f"  {', '.join(shown)}  ({secs:.1f} s)")

  def close(self):
    """Ends the bar and says where the time went."""
    self._bar.close()
    say(f"Time: {self._phase_secs()}.")

  def _phase_secs(self):
    secs = self.phases.secs()
    listed = ", ".join(f"{k} {v:.1f}" for k, v in secs.items() if v >= 0.05)
    return f"{sum(secs.values()):.1f} s ({listed})"


class MetricsLog:
  """Collects the row of a step and writes it, whole and finite, in one go.

  Every method may be called at any time: a row is complete when one of another
  step begins, or at `flush`.
  """

  def __init__(
    self,
    workdir: str,
    *,
    step: int,
    rows: int = 0,
    wandb: Mapping | None = None,
  ):
    """Opens the files; see `metrics.Writer`.

    Until `step` the run has made so many `rows`; a file that has lost some is
    no reason to stop.
    """
    first = jax.process_index() == 0
    self._writer = first and metrics.Writer(workdir, step=step, wandb=wandb)
    self._path = os.path.join(workdir, metrics.METRICS)
    found = metrics.read(self._path)
    self.last_row = found[-1] if found else {}
    self.rows = rows
    if self.lost:
      say(f"Note: {self._path} has lost {self.lost} of {rows} rows.")
    self._step, self._finite_step = step, max(step, 0)
    self._parts, self._row = [], {}

  @property
  def lost(self) -> int:
    """How many of the rows made so far are not on the disk."""
    return max(0, self.rows - len(metrics.read(self._path)))

  def add(self, step: int, part: Mapping[str, float] | Callable[[], Mapping]):
    """Adds numbers by name to the row of a step.

    A function that returns them is called late, so the device need not wait.
    """
    if step != self._step:
      self.flush()
    self._step = step
    self._parts.append(part)

  def fetch(self):
    """Waits for the numbers of the current row; they must be finite."""
    parts, self._parts = self._parts, []
    for part in parts:
      part = part() if callable(part) else part
      self.check_finite(self._step, part)
      self._row |= part

  def flush(self):
    """Writes the current row, which must be finite, to the disk."""
    row = self.pop()
    if row:
      self.last_row = {"step": self._step, **row}
      self.rows += 1
      if self._writer:
        self._writer.write(self._step, row)

  def pop(self) -> dict[str, float]:
    """Returns the current row, which will not be written."""
    self.fetch()
    row, self._row = self._row, {}
    return row

  def add_timing(self, step: int, row: Mapping[str, float]):
    """Writes a row of timing.jsonl."""
    if self._writer:
      self._writer.write(step, row, metrics.TIMING)

  def check_finite(self, step: int, values: Mapping[str, jax.Array | float]):
    """Raises NonFiniteError if a value of this step is not finite."""
    values = {k: float(v) for k, v in jax.device_get(dict(values)).items()}
    metrics.check_finite(step, self._finite_step, values)
    self._finite_step = step

  def close(self):
    if self._writer:
      self._writer.close()
