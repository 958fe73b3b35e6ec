"""Timers against hand-made times."""

import math
import subprocess
import sys
import time

import pytest

from dpn import timing


@pytest.fixture(name="now")
def _now(monkeypatch):
  """Returns a list whose only element is the time."""
  now = [1000.0]
  monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
  return now


def _steps(timer, now, *secs):
  for duration in secs:
    now[0] += duration
    timer.tick()


def test_figures_of_an_interval(now):
  timer = timing.StepTimer(batch_size=32)
  _steps(timer, now, 1.0, 2.0, 3.0, 10.0)
  figures = timer.lap(wait_secs=4.0)
  assert figures["images_per_sec"] == 4 * 32 / 16.0
  assert figures["step_secs_p50"] == 2.5
  # Between the two largest, 0.95 * 3 = 2.85 of the way along.
  assert figures["step_secs_p95"] == pytest.approx(3.0 + 0.85 * 7.0)
  assert figures["data_wait_percent"] == 25.0
  assert 0.01 < figures["peak_memory_gb"] < 1000


def test_every_lap_starts_anew(now):
  timer = timing.StepTimer(batch_size=10)
  _steps(timer, now, 100.0)
  timer.lap(0.0)
  _steps(timer, now, 0.5, 0.5)
  now[0] += 1.0  # after the last step, but in the interval
  figures = timer.lap(0.0)
  assert figures["images_per_sec"] == 2 * 10 / 2.0
  assert figures["step_secs_p95"] == 0.5


def test_an_interval_without_steps_or_time(now):
  figures = timing.StepTimer(batch_size=10).lap(wait_secs=1.0)
  assert math.isnan(figures["images_per_sec"])
  assert math.isnan(figures["step_secs_p50"])
  assert figures["data_wait_percent"] == 100.0


def test_where_the_time_goes(now):
  phases = timing.PhaseTimer(begin=now[0] - 5)
  phases.add("imports", 4.0)
  with phases.phase("eval"):
    now[0] += 2.0
  with phases.phase("eval"):
    now[0] += 3.0
  now[0] += 10.0
  assert phases.secs() == {"imports": 4.0, "eval": 5.0, "train": 11.0}


def test_a_process_began_between_its_launch_and_its_first_line():
  before = time.monotonic()
  program = "from dpn import timing; print(timing.process_start())"
  out = subprocess.check_output([sys.executable, "-c", program], text=True)
  began = float(out)
  assert before - 0.02 <= began < before + (time.monotonic() - before) / 2
