"""Deterministic batches of processed examples, starting at any position.

Position p of a training run reads example `permutation(seed, p // n)[p % n]` of
the n in the source (`order` has the rest), and augments it with a generator
keyed by (seed, p). Both are pure functions, so the number of examples seen is
the only state: a run resumes exactly, at once, with any number of threads,
workers, processes or devices. Grain prefetches; its state is never stored.

Batches are dicts of NumPy arrays. 64-bit values become 32-bit, as in JAX.
"""

import contextlib
import dataclasses
import itertools
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent import futures
from multiprocessing import resource_tracker
from typing import Any

import grain
import numpy as np
from absl import flags

from dpn import host_memory, input_pipeline
from dpn.input_pipeline import batches, sources
from dpn.input_pipeline import order as order_lib
from dpn.input_pipeline.pp import ops_text

Batch = Example = dict[str, np.ndarray]
Spec = dict[str, tuple[tuple[int, ...], np.dtype]]

_SHARD_ROWS = 64, 256  # the best number, and the largest
_ENDLESS = 2**40
_SMALL_BYTES = 2**17  # See docs/input_performance.md.


@dataclasses.dataclass(frozen=True)
class SingleExamples:
  """Examples that may differ in shape, in order; iterate as often as needed.

  Attributes:
    examples: those of all processes.
    indices: which of them this process reads, numbered as in the source.
  """

  examples: batches.Examples
  indices: range

  @property
  def num_examples(self) -> int:
    """Number of examples over all processes."""
    return len(self.examples.source)

  def __len__(self):
    return len(self.indices)

  def __getitem__(self, place: int) -> Example:
    """Returns the example numbered `indices[place]`."""
    return self.examples[self.indices[place]]

  def __iter__(self) -> Iterator[tuple[int, Example]]:
    """Yields (index in the source, example); threads work ahead."""
    threads = _default_threads(self.examples)
    dataset = grain.MapDataset.source(self).to_iter_dataset(
      grain.ReadOptions(threads, prefetch_buffer_size=2 * threads)
    )
    yield from zip(self.indices, _iterate(dataset), strict=True)


def _iterate(dataset: grain.IterDataset, workers: int = 0) -> Iterator[Any]:
  """Yields from a data set, and ends its threads or processes when closed."""
  host_memory.keep_images()
  with contextlib.closing(iter(dataset)) as iterator:
    first = _start_workers(iterator) if workers else []
    while first:
      yield first.pop()
    yield from iterator


