"""From host batches to global arrays on devices, ahead of the consumer."""

import queue
import threading
import time
import weakref
from collections.abc import Iterable, Iterator

import jax
import numpy as np

from input_pipeline.batches import SKIPPED


class DeviceIterator:
  """Batches as dicts of global arrays, placed by a background thread.

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
    prefetch: int,
  ):
    """Starts the thread; see `to_device`."""
    self.wait_secs = 0.0
    self.skipped = 0
    self._ready = queue.SimpleQueue()
    self._free = threading.Semaphore(prefetch)
    self._stop = threading.Event()
    # The thread holds no reference to self: a forgotten iterator gets closed.
    thread = threading.Thread(
      target=_work,
      args=(batches, sharding, self._ready, self._free, self._stop),
      name="to_device",
      daemon=True,
    )
    thread.start()
    self.close = weakref.finalize(
      self, _close, thread, self._ready, self._free, self._stop
    )

  def __iter__(self) -> Iterator[dict[str, jax.Array]]:
    return self

  def __next__(self) -> dict[str, jax.Array]:
    if self._stop.is_set():
      raise StopIteration
    begin = time.perf_counter()
    batch, found = self._ready.get()
    self.wait_secs += time.perf_counter() - begin
    if batch is None:
      self.close()
      raise found or StopIteration
    self.skipped = found
    self._free.release()
    return batch


def to_device(
  batches: Iterable[dict[str, np.ndarray]],
  sharding: jax.sharding.Sharding,
  prefetch: int = 2,
) -> DeviceIterator:
  """Returns an iterator over `batches` as global arrays.

  Args:
    batches: this process's rows of every batch.
    sharding: of every array; the leading axis is split over the processes, in
      their order.
    prefetch: batches to place ahead.

  An error of `batches` is raised to the consumer after the batches before it.
  `close()` ends the thread and closes `batches`; so does dropping the iterator.
  """
  if prefetch < 1:
    raise ValueError(f"prefetch must be 1 batch or more, got {prefetch}.")
  return DeviceIterator(batches, sharding, prefetch)


def _work(batches, sharding, ready, free, stop):
  """Places batches until they end, fail, or the consumer stops.

  With each goes the number of examples skipped so far; the end comes as None,
  with the error if there is one.
  """
  end, skipped = (None, None), 0
  try:
    for batch in batches:
      free.acquire()
      if stop.is_set():
        break
      skipped += int(np.sum(batch.get(SKIPPED, 0)))
      arrays = {
        key: _place(x, sharding) for key, x in batch.items() if key != SKIPPED
      }
      ready.put((arrays, skipped))
  except BaseException as error:
    end = (None, error)
  finally:
    if hasattr(batches, "close"):
      batches.close()
    ready.put(end)


def _place(array: np.ndarray, sharding: jax.sharding.Sharding) -> jax.Array:
  shape = (array.shape[0] * jax.process_count(), *array.shape[1:])
  return jax.make_array_from_process_local_data(sharding, array, shape)


def _close(thread, ready, free, stop):
  stop.set()
  free.release()
  if thread is not threading.current_thread():
    thread.join()
