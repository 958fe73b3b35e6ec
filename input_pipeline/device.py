"""Places host batches on devices as global arrays, ahead of the consumer."""

import collections
import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent import futures

import jax
import numpy as np

from dpn.input_pipeline.batches import SKIPPED


class DeviceIterator(Iterator[dict[str, jax.Array]]):
  """Batches as dicts of global arrays, placed by a background thread.

  An error in making a batch is raised once all batches before it are consumed.
  `close()` ends the thread and closes `batches`, as dropping the iterator does.

  Attributes:
    wait_secs: how long the consumer has waited for batches.
    skipped: how many examples this process has skipped up to the last batch,
      the sum of the column `batches.SKIPPED`.
  """

  def __init__(
    self,
    batches: Iterable[dict[str, np.ndarray]],
    sharding: jax.sharding.Sharding,
    prefetch: int = 2,
  ):
    """Starts the thread, which places `prefetch` batches ahead.

    `batches` yields this process's rows only: `sharding` splits the leading
    axis of every array over the processes, see `sharding.rows_by_process`.
    """
    self.wait_secs = 0.0
    self.skipped = 0
    # This generator does not refer to self: a dropped iterator gets closed.
    self._placed = _place_all(iter(batches), sharding, prefetch)
    next(self._placed)

  def __next__(self) -> dict[str, jax.Array]:
    begin = time.perf_counter()
    try:
      batch, skipped = next(self._placed)
    finally:
      self.wait_secs += time.perf_counter() - begin
    self.skipped += skipped
    return batch

  def close(self):
    self._placed.close()


def _place_all(batches, sharding, prefetch):
  """Yields None once the thread is at work, then what `_place_next` returns."""
  pool = futures.ThreadPoolExecutor(1, "to_device")
  submit = functools.partial(pool.submit, _place_next, batches, sharding)
  ahead = collections.deque(submit() for _ in range(prefetch))
  try:
    yield
    while placed := ahead.popleft().result():
      ahead.append(submit())
      yield placed
  finally:
    try:
      pool.shutdown(cancel_futures=True)
    except RuntimeError:
      pass  # the garbage collector runs this in the pool's thread, in `batches`
    else:
      if hasattr(batches, "close"):
        batches.close()


def _place_next(batches, sharding):
  """Returns the next batch on devices and sum of SKIPPED; None at the end."""
  batch = next(batches, None)
  if batch is None:
    return None
  place = functools.partial(jax.make_array_from_process_local_data, sharding)
  count = jax.process_count()
  arrays = {
    key: place(x, (len(x) * count, *x.shape[1:]))
    for key, x in batch.items()
    if key != SKIPPED
  }
  return arrays, int(np.sum(batch.get(SKIPPED, 0)))


class ResidentIterator(Iterator[dict[str, jax.Array]]):
  """Like `DeviceIterator`, for data that are kept whole on the devices."""

  wait_secs = 0.0
  skipped = 0

  def __init__(
    self,
    arrays: Mapping[str, np.ndarray],
    indices: Iterator[np.ndarray],
    sharding: jax.sharding.NamedSharding,
  ):
    """Copies the arrays of all examples to every device.

    `indices` yields which examples make a batch, as an array of any shape: its
    axes come first in the batch, whose axes `sharding` is about.
    """
    whole = jax.sharding.PartitionSpec()
    place = jax.sharding.NamedSharding(sharding.mesh, whole)
    self._arrays = jax.device_put(dict(arrays), place)
    self._indices = indices
    take = lambda arrays, i: {k: x[i] for k, x in arrays.items()}
    self._take = jax.jit(take, out_shardings=sharding)

  def __next__(self) -> dict[str, jax.Array]:
    return self._take(self._arrays, next(self._indices))

  def close(self):
    self._arrays = None
