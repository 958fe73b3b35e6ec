"""Turns positions into arrays: picks, augments and batches examples.

Threads share the work on a batch: each fills a *shard* of its rows, and `join`
turns the shards into the batch in the consumer's thread.
"""

import bisect
import copy
import itertools
import math
import mmap
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from dpn import damage
from dpn.input_pipeline import pp, sources

# Columns that a batch has besides its examples' keys.
MASK = "_mask"  # (rows,) bool, false on padding; evaluation only
SKIPPED = "_skipped"  # (rows,) how many examples failed before the row's own

# From 8 bytes to 4: integers, unsigned ones and floats.
_NARROW = {np.dtype(f"{k}8"): np.dtype(f"{k}4") for k in "iuf"}
_MAX_SKIPPED = 100


class Field(NamedTuple):
  """Shape and type of what each example holds under a key."""

  shape: tuple[int, ...]
  dtype: np.dtype


class MixturePart(NamedTuple):
  """A source and the preprocessing of its examples."""

  source: sources.Source
  preprocess: pp.Preprocess


class Examples:
  """Processed examples, all with the keys and shapes of the first.

  Attributes:
    source: the parts' sources, concatenated.
    fields: shape and dtype by key.
    vocabularies: the vocabularies of token ids, by the key that holds them.
    skip: whether the next example replaces one that fails.
    any_shape: whether shapes may differ, so that examples do not stack.
  """

  def __init__(
    self,
    parts: Sequence[MixturePart],
    seed: int,
    *,
    skip: bool = False,
    any_shape: bool = False,
  ):
    """Processes the first example; `seed` keys the augmentation.

    ValueError if that example fails, or does not consist of numbers.
    """
    slices = [(part.source, 0, len(part.source)) for part in parts]
    self.source = sources.join(slices)
    self.skip, self.any_shape = skip, any_shape
    self._parts, self._seed = parts, seed
    every = (part.preprocess.vocabularies.items() for part in parts)
    self.vocabularies = dict(  # for each key, the largest
      sorted(itertools.chain(*every), key=lambda item: item[1].size)
    )
    self._ends = list(itertools.accumulate(size for *_, size in slices))
    self.fields = None
    first, _ = self._process(0, 0)
    self.fields = {key: Field(x.shape, x.dtype) for key, x in first.items()}
    for key, (_, dtype) in self.fields.items():
      if dtype.kind not in "biuf":
        raise ValueError(
          f"{self.source.name}: the values of {key!r} ({dtype}) are not "
          "numbers. Leave the key out with keep(...), or convert it by an op."
        )

  def facts(self) -> dict[str, Any]:
    """Returns what all processes must agree on."""
    facts = {"data": self.source.name, "examples": len(self.source)}
    # With `skip`, what one process cannot read others may.
    return facts | ({} if self.skip else {"crc": sources.checksum(self.source)})

  def with_seed(self, seed: int) -> "Examples":
    """Returns the same examples, augmented with another seed."""
    other = copy.copy(self)
    other._seed = seed
    return other

  def check_not_random(self):
    """Raises ValueError if preprocessing draws random numbers."""
    for source, preprocess in self._parts:
      try:
        if drawn := [x.text for x in preprocess.steps if x.declared.random]:
          raise ValueError(f"These do: {', '.join(drawn)}.")
        preprocess(source[0], None)
      except ValueError as e:
        raise ValueError(
          "config.input.on_device: every example is preprocessed only once, "
          "and kept; so pp may not draw random numbers. config.augment shifts "
          f"and flips on the device. {e}"
        ) from e

  def write(
    self,
    rows: dict[str, np.ndarray],
    indices: Sequence[int],
    positions: Sequence[int],
  ):
    """Writes the source's examples at `indices` to the first rows of arrays.

    Args:
      rows: arrays by key, as `fields` says, with a leading axis. If `SKIPPED`
        is among them, it gets the number of examples that failed.
      indices: which examples.
      positions: their positions in the run, which decide the augmentation.

    Raises:
      ValueError: an example fails or does not fit; the message names it.
    """
    try:
      records = self.source.read(indices)
    except Exception:
      # Below, each is read on its own, so the error names the one that fails.
      records = [None] * len(indices)
    for row, (index, position, record) in enumerate(
      zip(indices, positions, records, strict=True)
    ):
      example, skipped = self._process(index, position, record)
      for key, array in example.items():
        rows[key][row] = array
      if SKIPPED in rows:
        rows[SKIPPED][row] = skipped

  def __getitem__(self, index: int) -> dict[str, np.ndarray]:
    """Returns an example, augmented the same each time; raises like `write`."""
    return self._process(index, index)[0]

  def _process(self, index, position, record=None):
    """Returns an example's arrays, and how many were skipped to get it."""
    for skipped in itertools.count():
      try:
        return self._example(index, position, record), skipped
      except Exception as error:
        message = damage.described(self.source.describe(index), error)
        if not self.skip or damage.is_shortage(error):
          raise ValueError(message) from error
        logging.log_first_n(logging.WARNING, "Skipped: %s", 20, message)
        if skipped == _MAX_SKIPPED:
          raise ValueError(
            f"{skipped + 1} examples in a row fail, too many to skip; the "
            f"last: {message}"
          ) from error
      # Go on to the next example in the same part of the mixture.
      place = bisect.bisect_right(self._ends, index)
      first = self._ends[place - 1] if place else 0
      size = self._ends[place] - first
      index, record = first + (index + 1 - first) % size, None

  def _example(self, index, position, record):
    """Returns one example as arrays; reads it if `record` is None."""
    part = self._parts[bisect.bisect_right(self._ends, index)]
    record = self.source[index] if record is None else record
    example = part.preprocess(record, generator(self._seed, position))
    arrays = {key: _narrow(key, np.asarray(x)) for key, x in example.items()}
    if self.fields is not None:
      self._check(arrays)
    return arrays

  def _check(self, arrays):
    """Raises ValueError unless an example is like the first."""
    if arrays.keys() != self.fields.keys():
      raise ValueError(
        f"it has the keys {sorted(arrays)}, the first example "
        f"{sorted(self.fields)}. Name those you need in keep(...)."
      )
    for key, array in arrays.items():
      shape, dtype = self.fields[key]
      if array.dtype != dtype or not (self.any_shape or array.shape == shape):
        raise ValueError(
          f"{key!r} is {array.dtype} of shape {array.shape}, in the first "
          f"example {dtype} of {shape}. A batch needs equal shapes: resize, "
          "crop or pad, or leave the key out with keep(...)."
        )


