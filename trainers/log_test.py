"""The log of a run: rows, rates, and what a person reads."""

import contextlib
import fcntl
import json
import math
import pty
import select
import struct
import sys
import termios
import time
import types

import jax
import jax.numpy as jnp
import pytest

from dpn import errors, timing
from dpn.evaluators import base as evaluators_base
from dpn.trainers import build, conftest, loop
from dpn.trainers import log as log_lib

_rows = conftest.rows


@pytest.fixture(name="run")
def _run():
  """Returns a run of 100 steps of 32 examples."""
  schedules = [lambda step: step / 100, lambda step: 2.0]
  return types.SimpleNamespace(
    batch_size=32,
    total_steps=100,
    config={"lr": 0.5},
    step=types.SimpleNamespace(schedule_fns=schedules),
  )


def _start(run, folder, step=0, ago=0.0):
  phases = timing.PhaseTimer(time.monotonic() - ago)
  return log_lib.Progress(run, str(folder), step, phases)


@pytest.fixture(name="progress")
def _progress(run, tmp_path):
  progress = _start(run, tmp_path, step=10, ago=100)
  yield progress
  progress.close()


@pytest.fixture(name="log")
def _log(tmp_path):
  log = log_lib.MetricsLog(str(tmp_path), step=10)
  yield log
  log.close()


def test_a_row_is_written_once_and_whole(log, tmp_path):
  log.add(20, lambda: {"loss": 1.25})
  log.add(20, {"val/p": 0.5})
  assert _rows(tmp_path) == []  # nothing waits for the values of step 20
  log.fetch()
  assert _rows(tmp_path) == []
  log.add(21, {"val/p": 0.75})
  row = {"step": 20, "loss": 1.25, "val/p": 0.5}
  assert _rows(tmp_path) == [row]
  assert log.last_row == row
  log.flush()
  log.flush()
  assert _rows(tmp_path) == [row, {"step": 21, "val/p": 0.75}]


def test_the_interval_of_a_nan(log, tmp_path):
  log.add(20, {"loss": 1.0})
  log.add(20, {"val/loss": math.nan})
  message = r"val/loss = nan at step 20; finite until step 20\."
  with pytest.raises(errors.NonFiniteError, match=message):
    log.flush()
  assert _rows(tmp_path) == []
  log.check_finite(25, {"loss": jnp.float32(1)})
  log.add(30, lambda: {"loss": math.inf})
  message = r"loss = inf at step 30; finite until step 25\."
  with pytest.raises(errors.NonFiniteError, match=message):
    log.fetch()


def test_a_training_step(run, progress, capsys):
  for step in range(11, 21):
    progress.tick(step)
  timed = _lap(progress, 3.0)
  values = {"loss": jnp.float32(1.25)}
  row = loop.deferred_row(run, 20, values, progress.show)()
  # The rates that made step 20 are those of 19 steps before it.
  assert row == {"loss": 1.25, "lr": pytest.approx(0.095), "lr_1": 1.0}
  assert timed["seconds"] < 60
  assert timed["input_secs"] == 3.0
  assert 97 <= timed["train_secs"] + timed["input_secs"] < 160
  cores = jax.device_count() * timed["seconds"] / 3600
  assert timed["core_hours"] == pytest.approx(cores)
  assert "mfu" not in timed  # nobody knows a CPU's peak
  out = capsys.readouterr().out
  assert "First step under way after 100." in out
  assert "step 20/100 (20%)  ETA 00:0" in out
  assert "  loss 1.25  " in out
  assert "data wait 100%" in out
  progress.tick(21)
  assert _lap(progress, 3.5)["input_secs"] == 3.5  # as a whole


def test_an_output_that_takes_nothing_ends_no_run(monkeypatch):
  full = open("/dev/full", "w")  # noqa: SIM115, closing it fails
  monkeypatch.setattr(sys, "stdout", full)
  log_lib.say("step 1")
  with contextlib.suppress(OSError):
    full.close()


def test_lines_fit_into_80_columns(run, tmp_path, capsys):
  run.total_steps, run.batch_size = 300_000, 4096
  progress = _start(run, tmp_path)
  progress._started -= 600  # so that hours are left
  progress._shown = {"images_per_sec": 12345.6, "data_wait_percent": 100.0}
  progress.show(2_990, 1.2345e-5)
  many = {f"fewshot/imagenet_v{i}_25shot": 0.12345 for i in range(4)}
  progress.evaluated(2_990, many, 1234.5)
  progress.close()
  line, *evaluated, _ = capsys.readouterr().out.splitlines()
  assert line.startswith("step 2990/300000 (1%)  ETA 16:3")
  assert line.endswith("  loss 1.234e-05  12346 img/s  data wait 100%")
  assert max(map(len, [line, *evaluated])) <= 80
  assert evaluated[0].startswith("step 2990: fewshot/imagenet_v0_25shot 0.1235")


def test_a_bar_fits_into_80_columns(run, tmp_path, monkeypatch):
  ours, terminal = pty.openpty()
  size = struct.pack("HHHH", 24, 80, 0, 0)
  fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)
  run.total_steps = 300_000
  with open(terminal, "w") as stderr, open(ours, "rb", buffering=0) as shown:
    monkeypatch.setattr(sys, "stderr", stderr)
    progress = _start(run, tmp_path)
    progress._started -= 600
    progress._shown = {"images_per_sec": 12345.6, "data_wait_percent": 100.0}
    progress.show(2_990, 0.97181)
    progress._bar.refresh()
    progress.close()
    text = b""  # the terminal hands it on in parts
    while b"wait 100%" not in text and select.select([shown], [], [], 10)[0]:
      text += shown.read(4096)
    bar = text.decode().strip().split("\r")[-1]
  assert len(bar) <= 80
  assert "ETA 16:3" in bar
  assert bar.endswith("loss 0.9718  12346 img/s  data wait 100%")


