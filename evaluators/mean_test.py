"""What has no mean; the means themselves are tested with classification."""

import numpy as np
import pytest

from dpn import sharding
from dpn.evaluators import mean


def test_one_number_per_example_is_expected(save):
  evaluator = mean.Evaluator(
    lambda variables, batch: {"x": batch["x"].mean()},
    mesh=sharding.make_mesh(),
    batch_size=4,
    data=save(x=np.ones(8, np.float32)),
    pp_fn="",
  )
  message = r"'x' has shape \(\); expected one number per example, \(4,\)"
  with pytest.raises(ValueError, match=message):
    evaluator.run({})
