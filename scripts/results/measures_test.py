"""Measures of made-up runs whose values are known by construction."""

import numpy as np
import pandas as pd

from dpn.scripts.results import measures, runs


def test_spikes_are_what_stands_out_from_the_rows_before():
  noise = np.tile([0.0, 0.02, -0.02, 0.01, -0.01], 20)
  falling = np.linspace(6, 2, 100) + noise
  assert measures.spikes(pd.Series(falling)) == 0
  spiky = falling.copy()
  spiky[[40, 41, 80]] += 3.0
  assert measures.spikes(pd.Series(spiky)) == 3
  # Constant but for rises of 5% and 7%, with 6 · 1% as the limit.
  flat = np.ones(20)
  flat[[10, 15]] = 1.05, 1.07
  assert measures.spikes(pd.Series(flat)) == 1
  assert measures.spikes(pd.Series([1.0, 9.0, 9.0])) == 0  # nothing before


def _run(rows):
  frame = pd.DataFrame(rows, index=pd.RangeIndex(50, 50 * len(rows) + 1, 50))
  return runs.Run("path", {}, frame)


def _norms(embedding, *blocks, mean=""):
  names = ("embedding", *(f"block{i:02d}" for i in range(len(blocks))))
  norms = zip(names, (embedding, *blocks), strict=True)
  return {f"grad_norm{mean}/{name}": norm for name, norm in norms}


def test_gradients():
  one = [_norms(e, 1.0, 2.0, 6.0) for e in (1.0, 7.0, 8.0, 9.0)]
  two = [_norms(e, 1.0, 2.0, 6.0) for e in (2.0, 5.0, 4.0, 9.0)]
  one[-1] |= _norms(9.0, 1.0, 3.0, 6.0, mean="_mean")
  two[-1] |= _norms(3.0, 1.0, 1.0, 8.0, mean="_mean")
  repetitions = [_run(one), _run(two)]
  # Means over runs: 6, and 1, 2 and 7 of the blocks; (3 / 4 + 1 / 4) / 2.
  said = "3 × the median block; above every block in 50% of the rows"
  assert measures.stands_out(repetitions, []) == (False, said)
  # Means of both over the first run: 1.5 / 1, 6 / 7, 6 / 8 and 9 / 9.
  said = "lower in 50% of the rows"
  assert measures.throughout(repetitions[:1], repetitions) == (False, said)
  peak = _run([{"l2_grads": norm} for norm in (1.0, 2.0, 3.0, 40.0, 2.0)])
  assert measures.gradient_peak(peak) == 20.0


def test_regions_of_a_patch():
  scale = np.full((8, 8, 2), 3.0)
  scale[2:6, 2:6, 0] = -5.0  # the centre, whose magnitude counts
  for rows in (slice(0, 2), slice(6, 8)):
    for cols in (slice(0, 2), slice(6, 8)):
      scale[rows, cols] = [4.0, 1.0]
  table = measures.regions(scale)
  assert table.to_dict("list") == {
    "centre": [5.0, 3.0],
    "corners": [4.0, 1.0],
    "edges": [3.0, 3.0],
  }
  # Sixteen pixels a side: the corners are of 4 × 4 each.
  scale = np.ones((16, 16, 1))
  scale[:4, :4] = 2.0
  assert measures.regions(scale).loc[0].to_dict() == {
    "centre": 1.0,
    "corners": 1.25,
    "edges": 1.0,
  }
