"""Batches of processed examples, at any position, always the same.

Position p of a training run reads example `permutation(seed, p // n)[p % n]` of
the n in the source, and augments it with a generator keyed by (seed, p). Both
are pure functions, so a run's whole position is the number of examples it has
seen: it resumes exactly, at once, with whatever number of threads, workers,
processes or devices. Grain runs the work ahead; its own state is never stored.

Batches are dicts of NumPy arrays. 64-bit values become 32-bit, as in JAX.
"""

import dataclasses
import functools
import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np
from absl import flags, logging

from dpn import names
from input_pipeline import pp, reader, sources

Batch = dict[str, np.ndarray]
Spec = dict[str, tuple[tuple[int, ...], np.dtype]]

_REQUIRED = ("batch_size", "data")
_OPTIONAL = ("num_threads", "num_workers", "pp", "prefetch", "seed")
_MEANINGLESS = ("cache", "cache_raw", "shuffle_buffer_size")


def training(
  config: Mapping[str, Any],
  *,
  seed: int,
  process_index: int = 0,
  process_count: int = 1,
) -> "TrainingData":
  """Returns endless shuffled data, as `config.input` asks for.

  Args:
    config: `data` (see `sources`), `batch_size` (over all processes), `pp` (see
      `pp`); optional: `seed`, which replaces the argument; `num_threads`;
      `num_workers`, processes to use instead of threads; `prefetch`, batches to
      prepare ahead (per worker). Others' keys for shuffling and caching have no
      meaning here and are only logged.
    seed: decides order and augmentation.
    process_index: which share of every batch to read.
    process_count: number of shares.

  Raises:
    ValueError: something in the config is wrong, or the first example fails.
  """
  config = {"pp": "", "seed": seed, **config}
  for key in _MEANINGLESS:
    if config.pop(key, None) is not None:
      logging.log_first_n(
        logging.INFO,
        "config.input.%s has no effect: every epoch is shuffled as a whole, "
        "without a buffer, and files are cached by the system.",
        len(_MEANINGLESS),
        key,
      )
  for key in config:
    if key not in _REQUIRED + _OPTIONAL:
      known = _REQUIRED + _OPTIONAL
      raise ValueError(names.unknown("key of config.input", key, known))
  for key in _REQUIRED:
    if key not in config:
      raise ValueError(f"config.input needs {key}, it has {sorted(config)}.")
  data = TrainingData(
    preprocess=pp.make(config.pop("pp")),
    source=sources.make(config.pop("data")),
    process_index=process_index,
    process_count=process_count,
    **config,
  )
  logging.info("Training on %s: %s", data.source.name, data.spec)
  return data


