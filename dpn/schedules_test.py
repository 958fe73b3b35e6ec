"""Durations and schedules against values worked out by hand."""

import math

import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest

from dpn import schedules

SIZES = {"total_steps": 1000, "batch_size": 32, "data_size": 100}


@pytest.mark.parametrize(
  ("config", "expected"),
  [
    ({"x_steps": 7}, 7),
    ({"x_steps": 1e4}, 10_000),
    ({"x_steps": 0}, 0),
    ({"x_examples": 320}, 10),
    ({"x_examples": 335}, 10),  # 10.47
    ({"x_examples": 337}, 11),  # 10.53
    ({"x_examples": 1}, 1),  # Asked for something: one step at least.
    ({"x_examples": 0}, 0),
    ({"x_epochs": 2}, 6),  # 6.25
    ({"x_epochs": 1e-9}, 1),
    ({"x_percent": 0.05}, 50),
    ({"x_percent": 1.0}, 1000),
    ({"x_steps": None, "x_epochs": -1, "x_percent": 0.1}, 100),
    (ml_collections.ConfigDict({"x_epochs": 2}).lock(), 6),
  ],
)
def test_steps(config, expected):
  assert schedules.steps("x", config, **SIZES) == expected


def test_steps_default_only_when_absent():
  assert schedules.steps("x", {"x_steps": -1}, default=3) == 3
  assert schedules.steps("x", {}, default=None) is None
  with pytest.raises(ValueError, match="x_epochs=2 cannot become steps"):
    schedules.steps("x", {"x_epochs": 2}, default=3)


@pytest.mark.parametrize(
  ("config", "message"),
  [
    ({}, "No duration 'x'; expected one of x_steps, x_epochs"),
    (
      {"x_steps": 1, "x_epochs": 1},
      "x_steps=1 and config.x_epochs=1; expected",
    ),
    ({"x_percent": 5}, r"x_percent=5, expected .* of the run, in \[0, 1\]"),
    ({"x_steps": 0.1}, "expected a whole number of steps, or x_percent"),
  ],
)
def test_steps_errors(config, message):
  with pytest.raises(ValueError, match=message):
    schedules.steps("x", config, **SIZES)


