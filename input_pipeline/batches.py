"""From positions to arrays: which example, how augmented, stacked in batches.

Threads share the work on a batch, each a *shard* of up to 64 rows. Grain calls
`BatchShards` in its threads or worker processes and puts the shards in order;
`join` makes batches of them in the consumer's thread.
"""

import bisect
import dataclasses
import itertools
import math
import mmap
import threading
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from absl import logging

from input_pipeline import pp
from input_pipeline.order import Order
from input_pipeline.sources import Source
from input_pipeline.sources import join as join_sources

# Columns of a batch beside its examples' keys.
MASK = "_mask"  # (rows,) bool, false on padding; of evaluation
SKIPPED = "_skipped"  # (rows,) examples that failed before the row's own

_NARROW = {
  np.dtype(wide): np.dtype(narrow)
  for wide, narrow in (
    (np.int64, np.int32),
    (np.uint64, np.uint32),
    (np.float64, np.float32),
  )
}
_ENDLESS = 2**40
_MAX_SKIPPED = 100


class Field(NamedTuple):
  """What one example holds under one key."""

  shape: tuple[int, ...]
  dtype: np.dtype


class MixturePart(NamedTuple):
  """A source, and how its examples are preprocessed."""

  source: Source
  preprocess: pp.Preprocess


class Examples:
  """Processed examples, which must all have the first one's keys and shapes.

  Attributes:
    source: the parts' sources, one after the other.
    fields: shape and dtype by key.
  """

  def __init__(
    self, parts: Sequence[MixturePart], seed: int, *, skip: bool = False
  ):
    """Processes the first example.

    Args:
      parts: what to read; indices run through them one after the other.
      seed: keys the augmentation, together with the position.
      skip: whether to replace an example that fails by the next one.

    Raises:
      ValueError: the first example fails, or does not consist of numbers.
    """
    self.source = join_sources([(p.source, 0, len(p.source)) for p in parts])
    self._parts = parts
    self._ends = list(itertools.accumulate(len(part.source) for part in parts))
    self._seed = seed
    self._skip = skip
    self.fields = None
    first, _ = self._process(0, 0)
    self.fields = {
      key: Field(x.shape, _NARROW.get(x.dtype, x.dtype))
      for key, x in first.items()
    }

  def write(
    self,
    rows: dict[str, np.ndarray],
    indices: Sequence[int],
    positions: Sequence[int],
  ):
    """Writes examples to the first rows of arrays.

    Args:
      rows: arrays by key, as `fields` says, with a leading axis. If `SKIPPED`
        is among them, it gets the number of examples that failed.
      indices: which examples of the source.
      positions: of the run, which decide the augmentation.

    Raises:
      ValueError: an example fails or does not fit; the message names it.
    """
    records = self._read(indices)
    for row, (index, position, record) in enumerate(
      zip(indices, positions, records, strict=True)
    ):
      example, skipped = self._process(index, position, record)
      for key, array in example.items():
        rows[key][row] = array
      if SKIPPED in rows:
        rows[SKIPPED][row] = skipped

  def _read(self, indices):
    """Returns the records at `indices`; None where one must be read alone."""
    try:
      return self.source.read(indices) if indices else []
    except Exception as error:
      if self._skip:
        return [None] * len(indices)
      raise ValueError(
        f"Cannot read from {self.source.name}, one of the examples "
        f"{list(indices)}: {error}"
      ) from error

  def _process(self, index, position, record=None):
    """Returns an example's arrays, and how many were skipped to get it.

    Raises:
      ValueError: it fails, and so do all that could replace it.
    """
    for skipped in range(_MAX_SKIPPED + 1):
      try:
        return self._example(index, position, record), skipped
      except ValueError as error:
        if not self._skip:
          raise
        last = error
        logging.log_first_n(logging.WARNING, "Skipped: %s", 20, error)
      index, record = (index + 1) % len(self.source), None
    raise ValueError(
      f"{_MAX_SKIPPED + 1} examples in a row fail, too many to skip; the last: "
      f"{last}"
    ) from last

  def _example(self, index, position, record):
    """Returns one example as arrays, read if `record` is None."""
    preprocess = self._parts[bisect.bisect_right(self._ends, index)].preprocess
    try:
      record = self.source[index] if record is None else record
      example = preprocess(record, generator(self._seed, position))
    except Exception as error:
      raise ValueError(f"{self.source.describe(index)}: {error}") from error
    if self.fields is not None and example.keys() != self.fields.keys():
      raise ValueError(
        f"{self.source.describe(index)} has the keys {sorted(example)}, the "
        f"first example {sorted(self.fields)}. Name those you need in "
        "keep(...)."
      )
    return {key: self._array(index, key, x) for key, x in example.items()}

  def _array(self, index, key, value):
    """Returns a value as an array that fits the column of its key."""
    array = np.asarray(value)
    if self.fields is None:
      if array.dtype.kind not in "biuf":
        raise ValueError(
          f"{self.source.name}: the values of {key!r} ({type(value).__name__}) "
          "do not stack to an array of numbers. Leave the key out with "
          "keep(...), or let an op turn it into numbers."
        )
      return array
    shape, dtype = self.fields[key]
    if array.shape != shape or _NARROW.get(array.dtype, array.dtype) != dtype:
      raise ValueError(
        f"{self.source.describe(index)}: {key!r} is {array.dtype} of shape "
        f"{array.shape}, in the first example {dtype} of {shape}. A batch "
        "needs equal shapes: resize, crop or pad, or leave the key out with "
        "keep(...)."
      )
    if array.dtype == dtype or dtype.kind == "f":
      return array
    # Rounding to float32 is fine, a wrapped integer is not.
    narrow = array.astype(dtype)
    if (narrow != array).any():
      raise ValueError(
        f"{self.source.describe(index)}: {key!r} is {array}, which does not "
        f"fit {dtype}. Leave the key out with keep(...)."
      )
    return narrow