def evaluation(
  data: Mapping[str, Any],
  pp_fn: str,
  batch_size: int,
  *,
  process_index: int = 0,
  process_count: int = 1,
  cache: bool = False,
) -> "EvaluationData":
  """Returns every example once, in order, with `_mask` false on padding.

  Random ops, if there are any, do the same to an example every time.

  Args:
    data: see `sources`.
    pp_fn: see `pp`.
    batch_size: over all processes.
    process_index: which share of every batch to read.
    process_count: number of shares.
    cache: whether finished batches stay in memory for the next round.

  Raises:
    ValueError: something is wrong with the arguments, or the first example.
  """
  return EvaluationData(
    source=sources.make(data),
    preprocess=pp.make(pp_fn),
    batch_size=batch_size,
    process_index=process_index,
    process_count=process_count,
    cache=cache,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Data:
  """What training and evaluation share: a source, cut into batches."""

  source: sources.Source
  preprocess: pp.Preprocess
  batch_size: int
  process_index: int = 0
  process_count: int = 1
  seed: int = 0
  num_threads: int | None = None
  num_workers: int = 0
  prefetch: int = 2

  def __post_init__(self):
    if self.batch_size < 1 or self.batch_size % self.process_count:
      raise ValueError(
        f"batch_size must be a positive multiple of the {self.process_count} "
        f"process(es), got {self.batch_size}."
      )
    if not 0 <= self.seed < 2**63:
      raise ValueError(f"seed must lie in [0, 2^63), got {self.seed}.")
    if self.prefetch < 1 or self.num_workers < 0:
      raise ValueError(
        "prefetch must be 1 or more and num_workers 0 or more, got "
        f"{self.prefetch} and {self.num_workers}."
      )
    _ = self.examples  # The first must work before anything else starts.

  @property
  def num_examples(self) -> int:
    """Number of examples in the source."""
    return len(self.source)

  @property
  def spec(self) -> Spec:
    """(shape, dtype) of a batch over all processes, by key."""
    return {
      key: ((self.batch_size, *field.shape), field.dtype)
      for key, field in self.examples.fields.items()
    }

  @functools.cached_property
  def examples(self) -> reader.Examples:
    """Processed examples by position, as fixed by the first one."""
    return reader.Examples(self.source, self.preprocess, self.seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData(_Data):
  """Endless shuffled batches; see `training`."""

  def batches(self, examples_seen: int = 0) -> Iterator[Batch]:
    """Yields this process's rows of every batch from a position on."""
    return _iterate(self, examples_seen, None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationData(_Data):
  """Every example once, in order; iterate as often as needed."""

  cache: bool = False
  _cached: list[Batch] = dataclasses.field(default_factory=list, init=False)

  @property
  def num_classes(self) -> int | None:
    """Number of classes of the key `label`, if the source knows it."""
    return self.source.num_classes("label")

  def __len__(self) -> int:
    """Number of batches, the same for every process."""
    return -(-self.num_examples // self.batch_size)

  def __iter__(self) -> Iterator[Batch]:
    """Yields this process's rows of every batch, with `_mask`."""
    if self._cached:
      yield from self._cached
      return
    finished = []
    for batch in _iterate(self, 0, len(self)):
      if self.cache:
        finished.append(batch)
      yield batch
    self._cached[:] = finished


def _iterate(
  data: _Data, start: int, num_batches: int | None
) -> Iterator[Batch]:
  """Yields batches from position `start` on; None stands for endless."""
  local_size = data.batch_size // data.process_count
  # Threads share the work on a batch; a worker process makes whole ones.
  num_rows = local_size if data.num_workers else _piece(local_size)
  pieces = reader.Pieces(
    examples=data.examples,
    start=start + data.process_index * local_size,
    num_rows=num_rows,
    pieces_per_batch=local_size // num_rows,
    batch_size=data.batch_size,
    num_batches=num_batches,
  )
  dataset = grain.MapDataset.source(pieces)
  if data.num_workers:
    # Grain's processes read absl flags, which a notebook or test never parses.
    if not flags.FLAGS.is_parsed():
      flags.FLAGS.mark_as_parsed()
    dataset = dataset.to_iter_dataset(
      grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    ).mp_prefetch(
      grain.MultiprocessingOptions(data.num_workers, data.prefetch),
      worker_init_fn=_end_with_parent,
    )
  else:
    num_threads = data.num_threads or _default_threads()
    ahead = max(data.prefetch * pieces.pieces_per_batch, num_threads)
    dataset = dataset.to_iter_dataset(
      grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=ahead)
    ).batch(pieces.pieces_per_batch, batch_fn=_join)
  iterator = iter(dataset)
  try:
    yield from iterator
  finally:
    iterator.close()


def _end_with_parent(worker_index: int, worker_count: int):
  """Lets a worker end when its parent is killed; it would wait forever."""
  del worker_index, worker_count

  def watch():
    multiprocessing.parent_process().join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


def _piece(local_size: int) -> int:
  """Returns how many rows a thread makes at once: up to 64, in equal parts."""
  return max(n for n in range(1, 65) if local_size % n == 0)


def _default_threads() -> int:
  return 2 * len(os.sched_getaffinity(0))


def _join(pieces: Sequence[Batch]) -> Batch:
  if len(pieces) == 1:
    return pieces[0]
  return {
    key: np.concatenate([piece[key] for piece in pieces]) for key in pieces[0]
  }
