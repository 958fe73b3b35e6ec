"""What a run logs to files (MetricsLog) and shows to people (Progress)."""

import collections
import contextlib
import importlib.metadata
import json
import math
import os
import platform
import statistics
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import tqdm
from absl import logging

from dpn import flops, metrics, timing
from dpn.trainers import build, parameter_table

WIDTH = 80  # of a terminal
_PICTURES = 8
_MAX_PIXEL = 20  # of images that were normalized, with some margin
PACKAGES = (
  *("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy"),
  "opencv-python-headless",
)


def say(message: str):
  """Prints a message, once per run however many processes it has.

  A terminal that has gone away, or a log on a full disk, does not end a run.
  """
  if jax.process_index() == 0:
    # Above the bar, if there is one.
    with contextlib.suppress(OSError), tqdm.tqdm.external_write_mode():
      print(message, flush=True)


def say_wrapped(message: str, indent: str = ""):
  """Prints a message, wrapped to a terminal's width with a hanging indent.

  All lines begin with `indent`.
  """
  wrapped = textwrap.fill(
    message,
    WIDTH,
    break_long_words=False,
    initial_indent=indent,
    subsequent_indent=f"{indent}  ",
  )
  say(wrapped)


def versions() -> dict[str, str]:
  """Returns the versions of Python and of the packages that matter most."""
  packages = {p: importlib.metadata.version(p) for p in PACKAGES}
  return {"Python": platform.python_version()} | packages


def environment(config, workdir: str):
  """Prints the resolved config, the versions and the devices."""
  say("Config: {")
  for key, value in config.to_dict().items():
    say_wrapped(f'"{key}": {json.dumps(value)},', indent="  ")
  say("}")
  say_wrapped(f"Versions: {', '.join(map(' '.join, versions().items()))}")
  kinds = sorted({d.device_kind for d in jax.devices()})
  say(
    f"Devices: {jax.device_count()} x {', '.join(kinds)}, in "
    f"{jax.process_count()} process(es)"
  )
  say(f"Working directory: {workdir}")


def start(run: build.Run):
  """Prints what is to be trained, and on how much."""
  for note in run.notes:
    say_wrapped(f"Note: {note}")
  say(parameter_table.table(run.step.shapes.params))
  examples = run.data.num_examples
  epochs = run.total_steps * run.batch_size / examples
  say(
    f"Training on {examples} examples for {run.total_steps} steps of "
    f"{run.batch_size} ({epochs:.1f} epochs)"
  )


def begin(run: build.Run, step: int, source: str, examples_seen: int):
  """Prints from where training begins, and what was loaded for it."""
  for note in run.loaded:
    say_wrapped(f"Note: {note}")
  say(f"Starting from step {step}: {source}")
  if examples_seen != step * run.batch_size:
    to_come = (run.total_steps - step) * run.batch_size
    seen, more = (n / run.data.num_examples for n in (examples_seen, to_come))
    say_wrapped(
      "Note: batches were of another size before. This run has seen "
      f"{seen:.1f} epochs so far, and {more:.1f} more are to come; "
      "config.total_steps sets how many."
    )


def first_batch(images: jax.Array | None):
  """Prints the range of the first batch's pixels.

  Warns unless they look normalized. All processes must call this.
  """
  if images is None or images.ndim < 4:
    return
  moments = jax.jit(lambda x: (x.min(), x.max(), x.mean(), x.std()))
  low, high, mean, std = map(float, jax.device_get(moments(images)))
  say(
    f"Pixels of the first batch: from {low:.3g} to {high:.3g}, mean "
    f"{mean:.3g}, deviation {std:.3g}"
  )
  if max(-low, high) > _MAX_PIXEL or std == 0:
    say_wrapped(
      "Warning: models expect pixels around 0 with a deviation of about 1. Is "
      "value_range(-1, 1), or another op that normalizes, missing in "
      "config.input.pp, or of another range?"
    )