# 100 steps in batches of 512; peak 2. Values at the given steps.
@pytest.mark.parametrize(
  ("kw", "values"),
  [
    ({}, {0: 2, 99: 2}),
    ({"decay_type": "cosine"}, {0: 2, 25: 1 + math.sqrt(0.5), 50: 1, 100: 0}),
    (
      {"decay_type": "cosine", "warmup_percent": 0.1},
      {0: 0, 5: 1, 10: 2, 40: 1.5, 55: 1, 100: 0},
    ),
    (  # Halfway through warmup, halfway from 0.5 to 2.
      {"decay_type": "cosine", "warmup_steps": 20, "warmup_start": 0.5}
      | {"end": 0.4},
      {0: 0.5, 10: 1.25, 20: 2, 60: 1.2, 100: 0.4},
    ),
    (  # The decay takes 80 steps: 60 are 3/4.
      {"decay_type": "cosine", "end": 1, "hold_percent": 0.2},
      {0: 2, 40: 1.5, 60: 1.5 - math.sqrt(0.125), 80: 1, 99: 1},
    ),
    (  # Epochs of 20 steps: 1/5, 2/5 … of a line from 2.
      {"decay_type": "linear", "every_examples": 20 * 512},
      {0: 2, 19: 2, 20: 1.6, 39: 1.6, 99: 0.4},
    ),
    (  # timm's: towards 2 at step 25, then where the cosine is that began at 0.
      {"decay_type": "cosine", "warmup_steps": 25, "decay_in_warmup": True},
      {5: 0.4, 24: 1.92, 25: 1 + math.sqrt(0.5), 50: 1, 100: 0},
    ),
    ({"decay_type": "linear"}, {0: 2, 25: 1.5, 100: 0}),
    ({"decay_type": "linear", "linear_end": 0.5}, {50: 1.25, 100: 0.5}),
    (
      {"decay_type": "polynomial", "power": 2, "end": 1, "warmup_steps": 20},
      {10: 1, 20: 2, 60: 1.25, 100: 1},
    ),
    (
      {"decay_type": "rsqrt", "timescale": 10, "warmup_steps": 10},
      {5: 1, 10: 2, 40: 1, 90: 2 / 3},
    ),
    (
      {"decay_type": "rsqrt", "timescale_percent": 0.1, "shift": 30},
      {0: 1, 50: 2 / 3},
    ),
    (  # The peak of a shifted schedule is already decayed during warmup.
      {"decay_type": "rsqrt", "timescale": 10, "shift": 30, "warmup_steps": 4},
      {2: 0.5, 4: 1, 54: 2 / 3},
    ),
    (
      {"decay_type": "rsqrt", "timescale": 10, "hold_steps": 70},
      {30: 1, 60: 1, 99: 1},
    ),
    (
      {"decay_type": "stair", "steps": [30, 60], "mults": [0.1, 0.01]},
      {29: 2, 30: 0.2, 59: 0.2, 60: 0.02, 99: 0.02},
    ),
    (
      {"decay_type": "linear", "warmup_steps": 10, "cooldown_steps": 20},
      {5: 1, 55: 1, 90: 2 / 9 * 0.5, 100: 0},
    ),
    ({"scale_with_batchsize": True}, {3: 4}),
    ({"warmup_examples": 5120, "cooldown_epochs": 0.1}, {5: 1, 50: 2, 95: 1}),
    ({"warmup_steps": 60, "cooldown_steps": 40}, {30: 1, 60: 2, 80: 1, 100: 0}),
  ],
)
def test_learning_rate(kw, values):
  schedule = schedules.learning_rate(100, 512, 51_200, base=2.0, **kw)
  for step, expected in values.items():
    got = schedule(step)
    assert got.dtype == jnp.float32
    assert got.shape == ()
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-7)


def test_runs_of_no_and_one_step_keep_their_warmup():
  for total_steps in (0, 1):
    schedule = schedules.learning_rate(
      total_steps, decay_type="cosine", warmup_steps=10_000
    )
    assert schedule(0) == 0
  assert schedules.learning_rate(0, decay_type="linear")(0) == 1
  sizes = SIZES | {"total_steps": 0}
  assert schedules.steps("log", {"log_percent": 0.1}, **sizes) == 1


@pytest.mark.parametrize(
  ("kw", "message"),
  [
    ({"decay_type": "cosin"}, "Unknown decay_type 'cosin'. Did you mean 'cos"),
    ({"warmup_step": 3}, "Did you mean 'warmup_steps'"),
    (
      {"decay_type": "cosine", "power": 2},
      "Unknown argument of the 'cosine' schedule 'power'",
    ),
    ({"warmup_start": 0.1}, "warmup_start=0.1, but no warmup"),
    ({"warmup_steps": 100}, "Warmup is 100 steps of a run of 100"),
    (
      {"warmup_steps": 60, "hold_steps": 40},
      "of 100, hold 40, cooldown 0; exp",
    ),
    ({"cooldown_steps": 101}, "hold 0, cooldown 101; expected fewer together"),
    ({"warmup_steps": 60, "cooldown_percent": 0.42}, "cooldown 42; expected f"),
    ({"warmup_epochs": 1}, "warmup_epochs=1 cannot become steps"),
    ({"decay_type": "rsqrt", "decay_in_warmup": True}, "takes no decay_in_w"),
    ({"steps": [10, 20], "mults": [0.1]}, "one multiplier for each"),
    ({"steps": [20, 10], "mults": [0.1, 0.2]}, "ascending steps"),
    ({"steps": 3, "mults": 0.1}, "A stair schedule to 1.0 with .*'mults': 0.1"),
    ({"warmup_steps": 1, "warmup_start": "a"}, "A stair .*'warmup_steps': 1"),
  ],
)
def test_learning_rate_errors(kw, message):
  with pytest.raises(ValueError, match=message):
    schedules.learning_rate(100, **kw)
