"""From positions to arrays: which example, how augmented, stacked."""

import bisect
import dataclasses
import functools
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
from input_pipeline.sources import Source, concatenate

MASK, SKIPPED = "_mask", "_skipped"

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


class Part(NamedTuple):
  """A source, and what is done to its examples."""

  source: Source
  preprocess: pp.Preprocess


class Examples:
  """Processed examples, stacked in arrays as the first one prescribes."""

  def __init__(self, parts: Sequence[Part], seed: int, *, skip: bool = False):
    """Processes the first example.

    Args:
      parts: what to read; indices run through them one after the other.
      seed: keys the augmentation, together with the position.
      skip: whether the next example stands in for one that fails.

    Raises:
      ValueError: it fails, or holds something that no array can.
    """
    self.source = concatenate([part.source for part in parts])
    self._parts = parts
    self._ends = list(itertools.accumulate(len(part.source) for part in parts))
    self.seed = seed
    self._skip = skip
    first = self._tolerant(self._example, 0, 0)[0]
    self.fields = {key: self._field(key, v) for key, v in first.items()}

  def zeros(self, num_rows: int) -> dict[str, np.ndarray]:
    """Returns arrays for `num_rows` examples, by key."""
    return {
      key: np.zeros((num_rows, *field.shape), field.dtype)
      for key, field in self.fields.items()
    }

  def write(
    self,
    batch: dict[str, np.ndarray],
    indices: Sequence[int],
    positions: Sequence[int],
  ) -> int:
    """Writes examples to the first rows of `batch`, arrays as `zeros` makes.

    Args:
      batch: where to.
      indices: which examples of the source.
      positions: what keys their augmentation.

    Returns:
      How many examples failed and were skipped.

    Raises:
      ValueError: an example fails or does not fit; the message names it.
    """
    records, skipped = self._read(indices), 0
    for row, (index, position) in enumerate(
      zip(indices, positions, strict=True)
    ):
      store = functools.partial(self._store, batch, row, records)
      skipped += self._tolerant(store, index, position)[1]
    return skipped

  def _tolerant(self, fn, index, position):
    """Returns fn(index, position) and 0, or another index's and the skipped.

    Raises:
      ValueError: it fails, and so do all that could stand in for it.
    """
    for skipped in range(_MAX_SKIPPED + 1):
      try:
        return fn((index + skipped) % len(self.source), position), skipped
      except ValueError as error:
        if not self._skip:
          raise
        last = error
        logging.log_first_n(logging.WARNING, "Skipped: %s", 20, error)
    raise ValueError(
      f"{_MAX_SKIPPED + 1} examples in a row fail, too many to skip; the last: "
      f"{last}"
    ) from last

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

  def _example(self, index, position, record=None):
    """Returns one processed example, read if it is not given."""
    preprocess = self._parts[bisect.bisect_right(self._ends, index)].preprocess
    rng = _generator(self.seed, position)
    try:
      record = self.source[index] if record is None else record
      return preprocess(record, rng)
    except Exception as error:
      raise ValueError(f"{self.source.describe(index)}: {error}") from error

  def _store(self, batch, row, records, index, position):
    """Writes one example, or fails; a failure may leave the row half written.

    `records[row]` serves the first attempt only: a stand-in is read by itself.
    """
    record, records[row] = records[row], None
    example = self._example(index, position, record)
    if example.keys() != batch.keys():
      raise ValueError(
        f"{self.source.describe(index)} has the keys {sorted(example)}, the "
        f"first example {sorted(batch)}. Name those you need in keep(...)."
      )
    for key, value in example.items():
      self._store_value(batch[key], row, key, value, index)

  def _field(self, key, value) -> Field:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
      raise ValueError(
        f"{self.source.name}: the values of {key!r} ({type(value).__name__}) "
        "do not stack to an array of numbers. Leave the key out with "
        "keep(...), or let an op turn it into numbers."
      )
    return Field(array.shape, _NARROW.get(array.dtype, array.dtype))

  def _store_value(self, column, row, key, value, index):
    array = np.asarray(value)
    shape, dtype = self.fields[key]
    if array.shape != shape or _NARROW.get(array.dtype, array.dtype) != dtype:
      raise ValueError(
        f"{self.source.describe(index)}: {key!r} is {array.dtype} of shape "
        f"{array.shape}, in the first example {dtype} of {shape}. A batch "
        "needs equal shapes: resize, crop or pad, or leave the key out with "
        "keep(...)."
      )
    column[row] = array
    # Rounding to float32 is fine, a wrapped integer is not.
    narrowed = array.dtype != dtype and dtype.kind != "f"
    if narrowed and (column[row] != array).any():
      raise ValueError(
        f"{self.source.describe(index)}: {key!r} is {array}, which does not "
        f"fit {dtype}. Leave the key out with keep(...)."
      )


