"""The order of examples is a pure function of the position."""

import itertools

import numpy as np
import pytest

from dpn.input_pipeline import order


def _one(size, seed=5, **kw):
  return order.Order(seed=seed, sizes=(size,), **kw)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_every_epoch_is_a_fresh_permutation(size):
  epochs = np.reshape(_one(size).indices(0, 4 * size), (4, size))
  for epoch in epochs:
    assert sorted(epoch.tolist()) == list(range(size))
  if size == 1000:
    # Two random permutations agree in one place on average.
    for a, b in itertools.combinations(epochs, 2):
      assert (a == b).sum() < 10
    other_seed = _one(size, seed=6).indices(0, size)
    assert (epochs[0] == other_seed).sum() < 10


_ORDERS = [
  _one(7),
  _one(50, repeats=3, batch_size=12),
  order.Order(seed=1, sizes=(7, 90, 2000), counts=order.counts((1, 5, 3))),
]


@pytest.mark.parametrize("any_order", _ORDERS)
def test_at_any_position(any_order):
  whole = any_order.indices(0, 2500)
  for first in (0, 3, 7, 20, 55, 990):
    for last in (first + 1, first + 7, first + 30, first + 1200):
      assert any_order.indices(first, last) == whole[first:last]
  far = 10**13 + 5
  assert len(any_order.indices(far, far + 50)) == 50


def test_orders_do_not_change_between_versions():
  """A resumed run must continue in the order it began with."""
  assert _one(10, seed=0).indices(0, 20) == [
    *(8, 0, 3, 7, 6, 4, 1, 5, 2, 9),
    *(1, 5, 6, 4, 8, 7, 9, 3, 2, 0),
  ]


@pytest.mark.parametrize("batch_size", [12, 8])
def test_repeats_are_spread_over_the_batch(batch_size):
  """Each distinct example, then all again; not all three times if 3 ∤ 8."""
  repeated = _one(20, repeats=3, batch_size=batch_size)
  distinct = -(-batch_size // 3)
  plain = np.reshape(_one(20).indices(0, 10 * distinct), (10, distinct))
  batches = np.reshape(repeated.indices(0, 10 * batch_size), (10, batch_size))
  np.testing.assert_array_equal(batches, np.tile(plain, 3)[:, :batch_size])
  if batch_size == 12:  # in 60 positions, each of the 20 examples three times
    assert np.bincount(batches[:5].ravel()).tolist() == [3] * 20


def test_seeds_that_take_turns_keep_their_permutations(monkeypatch):
  drawn, draw = [], order._permutation
  spy = lambda *key: drawn.append(key) or draw(*key)
  monkeypatch.setattr(order, "_permutation", spy)
  orders = [_one(50, seed=seed) for seed in range(100, 106)]
  for first in range(0, 100, 10):
    for one in orders:
      one.indices(first, first + 10)
  assert sorted(drawn) == [
    (s, e, 50, 0) for s in range(100, 106) for e in (0, 1)
  ]


def test_mixture_has_exact_shares_and_each_part_its_epochs():
  mixed = order.Order(
    seed=3, sizes=(30, 200), counts=order.counts((0.75, 0.25))
  )
  indices = np.array(mixed.indices(0, 4000))
  first, second = indices[indices < 30], indices[indices >= 30] - 30
  for begin in range(0, 4000, 1000):
    assert (indices[begin : begin + 1000] < 30).sum() == 750
  # Spread over the round: 75 in 100, give or take four deviations.
  for begin in range(0, 4000, 100):
    assert 58 <= (indices[begin : begin + 100] < 30).sum() <= 92
  for part, size in ((first, 30), (second, 200)):
    whole = len(part) // size
    for epoch in part[: whole * size].reshape(whole, size):
      assert sorted(epoch.tolist()) == list(range(size))
  assert (np.array(mixed.indices(1000, 2000)) < 30).tolist() != (
    indices[:1000] < 30
  ).tolist()


@pytest.mark.parametrize(
  ("weights", "expected"),
  [
    ((3, 1), (750, 250)),
    ((1, 1, 1), (334, 333, 333)),
    ((2,), (1000,)),
    ((998.6, 1.4), (999, 1)),
  ],
)
def test_counts(weights, expected):
  assert order.counts(weights) == expected


def test_weights_that_cannot_be():
  for weights in ((1, -1), (0, 1)):
    with pytest.raises(ValueError, match="Expected positive weights"):
      order.counts(weights)
  with pytest.raises(ValueError, match="less than one in 1000 examples"):
    order.counts((1e6, 1))
