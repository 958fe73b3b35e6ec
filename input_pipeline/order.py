"""The order in which a training run sees its examples.

It is a pure function of the position, so nothing is ever stored:

- One source: every epoch is a new permutation.
- A mixture: in every round of 1,000 positions each part has its share, rounded
  to whole examples and shuffled. Each part has epochs of its own.
- Repeated augmentation (arXiv 1901.09335): every example occurs several times
  in a batch, as far apart as possible, so that mixup pairs different examples.
"""

import dataclasses
import functools
import threading
from collections.abc import Sequence

import numpy as np

_ROUND = 1000
_ROUNDS = 2**32 - 1  # Seeds a round's permutation, in place of a part's index.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Order:
  """Maps positions to indices of the parts' concatenation."""

  seed: int  # of the permutations
  sizes: tuple[int, ...]  # number of examples in each part
  counts: tuple[int, ...] = (_ROUND,)  # each part's positions in a round
  # How often an example occurs in a batch. If that does not divide the batch
  # size, the last examples occur once less.
  repeats: int = 1
  batch_size: int = 1  # over all processes; matters only if examples repeat

  def indices(self, first: int, last: int) -> list[int]:
    """Returns the examples at positions [first, last)."""
    positions = np.arange(first, last)
    if self.repeats > 1:
      batch, row = np.divmod(positions, self.batch_size)
      distinct = -(-self.batch_size // self.repeats)
      positions = batch * distinct + row % distinct
    if len(self.sizes) == 1:
      return self._shuffled(positions, 0).tolist()
    rounds, rows = np.divmod(positions, _ROUND)
    # A position's part, and its rank among that part's positions in the round.
    # The part had `counts` positions in each round before, so this gives the
    # position within the part.
    parts, ranks = np.empty_like(rows), np.empty_like(rows)
    for number in np.unique(rounds):
      here = rounds == number
      columns = _round(self.seed, number, self.counts)
      parts[here], ranks[here] = (x[rows[here]] for x in columns)
    starts = np.cumsum(self.sizes) - self.sizes
    indices = np.empty_like(rows)
    for part in np.unique(parts):
      here = parts == part
      own = rounds[here] * self.counts[part] + ranks[here]
      indices[here] = starts[part] + self._shuffled(own, part)
    return indices.tolist()

  def _shuffled(self, positions, part):
    """Returns a part's examples at positions counted within the part."""
    size = self.sizes[part]
    epochs, rows = np.divmod(positions, size)
    indices = np.empty_like(rows)
    for epoch in np.unique(epochs):
      here = epochs == epoch
      indices[here] = _epoch(self.seed, int(epoch), size, int(part))[rows[here]]
    return indices


def counts(weights: Sequence[float]) -> tuple[int, ...]:
  """Returns how many positions of a round each part of a mixture has.

  Raises:
    ValueError: a weight is not positive, or too small for one position.
  """
  if min(weights) <= 0:
    raise ValueError(f"Expected positive weights, got {list(weights)}.")
  shares = np.array(weights) / sum(weights) * _ROUND
  result = np.floor(shares).astype(int)
  largest = np.argsort(result - shares, kind="stable")
  result[largest[: _ROUND - result.sum()]] += 1
  if not result.all():
    raise ValueError(
      f"The weights {list(weights)} leave a part with less than one in {_ROUND}"
      " examples. Raise its weight, or leave it out."
    )
  return tuple(result.tolist())


_LOCK = threading.Lock()


@functools.lru_cache(maxsize=128)
def _cache(seed, part):
  """Returns a cache for a part of a run: none evicts another's permutations."""
  del seed, part
  return functools.lru_cache(maxsize=2)(_permutation)


def _epoch(seed, epoch, size, part):
  with _LOCK:  # or every thread would compute the same permutation
    return _cache(seed, part)(seed, epoch, size, part)


def _permutation(seed, epoch, size, part):
  bits = np.random.Philox(np.random.SeedSequence((seed, epoch, part)))
  indices = np.arange(size, dtype=np.min_scalar_type(size))
  return np.random.Generator(bits).permutation(indices)


@functools.lru_cache(maxsize=64)
def _round(seed, number, counts):
  """Returns every position's part in a round, and its rank within that part."""
  parts = np.repeat(np.arange(len(counts)), counts)
  order = _permutation(seed, int(number), _ROUND, _ROUNDS).astype(int)
  ranks = np.empty_like(parts)
  for part, count in enumerate(counts):
    ranks[parts[order] == part] = np.arange(count)
  return parts[order], ranks
