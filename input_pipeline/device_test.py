"""Batches on devices: order, errors, and an end to the thread."""

import threading
import time

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dpn.input_pipeline import device


@pytest.fixture(name="sharding")
def _sharding():
  mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
  return NamedSharding(mesh, P("data"))


def _batch(i):
  return {
    "image": np.full((8, 2, 2, 1), i, np.float32),
    "_mask": np.arange(8) < i,
  }


def _threads():
  return [t for t in threading.enumerate() if t.name.startswith("to_device")]


@pytest.mark.parametrize("prefetch", [1, 2, 20])
def test_batches_arrive_in_order_and_sharded(sharding, prefetch):
  batches = device.DeviceIterator(map(_batch, range(9)), sharding, prefetch)
  for i, batch in enumerate(batches):
    assert batch["image"].sharding.is_equivalent_to(sharding, 4)
    assert batch["_mask"].addressable_shards[0].data.shape == (2,)
    for key, expected in _batch(i).items():
      np.testing.assert_array_equal(batch[key], expected)
  assert i == 8
  assert next(batches, None) is None
  assert not _threads()


def test_errors_come_after_the_batches_before_them(sharding):
  def failing():
    yield _batch(0)
    yield _batch(1)
    raise ValueError("record 17 is broken")

  batches = device.DeviceIterator(failing(), sharding)
  for i in range(2):
    assert float(next(batches)["image"][0, 0, 0, 0]) == i
  with pytest.raises(ValueError, match="record 17 is broken"):
    next(batches)
  assert next(batches, None) is None
  assert not _threads()


@pytest.mark.parametrize("how", ["close", "drop"])
def test_stopping_early_closes_everything(sharding, how):
  taken, closed = [], []

  def endless():
    try:
      for i in range(10**9):
        taken.append(i)
        yield _batch(i)
    finally:
      closed.append(True)

  batches = device.DeviceIterator(endless(), sharding, prefetch=3)
  next(batches)
  next(batches)
  if how == "close":
    batches.close()
    batches.close()
    assert next(batches, None) is None
  del batches
  assert closed == [True]
  assert not _threads()
  # Two consumed, three ahead, one in the thread's hand.
  assert len(taken) <= 6


def test_wait_secs_counts_the_consumers_waiting(sharding):
  def slow():
    for i in range(4):
      time.sleep(0.1)
      yield _batch(i)

  batches = device.DeviceIterator(slow(), sharding)
  next(batches)
  waited = batches.wait_secs
  assert 0.09 < waited < 1
  time.sleep(0.5)  # The next two are ready by now.
  next(batches)
  next(batches)
  assert batches.wait_secs - waited < 0.09
  batches.close()