def _narrow(key: str, array: np.ndarray) -> np.ndarray:
  """Returns an array without 64-bit types, which JAX would narrow.

  It has the machine's byte order, as JAX takes no other.
  """
  array = array.astype(array.dtype.newbyteorder("="), copy=False)
  dtype = _NARROW.get(array.dtype)
  if dtype is None:
    return array
  narrow = array.astype(dtype)
  # Rounding to float32 is fine, a wrapped integer is not.
  if dtype.kind != "f" and (narrow != array).any():
    raise ValueError(
      f"{key!r} is {array}, which does not fit {dtype}. Leave the key out "
      "with keep(...)."
    )
  return narrow


_THREAD = threading.local()


def generator(seed: int, position: int) -> np.random.Generator:
  """Returns a Philox generator keyed by (seed, position).

  Each thread keeps one and changes its key: constructing a generator takes 7 µs
  instead of 2, mostly for system entropy that is then thrown away.
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

  Memory is recycled: page faults in new memory would take a tenth as long as
  making the batch.
  """

  def __init__(self, fields: dict[str, Field], num_rows: int, num_shards: int):
    """Takes the columns, the rows per shard and the shards per batch."""
    self._args = fields, num_rows, num_shards
    self._unused = {key: [] for key in fields}
    self._begun = {}  # batch → (arrays, shards still to be handed out)
    self._lock = threading.Lock()

  def __reduce__(self):
    return BatchBuffers, self._args

  def rows(self, batch: int, shard: int) -> dict[str, np.ndarray]:
    """Returns views of a shard's rows; call it once per shard."""
    fields, num_rows, num_shards = self._args
    with self._lock:
      arrays, left = self._begun.pop(batch, (None, num_shards))
      if arrays is None:
        arrays = {
          key: self._array(key, (num_rows * num_shards, *shape), dtype)
          for key, (shape, dtype) in fields.items()
        }
      if left > 1:
        self._begun[batch] = arrays, left - 1
    begin = shard * num_rows
    return {key: x[begin : begin + num_rows] for key, x in arrays.items()}

  def _array(self, key, shape, dtype):
    """Returns an uninitialized array."""
    size, unused = math.prod(shape), self._unused[key]
    # Not np.empty: views of `array` would then refer to the owner of the memory
    # instead, and the finalizer below would have nothing to wait for.
    memory = (
      unused.pop() if unused else mmap.mmap(-1, size * dtype.itemsize or 1)
    )
    array = np.frombuffer(memory, dtype, size)
    # Runs when the last view of `array` is gone, JAX's included.
    weakref.finalize(array, unused.append, memory).atexit = False
    return array.reshape(shape)


def join(shards: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """Returns the batch of which the shards, from `BatchBuffers`, are views."""
  return {
    key: rows.base.reshape(len(shards) * len(rows), *rows.shape[1:])
    for key, rows in shards[0].items()
  }