def _start_workers(iterator: Iterator[Any]) -> list[Any]:
  """Returns the first batch, if any, from workers that hear no SIGTERM, Ctrl-C.

  Schedulers and terminals send signals to all processes of a run. Only the
  parent answers them: it still needs batches until it has saved. A process
  inherits what the thread that starts it blocks. That is not the caller's, whom
  Ctrl-C would then reach only after the first batch.
  """
  first: futures.Future[list[Any]] = futures.Future()

  def start():
    try:
      resource_tracker.ensure_running()  # Started later, it would unblock both.
      signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
      first.set_result(list(itertools.islice(iterator, 1)))
    except BaseException as error:
      first.set_exception(error)

  threading.Thread(target=start, daemon=True).start()
  return first.result()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
  """Examples in batches: endless with an `order`, a single round without one.

  The other attributes are arguments of `pipeline.training` or keys of `config`.
  """

  examples: batches.Examples
  batch_size: int
  order: order_lib.Order | None = None
  process_index: int = 0
  process_count: int = 1
  num_threads: int | None = None
  num_workers: int = 0
  prefetch: int = 2
  on_device: bool = False

  def __post_init__(self):
    if self.on_device:
      self.examples.check_not_random()
      if self.process_count > 1 or self.examples.skip:
        raise ValueError(
          "config.input.on_device needs a single process, and does not go with "
          "on_error='skip'. Leave it out."
        )
    if self.batch_size % self.process_count:
      raise ValueError(
        f"batch_size must be a multiple of the {self.process_count} processes, "
        f"got {self.batch_size}."
      )

  def with_seed(self, seed: int) -> "Data":
    """Returns the same data, ordered and augmented with another seed."""
    order = self.order and dataclasses.replace(self.order, seed=seed)
    examples = self.examples.with_seed(seed)
    return dataclasses.replace(self, examples=examples, order=order)

  @property
  def num_examples(self) -> int:
    """Number of examples in the source."""
    return len(self.examples.source)

  @property
  def spec(self) -> Spec:
    """(shape, dtype) of a batch over all processes, by key."""
    return {
      key: ((self.batch_size, *field.shape), field.dtype)
      for key, field in self.examples.fields.items()
    }

  @property
  def vocabularies(self) -> dict[str, ops_text.Vocabulary]:
    """Vocabularies of token ids, by the key that holds them."""
    return self.examples.vocabularies

  def indices(self, examples_seen: int = 0) -> Iterator[np.ndarray]:
    """Yields the indices of each batch's examples, from a position on."""
    for first in itertools.count(examples_seen, self.batch_size):
      batch = self.order.indices(first, first + self.batch_size)
      yield np.asarray(batch, np.int32)

  def everything(self) -> Batch:
    """Returns all examples as one batch, in the order of the source."""
    same = {"batch_size": self.batch_size, "num_threads": self.num_threads}
    once = EvaluationData(examples=self.examples, **same)
    found = [
      {key: batch[key][batch[batches.MASK]] for key in self.spec}
      for batch in once
    ]
    return {key: np.concatenate([b[key] for b in found]) for key in self.spec}

  def checksum(self) -> str:
    """Returns the number of examples, and a checksum of some of them."""
    skip = self.examples.skip
    checksum = sources.checksum(self.examples.source, skip=skip)
    return f"{self.num_examples}-{checksum:08x}"

  def batches(self, examples_seen: int = 0) -> Iterator[Batch]:
    """Yields this process's rows of every batch from a position on.

    With on_error="skip" batches have the column `batches.SKIPPED`; in a single
    round, `batches.MASK`. `close` ends the threads or processes.
    """
    shards = _Shards(self, examples_seen)
    dataset = grain.MapDataset.source(shards)
    if self.num_workers:
      # Grain's processes read absl flags, which a notebook never parses.
      if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
      dataset = dataset.to_iter_dataset(
        grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
      ).mp_prefetch(
        grain.MultiprocessingOptions(self.num_workers, self.prefetch),
        worker_init_fn=_start_worker,
      )
    else:
      threads = self.num_threads or _default_threads(self.examples)
      ahead = max(self.prefetch * shards.per_batch, threads)
      dataset = dataset.to_iter_dataset(
        grain.ReadOptions(threads, prefetch_buffer_size=ahead)
      ).batch(shards.per_batch, batch_fn=batches.join)
    return _iterate(dataset, self.num_workers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationData(Data):
  """Every example once, in order; iterate as often as needed."""

  cache: bool = False
  _cached: list[Batch] = dataclasses.field(default_factory=list, init=False)

  def __len__(self) -> int:
    """Number of batches, the same for every process."""
    return -(-self.num_examples // self.batch_size)

  def __iter__(self) -> Iterator[Batch]:
    """Yields this process's rows of every batch, with `_mask`."""
    if self._cached:
      yield from self._cached
      return
    finished = []
    for batch in self.batches():
      if self.cache:
        finished.append(batch)
      yield batch
    self._cached[:] = finished


class _Shards:
  """One process's batches, cut into shards; Grain maps over their indices.

  Attributes:
    per_batch: shards in the process's share of a batch.
  """

  def __init__(self, data: Data, examples_seen: int):
    self._data = data
    local_size = data.batch_size // data.process_count
    self._start = examples_seen + data.process_index * local_size
    # Threads share the work on a batch; a worker process makes whole ones.
    best, most = (local_size,) * 2 if data.num_workers else _SHARD_ROWS
    divisors = [n for n in range(1, most + 1) if local_size % n == 0]
    self._rows = min(divisors, key=lambda n: abs(math.log(n / best)))
    self.per_batch = local_size // self._rows
    fields = dict(data.examples.fields)
    if not data.order:
      fields[batches.MASK] = batches.Field((), np.dtype(bool))
    if data.examples.skip:
      fields[batches.SKIPPED] = batches.Field((), np.dtype(np.int32))
    self._buffers = batches.BatchBuffers(fields, self._rows, self.per_batch)

  def __len__(self):
    return (_ENDLESS if self._data.order else len(self._data)) * self.per_batch

  def __getitem__(self, index: int) -> Batch:
    data, (batch, shard) = self._data, divmod(index, self.per_batch)
    first = self._start + batch * data.batch_size + shard * self._rows
    last = first + self._rows
    rows = self._buffers.rows(batch, shard)
    if data.order:
      indices = data.order.indices(first, last)
      data.examples.write(rows, indices, range(first, last))
      return rows
    indices = range(first, max(first, min(last, data.num_examples)))
    data.examples.write(rows, indices, indices)
    for column in rows.values():
      column[len(indices) :] = 0  # padding
    rows[batches.MASK][: len(indices)] = True
    return rows


def _start_worker(worker_index: int, worker_count: int):
  """Prepares a worker process, and ends it when its parent is killed."""
  del worker_index, worker_count
  host_memory.keep_images()

  def watch():
    multiprocessing.parent_process().join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


def _default_threads(examples: batches.Examples) -> int:
  """Returns one thread per core, but one in all for small examples in memory.

  More threads would then only wait for the interpreter's lock.
  """
  fields = examples.fields.values()
  num_bytes = sum(math.prod(f.shape) * f.dtype.itemsize for f in fields)
  if examples.source.in_memory and num_bytes <= _SMALL_BYTES:
    return 1
  return input_pipeline.num_cores()
