"""From positions to arrays: which example, how augmented, stacked."""

import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from input_pipeline import pp
from input_pipeline.sources import Source

_NARROW = {
  np.dtype(wide): np.dtype(narrow)
  for wide, narrow in (
    (np.int64, np.int32),
    (np.uint64, np.uint32),
    (np.float64, np.float32),
  )
}
_ENDLESS = 2**40


class Field(NamedTuple):
  """What one example holds under one key."""

  shape: tuple[int, ...]
  dtype: np.dtype


class Examples:
  """Processed examples, stacked in arrays as the first one prescribes."""

  def __init__(self, source: Source, preprocess: pp.Preprocess, seed: int):
    """Processes the first example.

    Raises:
      ValueError: it fails, or holds something that no array can.
    """
    self.source = source
    self._preprocess = preprocess
    self.seed = seed
    example = self._process(source[0], 0, 0)
    self.fields = {
      key: self._field(key, value) for key, value in example.items()
    }

  def stack(
    self, indices: Sequence[int], positions: Sequence[int], num_rows: int
  ) -> dict[str, np.ndarray]:
    """Returns `num_rows` rows, zeros after the last example.

    Args:
      indices: which examples of the source.
      positions: what keys their augmentation.
      num_rows: length of the arrays.

    Raises:
      ValueError: an example fails or does not fit; the message names it.
    """
    batch = {
      key: np.zeros((num_rows, *field.shape), field.dtype)
      for key, field in self.fields.items()
    }
    records = self._read(indices)
    for row, (index, position) in enumerate(
      zip(indices, positions, strict=True)
    ):
      example = self._process(records[row], index, position)
      if example.keys() != batch.keys():
        raise ValueError(
          f"{self.source.describe(index)} has the keys {sorted(example)}, the "
          f"first example {sorted(batch)}. Name those you need in keep(...)."
        )
      for key, value in example.items():
        self._store(batch[key], row, key, value, index)
    return batch

  def _read(self, indices):
    try:
      return self.source.read(indices) if indices else []
    except Exception as error:
      raise ValueError(
        f"Cannot read from {self.source.name}, one of the examples "
        f"{list(indices)}: {error}"
      ) from error

  def _process(self, record, index, position):
    key = np.array([self.seed, position], np.uint64)
    rng = np.random.Generator(np.random.Philox(key=key))
    try:
      return self._preprocess(record, rng)
    except Exception as error:
      raise ValueError(f"{self.source.describe(index)}: {error}") from error

  def _field(self, key, value) -> Field:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
      raise ValueError(
        f"{self.source.name}: the values of {key!r} ({type(value).__name__}) "
        "do not stack to an array of numbers. Leave the key out with "
        "keep(...), or let an op turn it into numbers."
      )
    return Field(array.shape, _NARROW.get(array.dtype, array.dtype))

  def _store(self, column, row, key, value, index):
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pieces:
  """One process's batches, cut into pieces; what Grain maps over.

  Attributes:
    examples: what to read from.
    start: position of the process's first row.
    num_rows: rows in a piece.
    pieces_per_batch: pieces in the process's share of a batch.
    batch_size: positions from a batch to the next, over all processes.
    num_batches: None for endless shuffled epochs; a number to go once through
      the source in order, with `_mask`.
  """

  examples: Examples
  start: int
  num_rows: int
  pieces_per_batch: int
  batch_size: int
  num_batches: int | None

  def __len__(self) -> int:
    return (self.num_batches or _ENDLESS) * self.pieces_per_batch

  def __getitem__(self, piece: int) -> dict[str, np.ndarray]:
    """Returns the arrays of one piece, each of `num_rows` rows."""
    batch, part = divmod(piece, self.pieces_per_batch)
    first = self.start + batch * self.batch_size + part * self.num_rows
    last = first + self.num_rows
    size = len(self.examples.source)
    if self.num_batches is None:
      indices = shuffled(self.examples.seed, size, first, last)
      return self.examples.stack(indices, range(first, last), self.num_rows)
    indices = range(first, max(first, min(last, size)))
    arrays = self.examples.stack(indices, indices, self.num_rows)
    return {**arrays, "_mask": np.arange(self.num_rows) < len(indices)}


def shuffled(seed: int, size: int, first: int, last: int) -> list[int]:
  """Returns which of `size` examples stand at positions [first, last).

  Every epoch is a permutation of its own, which depends on (seed, epoch) only.
  """
  indices = []
  for epoch in range(first // size, (last - 1) // size + 1):
    begin = max(first - epoch * size, 0)
    end = min(last - epoch * size, size)
    indices += _epoch(seed, epoch, size)[begin:end].tolist()
  return indices


_EPOCH_LOCK = threading.Lock()


def _epoch(seed, epoch, size):
  # The cache alone would let every thread compute a new epoch's permutation.
  with _EPOCH_LOCK:
    return _permutation(seed, epoch, size)


@functools.lru_cache(maxsize=4)
def _permutation(seed, epoch, size):
  bits = np.random.Philox(np.random.SeedSequence((seed, epoch)))
  indices = np.arange(size, dtype=np.min_scalar_type(size))
  return np.random.Generator(bits).permutation(indices)
