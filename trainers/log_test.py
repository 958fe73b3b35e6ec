"""The journal of a run: rows, rates, and what a person reads."""

import json
import time
import types

import jax
import jax.numpy as jnp
import pytest

from dpn import metrics
from dpn import timing as clock
from evaluators import base as evaluators_base
from trainers import log as report


@pytest.fixture(name="log")
def _log(tmp_path):
  """The log of a run of 100 steps of 32 examples that goes on from step 10."""
  experiment = types.SimpleNamespace(
    batch_size=32,
    total_steps=100,
    config={"lr": 0.5},
    schedule_fns=[lambda step: step / 100, lambda step: 2.0],
  )
  log = report.Log(
    experiment, str(tmp_path), 10, clock.Split(time.monotonic() - 100)
  )
  yield log
  log.close()


def _rows(tmp_path, name="metrics.jsonl"):
  return metrics.read(str(tmp_path / name))


def _batches(wait_secs=0.0):
  return types.SimpleNamespace(wait_secs=wait_secs)


def test_a_row(log, tmp_path, capsys):
  batches = _batches(wait_secs=3.0)
  for step in range(11, 21):
    log.tick(step)
  log.training(20, {"loss": jnp.float32(1.25)}, batches)
  assert batches.wait_secs == 0.0
  assert _rows(tmp_path) == []  # nothing waits for the values of step 20
  log.tick(21)
  # The rates that made step 20 are those of 19 steps before it.
  row = {"step": 20, "loss": 1.25, "lr": pytest.approx(0.095), "lr_1": 1.0}
  assert _rows(tmp_path) == [row]
  assert log.last_row == row
  [timing] = _rows(tmp_path, "timing.jsonl")
  assert timing["step"] == 20
  assert timing["secs"] < 60
  assert timing["input_secs"] == 3.0
  assert 97 <= timing["train_secs"] + timing["input_secs"] < 160
  cores = jax.device_count() * timing["secs"] / 3600
  assert timing["core_hours"] == pytest.approx(cores)
  assert "mfu_percent" not in timing  # nobody knows a CPU's peak
  out = capsys.readouterr().out
  assert "First step under way after 100." in out
  assert "step 20/100 (20%)  loss 1.25  " in out
  assert "waiting for data 100%  ETA 0:0" in out


def test_evaluations_join_the_row_of_their_step(log, tmp_path, capsys):
  log.tick(11)
  log.training(11, {"loss": jnp.float32(1)}, _batches())
  row = log.evaluation(_evaluator(lambda _: {"p": 0.5}), None)
  log.flush(11, row)
  log.tick(12)
  log.flush(12, {"val/p": 0.75})
  assert [(r["step"], r.get("loss"), r["val/p"]) for r in _rows(tmp_path)] == [
    (11, 1.0, 0.5),
    (12, None, 0.75),
  ]
  out = capsys.readouterr().out
  assert out.index("step 11/100") < out.index("  val/p 0.5000  (")


def test_the_hours_of_earlier_processes_count(log, tmp_path):
  log.training(11, {"loss": jnp.float32(1)}, _batches())
  log.flush()
  [timing] = _rows(tmp_path, "timing.jsonl")
  with open(tmp_path / "timing.jsonl", "w") as f:
    f.write(json.dumps(timing | {"core_hours": 50.0}) + "\n")
  again = report.Log(log._experiment, str(tmp_path), 11, log.split)
  again.training(12, {"loss": jnp.float32(1)}, _batches())
  again.flush()
  assert _rows(tmp_path, "timing.jsonl")[-1]["core_hours"] > 50
  again.close()


def _evaluator(run):
  return evaluators_base.Scheduled("val", types.SimpleNamespace(run=run), 1)


def test_seeds_are_not_shown(log, capsys):
  evaluator = _evaluator(lambda _: {"1shot": 0.5, "1shot-seed-0": 0.25})
  assert log.evaluation(evaluator, None) == {
    "val/1shot": 0.5,
    "val/1shot-seed-0": 0.25,
  }
  assert "  val/1shot 0.5000  (" in capsys.readouterr().out


def _broken(variables):
  raise KeyError("no such thing")


def test_an_evaluator_may_fail(log, capsys, caplog):
  with caplog.at_level("WARNING"):
    assert log.evaluation(_evaluator(_broken), None) == {}
  assert "Evaluator 'val' failed: KeyError: 'no such" in capsys.readouterr().out
  assert "in _broken" in caplog.text


def test_an_evaluator_may_not_fail(log):
  log._experiment.config["strict_evals"] = True
  with pytest.raises(evaluators_base.EvaluatorError, match="'val' failed"):
    log.evaluation(_evaluator(_broken), None)


def test_a_broken_clock_stops_nothing(log, tmp_path, monkeypatch, caplog):
  monkeypatch.setattr(clock.Clock, "lap", _broken)
  with caplog.at_level("WARNING"):
    log.tick(11)
    log.training(11, {"loss": jnp.float32(1)}, _batches())
    log.tick(12)
  assert "The clock failed, the run goes on" in caplog.text
  assert [row["loss"] for row in _rows(tmp_path)] == [1.0]


def test_the_interval_of_a_nan(log, tmp_path):
  log.training(20, {"loss": jnp.float32(1)}, _batches())
  message = r"val/loss = nan at step 20; finite until step 20\."
  with pytest.raises(metrics.NonFiniteError, match=message):
    log.flush(20, {"val/loss": float("nan")})
  assert _rows(tmp_path) == []
  log.check_finite(25, {"loss": jnp.float32(1)})
  log.training(30, {"loss": jnp.float32("inf")}, _batches())
  message = r"loss = inf at step 30; finite until step 25\."
  with pytest.raises(metrics.NonFiniteError, match=message):
    log.tick(31)