_THREAD = threading.local()


def generator(seed: int, position: int) -> np.random.Generator:
  """Returns a Philox generator keyed by (seed, position).

  It is one object per thread that is keyed anew: constructing a generator takes
  7 µs instead of 2, most of them for system entropy that is then thrown away.
  """
  if not hasattr(_THREAD, "generator"):
    _THREAD.generator = np.random.Generator(np.random.Philox(key=0))
    _THREAD.state = _THREAD.generator.bit_generator.state
  state = _THREAD.state
  state["state"]["key"] = np.array([seed, position], np.uint64)
  _THREAD.generator.bit_generator.state = state
  return _THREAD.generator


class BatchBuffers:
  """The arrays of batches, each filled by several threads at once.

  Memory is recycled: the page faults of a fresh batch take a tenth of the time
  of making it.
  """

  def __init__(self, fields: dict[str, Field], num_rows: int, num_shards: int):
    """Takes the columns, the rows of a shard and the shards of a batch."""
    self._fields = fields
    self._unused = {key: [] for key in fields}
    self._num_rows, self._num_shards = num_rows, num_shards
    self._begun = {}  # batch → (arrays, shards still to be handed out)
    self._lock = threading.Lock()

  def rows(self, batch: int, shard: int) -> dict[str, np.ndarray]:
    """Returns views of a shard's rows; call it once per shard."""
    with self._lock:
      arrays, left = self._begun.pop(batch, (None, self._num_shards))
      if arrays is None:
        arrays = {key: self._array(key) for key in self._fields}
      if left > 1:
        self._begun[batch] = arrays, left - 1
    begin = shard * self._num_rows
    return {k: x[begin : begin + self._num_rows] for k, x in arrays.items()}

  def _array(self, key):
    """Returns an uninitialized array for a batch."""
    shape, dtype = self._fields[key]
    shape = (self._num_rows * self._num_shards, *shape)
    num_bytes = math.prod(shape) * dtype.itemsize
    unused = self._unused[key]
    # Not np.empty: a view of a view refers to the array that owns the memory,
    # so the finalizer below would have nothing to wait for.
    memory = unused.pop() if unused else mmap.mmap(-1, max(num_bytes, 1))
    array = np.frombuffer(memory, dtype, math.prod(shape))
    # Runs when the last view of `array` is gone, JAX's included.
    weakref.finalize(array, unused.append, memory).atexit = False
    return array.reshape(shape)


def join(shards: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Returns the batch whose rows the shards from `BatchBuffers` view."""
  return {
    key: rows.base.reshape(-1, *rows.shape[1:])
    for key, rows in shards[0].items()
  }


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchShards:
  """One process's batches, cut into shards; Grain maps over their indices.

  Attributes:
    examples: what to read from.
    start: position of the process's first row.
    num_rows: rows in a shard.
    num_shards: shards in the process's share of a batch.
    batch_size: positions from a batch to the next, over all processes.
    order: of endless training; None to go through the source once.
    fields: the examples' columns, and `MASK` or `SKIPPED` if they are wanted.
    buffers: what threads write to. None, in worker processes, means new arrays.
  """

  examples: Examples
  start: int
  num_rows: int
  num_shards: int
  batch_size: int
  order: Order | None
  fields: dict[str, Field]
  buffers: BatchBuffers | None

  def __len__(self) -> int:
    size = len(self.examples.source)
    batches = _ENDLESS if self.order else -(-size // self.batch_size)
    return batches * self.num_shards

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    """Returns the arrays of one shard, each of `num_rows` rows."""
    batch, shard = divmod(index, self.num_shards)
    first = self.start + batch * self.batch_size + shard * self.num_rows
    last = first + self.num_rows
    if self.buffers:
      rows = self.buffers.rows(batch, shard)
    else:
      rows = {
        key: np.empty((self.num_rows, *field.shape), field.dtype)
        for key, field in self.fields.items()
      }
    if self.order:
      indices = self.order.indices(first, last)
      self.examples.write(rows, indices, range(first, last))
      return rows
    indices = range(first, max(first, min(last, len(self.examples.source))))
    self.examples.write(rows, indices, indices)
    for column in rows.values():
      column[len(indices) :] = 0  # padding
    rows[MASK][: len(indices)] = True
    return rows