def totals(rows: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
  """Returns what a run took as a whole, from the rows of timing.jsonl.

  images_per_sec, mfu (in [0, 1]) and memory are medians; None means unknown.
  Steps that were repeated after a kill count in core_hours alone.
  """

  def median(name):
    values = [row[name] for row in rows if name in row]
    return statistics.median(values) if values else None

  return {
    "seconds": round(sum(row.get("seconds", 0) for row in rows), 1),
    "core_hours": rows[-1].get("core_hours") if rows else None,
    "images_per_sec": median("images_per_sec"),
    "mfu": median("mfu"),
    "peak_memory_gb": median("peak_memory_gb"),
  }


class Progress:
  """How far and how fast a run is: a bar on terminals, lines elsewhere."""

  def __init__(
    self,
    run: build.Run,
    workdir: str,
    step: int,
    phases: timing.PhaseTimer,
    *,
    seeds: int = 1,
  ):
    """Starts at `step`; adds to the core hours in the run's timing.jsonl.

    If `seeds` runs train together, the file of each has only its share of the
    core hours.
    """
    self.phases = phases
    self._run, self._first_step = run, step
    self._steps = timing.StepTimer(run.batch_size)
    self._started = self._row_time = time.monotonic()
    self._lap: dict[str, float] = {}  # figures that no row has yet
    self._waited_secs = 0.0
    peak = flops.peak(jax.devices()[0])
    self._peak = peak and peak * jax.device_count()
    self._flops = peak and run.step.flops()
    rows = metrics.read(os.path.join(workdir, metrics.TIMING))
    share = rows[-1].get("core_hours", 0.0) if rows else 0.0
    self._core_hours = seeds * share
    self._bar = tqdm.tqdm(
      total=run.total_steps,
      initial=step,
      unit="step",
      dynamic_ncols=True,
      bar_format="{n_fmt}/{total_fmt} {bar} {percentage:.0f}%{postfix}",
      disable=jax.process_index() != 0 or not sys.stderr.isatty(),
    )

  @contextlib.contextmanager
  def compiling(self):
    """Announces the wait for compilation; steps are timed from its end on."""
    folder = jax.config.jax_compilation_cache_dir
    kept = f";\nkept for the next time in {folder}" if folder else ""
    say(f"Compiling the training step (a minute or more if it is deep{kept}) …")
    with self.phases.phase("compile"):
      yield
    self._steps = timing.StepTimer(self._run.batch_size)

  def tick(self, step: int):
    """Notes that all steps before `step`, which has just begun, are done."""
    if step > self._first_step + 1:
      self._steps.tick()
    else:
      self._started = time.monotonic()  # the estimate leaves start-up out
      say_wrapped(f"First step under way after {self._phase_secs()}.")

  def lap(self, waited_secs: float):
    """Measures the steps since the last call, for `show` and `row`.

    So far, all steps together have waited `waited_secs` for data.
    """
    try:
      self._shown = self._lap = self._figures(waited_secs)
    except Exception as e:  # whatever it is, it is not worth a run
      logging.warning("The clock failed, the run goes on: %r", e)
      self._shown = self._lap = {}

  def row(self) -> dict[str, float]:
    """Returns a row for timing.jsonl: `lap`, and the time since the last row.

    That time includes evaluations and checkpoints, also those of this step.
    """
    now = time.monotonic()
    secs, self._row_time = now - self._row_time, now
    self._core_hours += jax.device_count() * secs / 3600
    phases = {f"{k}_secs": v for k, v in self.phases.secs().items()}
    row = {**self._lap, **phases, "core_hours": self._core_hours}
    self._lap = {}
    return {**row, "seconds": secs}

  def _figures(self, waited_secs):
    wait_secs = waited_secs - self._waited_secs
    self._waited_secs = waited_secs
    self.phases.add("input", wait_secs)
    row = self._steps.lap(wait_secs)
    # NaN if no step was finished, as in a row of the first step alone.
    row = {k: v for k, v in row.items() if not math.isnan(v)}
    if self._flops and "images_per_sec" in row:
      steps_per_sec = row["images_per_sec"] / self._run.batch_size
      row["mfu"] = self._flops * steps_per_sec / self._peak
    return row

  def show(self, step: int, loss: float):
    """Shows the loss of a step, with the speed of the last lap."""
    shown = collections.defaultdict(lambda: math.nan, self._shown)
    images = shown["images_per_sec"]
    speed = (
      f"loss {loss:.4g}  {images:.{0 if images >= 10 else 1}f} img/s  "
      f"data wait {shown['data_wait_percent']:.0f}%"
    )
    total = self._run.total_steps
    per_step = (time.monotonic() - self._started) / (step - self._first_step)
    eta = tqdm.tqdm.format_interval(per_step * (total - step))
    if not self._bar.disable:
      self._bar.set_postfix_str(f"ETA {eta}  {speed}", refresh=False)
      with contextlib.suppress(OSError):  # as in `say`
        self._bar.update(step - self._bar.n)
      return
    say(f"step {step}/{total} ({step / total:.0%})  ETA {eta}  {speed}")

  @contextlib.contextmanager
  def phase(self, name: str):
    """Counts the body's time to a phase, and not to the steps' time."""
    begin = time.monotonic()
    with self.phases.phase(name):
      yield
    self._steps.pause(time.monotonic() - begin)

  def evaluated(self, step: int, row: Mapping[str, float], secs: float):
    """Shows an evaluation's metrics and how long it took."""
    shown = [f"{k} {v:.4f}" for k, v in row.items() if "-seed-" not in k]
    if shown:
      say_wrapped(f"step {step}: {', '.join(shown)} ({secs:.1f} s)")

  def close(self):
    """Ends the bar and says where the time went."""
    with contextlib.suppress(OSError):
      self._bar.close()
    say_wrapped(f"Time: {self._phase_secs()}.")

  def _phase_secs(self):
    secs = self.phases.secs()
    listed = ", ".join(f"{k} {v:.1f}" for k, v in secs.items() if v >= 0.05)
    return f"{sum(secs.values()):.1f} s ({listed})"


class MetricsLog:
  """Collects the row of a step and writes it, whole and finite, in one go.

  Methods may be called at any time: a row is complete when another step's row
  begins, or at `flush`.
  """

  def __init__(
    self,
    workdir: str,
    *,
    step: int,
    again: bool = False,
    rows: int = 0,
    config: Mapping[str, Any] | None = None,
  ):
    """Opens the files; see `metrics.Writer`, also for the config.

    The run has made `rows` rows until `step`; if `again`, the row of `step`
    comes once more. A file that has lost some is no reason to stop.
    """
    first, timing_step = jax.process_index() == 0, step
    step -= again
    self._writer = first and metrics.Writer(
      workdir, step=step, timing_step=timing_step, config=config
    )
    self._path = os.path.join(workdir, metrics.METRICS)
    found = metrics.read(self._path)
    self.last_row = found[-1] if found else {}
    self.rows = rows
    if self.lost:
      say(f"Note: {self._path} has lost {self.lost} of {rows} rows.")
    self._step, self._finite_step = step, max(step, 0)
    self._parts: list[Mapping | Callable[[], Mapping]] = []
    self._row: dict[str, float] = {}

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
    if row := self.pop():
      self.last_row = {"step": self._step, **row}
      self.rows += 1
      if self._writer:
        self._writer.write(self._step, row)

  def pop(self) -> dict[str, float]:
    """Returns the current row, which will not be written."""
    self.fetch()
    row, self._row = self._row, {}
    return row

  def show_pictures(self, batch: Mapping[str, jax.Array]):
    """Writes a few images of a batch, if it has any that can be shown."""
    images = batch.get("image")
    if images is None or not self._writer:
      return
    if images.ndim == 4 and images.shape[-1] in (1, 3):
      here = images.addressable_data(0)[:_PICTURES]
      self._writer.pictures(np.asarray(here, np.float32))

  def add_timing(self, step: int, row: Mapping[str, float]):
    """Writes a row of timing.jsonl."""
    if self._writer:
      self._writer.write(step, row, metrics.TIMING)

  def check_finite(self, step: int, values: Mapping[str, jax.Array | float]):
    """Raises NonFiniteError if a value of this step is not finite."""
    host = {k: float(v) for k, v in jax.device_get(dict(values)).items()}
    metrics.check_finite(step, self._finite_step, host)
    self._finite_step = step

  def close(self):
    if self._writer:
      self._writer.close()
