"""From host batches to global arrays on devices, ahead of the consumer."""

import collections
import contextlib
import functools
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures

import jax
import numpy as np

from dpn.input_pipeline.batches import SKIPPED


class DeviceIterator:
  """Batches as dicts of global arrays, placed by a background thread.

  An error of the batches is raised to the consumer after the batches before it.
  `close()` ends the thread and closes the batches; so does dropping the
  iterator.

  Attributes:
    wait_secs: how long the consumer has waited for batches; set it to 0 to
      start counting anew.
    skipped: examples that this process skipped up to the batch handed out last,
      the sum of the column `batches.SKIPPED`.
  """

  def __init__(
    self,
    batches: Iterable[dict[str, np.ndarray]],
    sharding: jax.sharding.Sharding,
    prefetch: int = 2,
  ):
    """Starts the thread.

    Args:
      batches: this process's rows of every batch.
      sharding: of every array; the leading axis is split over the processes,
        see `sharding.rows_by_process`.
      prefetch: batches to place ahead.
    """
    if prefetch < 1:
      raise ValueError(f"prefetch must be 1 batch or more, got {prefetch}.")
    self.wait_secs = 0.0
    self.skipped = 0
    batches = iter(batches)
    pool = futures.ThreadPoolExecutor(1, "to_device")
    # Neither refers to self: a forgotten iterator gets closed.
    self._submit = functools.partial(
      pool.submit, _place_next, batches, sharding
    )
    self.close = weakref.finalize(self, _close, pool, batches)
    self._ahead = collections.deque(self._submit() for _ in range(prefetch))

  def __iter__(self) -> Iterator[dict[str, jax.Array]]:
    return self

  def __next__(self) -> dict[str, jax.Array]:
    if not self.close.alive:
      raise StopIteration
    begin = time.perf_counter()
    try:
      batch, skipped = self._ahead.popleft().result()
    except BaseException:
      self.close()
      raise
    finally:
      self.wait_secs += time.perf_counter() - begin
    if batch is None:
      self.close()
      raise StopIteration
    self.skipped += skipped
    self._ahead.append(self._submit())
    return batch


class ResidentIterator:
  """What `DeviceIterator` is, for data that lie on the devices as a whole."""

  wait_secs = 0.0
  skipped = 0

  def __init__(
    self,
    arrays: Mapping[str, np.ndarray],
    indices: Iterator[np.ndarray],
    sharding: jax.sharding.NamedSharding,
  ):
    """Moves the data.

    Args:
      arrays: of all examples.
      indices: of those in each batch, of any shape.
      sharding: of the batches, whose leading axes are those of the indices.
    """
    whole = jax.sharding.PartitionSpec()
    place = jax.sharding.NamedSharding(sharding.mesh, whole)
    self._arrays = jax.device_put(dict(arrays), place)
    self._indices = indices
    take = lambda arrays, i: {k: x[i] for k, x in arrays.items()}
    self._take = jax.jit(take, out_shardings=sharding)

  def __iter__(self) -> Iterator[dict[str, jax.Array]]:
    return self

  def __next__(self) -> dict[str, jax.Array]:
    return self._take(self._arrays, next(self._indices))

  def close(self):
    self._arrays = None


def _place_next(batches, sharding):
  """Returns the next batch on devices, None at the end, and its SKIPPED."""
  batch = next(batches, None)
  if batch is None:
    return None, 0
  place = functools.partial(jax.make_array_from_process_local_data, sharding)
  count = jax.process_count()
  arrays = {
    key: place(x, (len(x) * count, *x.shape[1:]))
    for key, x in batch.items()
    if key != SKIPPED
  }
  return arrays, int(np.sum(batch.get(SKIPPED, 0)))


def _close(pool, batches):
  # The garbage collector may call this in the very thread that would be joined.
  with contextlib.suppress(RuntimeError):
    pool.shutdown(cancel_futures=True)
  if hasattr(batches, "close"):
    batches.close()