_GENERATORS = threading.local()


def _generator(seed: int, position: int) -> np.random.Generator:
  """Returns what Philox keyed by both gives; a thread has but one.

  To make a new one asks the system for randomness that nobody uses.
  """
  if not hasattr(_GENERATORS, "generator"):
    _GENERATORS.generator = np.random.Generator(np.random.Philox(key=0))
    _GENERATORS.state = _GENERATORS.generator.bit_generator.state
  state = _GENERATORS.state
  state["state"]["key"] = np.array([seed, position], np.uint64)
  _GENERATORS.generator.bit_generator.state = state
  return _GENERATORS.generator


class Batches:
  """Arrays of batches that threads fill together, each its own rows.

  The memory of a batch that nobody holds any more serves the next: to get it
  from the system, all zeros, takes a tenth of the time of making the batch.
  """

  def __init__(self, examples: Examples, num_rows: int, pieces_per_batch: int):
    """Takes the rows of a piece and the pieces of a batch."""
    self._fields = examples.fields
    self._unused = {key: [] for key in examples.fields}
    self._num_rows, self._pieces_per_batch = num_rows, pieces_per_batch
    self._begun = {}  # batch → (arrays, pieces still to be given out)
    self._lock = threading.Lock()

  def rows(self, batch: int, part: int) -> dict[str, np.ndarray]:
    """Returns views of a piece's rows; every piece is given out once."""
    with self._lock:
      arrays, left = self._begun.pop(batch, (None, self._pieces_per_batch))
      if arrays is None:
        arrays = {key: self._array(key) for key in self._fields}
      if left > 1:
        self._begun[batch] = arrays, left - 1
    begin = part * self._num_rows
    return {k: x[begin : begin + self._num_rows] for k, x in arrays.items()}

  def _array(self, key):
    """Returns an array for a batch, with whatever values."""
    shape, dtype = self._fields[key]
    shape = (self._num_rows * self._pieces_per_batch, *shape)
    unused = self._unused[key]
    memory = (
      unused.pop() if unused else _memory(math.prod(shape) * dtype.itemsize)
    )
    array = np.frombuffer(memory, dtype, math.prod(shape))
    # Whatever is made of the array refers to it, not to the memory.
    weakref.finalize(array, unused.append, memory).atexit = False
    return array.reshape(shape)


def _memory(num_bytes):
  if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
    return mmap.mmap(-1, max(num_bytes, 1))
  # Memory that could be shared with others gets no huge pages by default.
  flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
  memory = mmap.mmap(-1, max(num_bytes, 1), flags=flags)
  if hasattr(mmap, "MADV_HUGEPAGE"):
    memory.madvise(mmap.MADV_HUGEPAGE)
  return memory


def join(pieces: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Returns the batch that consists of all its pieces, in order."""
  if len(pieces) == 1:
    return pieces[0]
  own = (SKIPPED, MASK)  # The other arrays are one already.
  return {
    key: np.concatenate([piece[key] for piece in pieces])
    if key in own
    else rows.base.reshape(-1, *rows.shape[1:])
    for key, rows in pieces[0].items()
  }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pieces:
  """One process's batches, cut into pieces; what Grain maps over.

  Attributes:
    examples: what to read from.
    start: position of the process's first row.
    num_rows: rows in a piece.
    pieces_per_batch: pieces in the process's share of a batch.
    batch_size: positions from a batch to the next, over all processes.
    order: of endless training, whose batches count in `_skipped` the examples
      skipped, one number per piece; None to go once through the source, with
      `_mask`.
    batches: what pieces are written to, if a batch has several.
  """

  examples: Examples
  start: int
  num_rows: int
  pieces_per_batch: int
  batch_size: int
  order: Order | None
  batches: Batches | None

  def __len__(self) -> int:
    size = len(self.examples.source)
    batches = _ENDLESS if self.order else -(-size // self.batch_size)
    return batches * self.pieces_per_batch

  def __getitem__(self, piece: int) -> dict[str, np.ndarray]:
    """Returns the arrays of one piece, each of `num_rows` rows."""
    batch, part = divmod(piece, self.pieces_per_batch)
    first = self.start + batch * self.batch_size + part * self.num_rows
    last = first + self.num_rows
    if self.batches:
      arrays = self.batches.rows(batch, part)
    else:
      arrays = self.examples.zeros(self.num_rows)
    if self.order:
      indices = self.order.indices(first, last)
      skipped = self.examples.write(arrays, indices, range(first, last))
      return {**arrays, SKIPPED: np.array([skipped])}
    size = len(self.examples.source)
    indices = range(first, max(first, min(last, size)))
    self.examples.write(arrays, indices, indices)
    for rows in arrays.values():
      rows[len(indices) :] = 0
    return {**arrays, MASK: np.arange(self.num_rows) < len(indices)}
