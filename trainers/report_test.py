"""The journal of a run: rows, rates, and what a person reads."""

import types

import jax.numpy as jnp
import pytest

from dpn import metrics
from trainers import report


@pytest.fixture(name="log")
def _log(tmp_path):
  """The log of a run of 100 steps of 32 examples that goes on from step 10."""
  experiment = types.SimpleNamespace(
    batch_size=32,
    total_steps=100,
    config={"lr": 0.5},
    schedule_fns=[lambda step: step / 100, lambda step: 2.0],
  )
  log = report.Log(experiment, str(tmp_path), 10)
  yield log
  log.close()


def test_a_row(log, tmp_path, capsys):
  batches = types.SimpleNamespace(wait_secs=3.0)
  for step in range(11, 21):
    log.tick(step)
  row = log.training(20, {"loss": jnp.float32(1.25)}, batches)
  # The rates that made step 20 are those of 19 steps before it.
  assert row == {"loss": 1.25, "lr": pytest.approx(0.095), "lr_1": 1.0}
  assert batches.wait_secs == 0.0
  log.write(20, row | {"val/loss": 2.0})
  [written] = metrics.read(str(tmp_path / "metrics.jsonl"))
  assert written == {"step": 20, **row, "val/loss": 2.0}
  [timing] = metrics.read(str(tmp_path / "timing.jsonl"))
  assert timing["step"] == 20
  assert timing["secs"] < 60
  out = capsys.readouterr().out
  assert "First step under way after" in out
  assert "step 20/100 (20%)  loss 1.25  " in out
  assert "waiting for data 100%  ETA 0:0" in out


def test_evaluation_times_do_not_count(log, capsys):
  evaluator = types.SimpleNamespace(
    run=lambda variables: {"p/1shot": variables, "p/1shot-seed-0": 0.25}
  )
  assert log.evaluation(evaluator, 0.5) == {
    "p/1shot": 0.5,
    "p/1shot-seed-0": 0.25,
  }
  assert "  p/1shot 0.5000  (" in capsys.readouterr().out


def test_the_interval_of_a_nan(log, tmp_path):
  batches = types.SimpleNamespace(wait_secs=0.0)
  row = log.training(20, {"loss": jnp.float32(1)}, batches)
  message = r"val/loss = nan at step 20; finite until step 10\."
  with pytest.raises(metrics.NonFiniteError, match=message):
    log.write(20, row | {"val/loss": float("nan")})
  assert metrics.read(str(tmp_path / "metrics.jsonl")) == []
  log.write(20, row)
  log.check_finite(25, {"loss": jnp.float32(1)})
  message = r"loss = inf at step 30; finite until step 25\."
  with pytest.raises(metrics.NonFiniteError, match=message):
    log.training(30, {"loss": jnp.float32("inf")}, batches)
