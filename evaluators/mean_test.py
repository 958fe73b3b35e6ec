"""Means of predictions whose answer is known."""

import jax.numpy as jnp
import numpy as np
import pytest

from dpn import sharding
from dpn.evaluators import mean


def _mean(predict_fn, data, batch_size=4):
  evaluator = mean.Evaluator(
    predict_fn,
    mesh=sharding.make_mesh(),
    batch_size=batch_size,
    data=data,
    pp_fn="",
    cache_final=False,
  )
  return evaluator.run({"params": jnp.float32(2)})


@pytest.mark.parametrize("batch_size", [4, 12])
def test_the_mean_of_anything_with_the_variables_given(save, batch_size):
  def predict(variables, batch):
    x = variables["params"] * batch["x"]
    return {"x": x, "inverse": 1 / x, "negative": x < 5}

  x = np.arange(1, 7, dtype=np.float32)
  got = _mean(predict, save(x=x), batch_size)  # 1 / 0 in the padding
  # 2, 4, …, 12; their inverses; two of six are below 5.
  want = {"x": 7.0, "inverse": 2.45 / 6 / 2, "negative": 1 / 3}
  assert got == pytest.approx(want)


def test_one_number_per_example_is_expected(save):
  predict = lambda variables, batch: {"x": batch["x"].mean()}
  message = r"'x' has shape \(\); expected one number per example, \(4,\)"
  with pytest.raises(ValueError, match=message):
    _mean(predict, save(x=np.ones(8, np.float32)))