def test_mfu_is_a_fraction(run, tmp_path, monkeypatch):
  monkeypatch.setattr(log_lib.flops, "peak", lambda device: 1e6)
  run.step.flops = lambda: 5e5  # of a step; four devices
  progress = _start(run, tmp_path)
  progress.tick(1)
  progress.tick(2)
  row = _lap(progress, 0.0)
  steps_per_sec = row["images_per_sec"] / 32
  assert row["mfu"] == pytest.approx(steps_per_sec * 5e5 / 4e6)
  rows = [{"seconds": 1.0, "mfu": x, "images_per_sec": 9} for x in (0.1, 0.3)]
  want = {"seconds": 4.5, "core_hours": 7.0, "images_per_sec": 9, "mfu": 0.2}
  want["peak_memory_gb"] = None
  assert log_lib.totals([*rows, {"seconds": 2.5, "core_hours": 7.0}]) == want
  progress.close()


def test_steps_are_timed_once_they_are_compiled(run, tmp_path, monkeypatch):
  now = [0.0]
  monkeypatch.setattr(time, "monotonic", lambda: now[0])
  progress = _start(run, tmp_path, step=10)
  with progress.compiling():
    now[0] = 100.0
  # A second's wait for data; then two steps of 2 s have been done.
  for step, now[0] in ((11, 101.0), (12, 103.0), (13, 105.0)):
    progress.tick(step)
  row = _lap(progress, 1.0)
  assert row["images_per_sec"] == 2 * 32 / 5
  assert row["step_secs_p50"] == 2.5
  assert row["data_wait_percent"] == 20
  assert (row["compile_secs"], row["seconds"]) == (100, 105)
  with progress.phase("checkpoint"):
    now[0] = 119.0
  now[0] = 121.0
  progress.tick(14)
  row = _lap(progress, 2.0)
  assert (row["images_per_sec"], row["step_secs_p95"]) == (16, 2)
  assert row["data_wait_percent"] == 50
  assert (row["checkpoint_secs"], row["seconds"]) == (14, 16)
  progress.close()


def test_epochs_after_another_batch_size(run, capsys):
  run.data, run.loaded = types.SimpleNamespace(num_examples=640), ["as it is"]
  log_lib.begin(run, 40, "this run's checkpoint", 40 * 32)
  same = "Note: as it is\nStarting from step 40: this run's checkpoint\n"
  assert capsys.readouterr().out == same
  log_lib.begin(run, 40, "this run's checkpoint", 40 * 8)  # 320 of 640 examples
  said = " ".join(capsys.readouterr().out.removeprefix(same).split())
  assert "has seen 0.5 epochs so far, and 3.0 more are to come" in said


def test_the_hours_of_earlier_processes_count(run, tmp_path):
  (tmp_path / "timing.jsonl").write_text(
    json.dumps({"step": 10, "core_hours": 50.0}) + "\n"
  )
  progress = _start(run, tmp_path, step=10)
  progress.tick(11)
  row = _lap(progress, 0.0)
  assert row["core_hours"] > 50
  # No step is done when the first has begun.
  assert "images_per_sec" not in row
  assert all(map(math.isfinite, row.values()))
  progress.close()


def test_a_broken_clock_stops_nothing(progress, monkeypatch, caplog):
  monkeypatch.setattr(timing.StepTimer, "lap", _broken)
  with caplog.at_level("WARNING"):
    assert "images_per_sec" not in _lap(progress, 0.0)
  assert "The clock failed, the run goes on" in caplog.text
  progress.show(20, 1.0)


def _lap(progress, waited_secs):
  progress.lap(waited_secs)
  return progress.row()


def _evaluator(run):
  evaluator = types.SimpleNamespace(run=run)
  return evaluators_base.Scheduled("val", evaluator, 1, "val/")


def _broken(*args):
  raise KeyError("no such thing")


STATE = types.SimpleNamespace(variables=None, step=20)


def test_seeds_are_not_shown(run, progress, capsys):
  evaluator = _evaluator(lambda _: {"1shot": 0.5, "1shot-seed-0": 0.25})
  row = loop.evaluate(run, [evaluator], STATE, progress)
  assert row == {"val/1shot": 0.5, "val/1shot-seed-0": 0.25}
  assert "step 20: val/1shot 0.5000 (" in capsys.readouterr().out


def test_an_evaluator_may_fail(run, progress, capsys, caplog):
  with caplog.at_level("WARNING"):
    assert loop.evaluate(run, [_evaluator(_broken)], STATE, progress) == {}
  assert "Evaluator 'val' failed: KeyError: 'no such" in capsys.readouterr().out
  assert "in _broken" in caplog.text
  run.config["strict_evals"] = True
  with pytest.raises(errors.EvaluatorError, match="'val' failed"):
    loop.evaluate(run, [_evaluator(_broken)], STATE, progress)


def test_flops_of_a_step_by_hand():
  run = build.from_config(conftest.tiny_config())
  products = {  # of 4 patches of 8 x 8 and a class token, width 16
    "embedding": 4 * 64 * 16,
    "attention": 4 * 5 * 16 * 16 + 2 * (2 * 5 * 5 * 8),
    "mlp": 2 * 5 * 16 * 32,
    "head": 16 * 10,
  }
  per_image = 2 * sum(products.values())
  # The gradient takes twice the FLOPs of the forward pass; pixels have none.
  pixels = 2 * products["embedding"]
  assert run.step.flops() == 8 * (3 * per_image - pixels)
