"""Batches of processed examples, at any position, always the same.

Position p of a training run reads example `permutation(seed, p // n)[p % n]` of
the n in the source (`order` has the rest), and augments it with a generator
keyed by (seed, p). Both are pure functions, so a run's whole position is the
number of examples it has seen: it resumes exactly, at once, with whatever
number of threads, workers, processes or devices. Grain runs the work ahead; its
own state is never stored.

Batches are dicts of NumPy arrays. 64-bit values become 32-bit, as in JAX.
"""

import dataclasses
import functools
import math
import multiprocessing
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import grain
import ml_collections
import numpy as np
from absl import flags, logging

import input_pipeline
from dpn import errors, host_memory
from input_pipeline import batches, order, pp, sources

Batch = dict[str, np.ndarray]
Spec = dict[str, tuple[tuple[int, ...], np.dtype]]

# Other pipelines' keys that mean nothing here: every epoch is shuffled as a
# whole, without a buffer, and the system caches files.
_IGNORED_KEYS = ("cache", "cache_raw", "shuffle_buffer_size")
_OPTIONS = (
  "batch_size",
  "num_threads",
  "num_workers",
  "on_error",
  "prefetch",
  "repeats",
  "seed",
)
_ON_ERROR = ("raise", "skip")
_SMALL_BYTES = 2**17  # See docs/input_performance.md.


def training(
  config: Mapping[str, Any],
  *,
  seed: int,
  process_index: int = 0,
  process_count: int = 1,
) -> "TrainingData":
  """Returns endless shuffled data, as `config.input` asks for.

  `data` and `pp` name what to read (see `sources`) and what to do with it (see
  `pp`). For a mixture, `data` holds weights by name, and each name is a section
  of its own with `data` and `pp`:

      config.input.data = {"photos": 3, "sketches": 1}
      config.input.photos = {"data": {"name": …, "split": …}, "pp": "decode|…"}
      config.input.sketches = {…}

  Args:
    config: `data`, `pp`, and `batch_size` (over all processes). Optional:
      `seed`, which replaces the argument; `num_threads`; `num_workers`,
      processes to use instead of threads; `prefetch`, batches to prepare ahead
      (per worker); `repeats`, how often an example comes in a batch, each time
      augmented anew; `on_error`, "raise" (default) or "skip" to let the next
      example replace one that fails.
    seed: decides order and augmentation.
    process_index: which share of every batch to read.
    process_count: number of shares.

  Raises:
    ValueError: something in the config is wrong, or the first example fails.
  """
  config = {k: v for k, v in config.items() if k not in _IGNORED_KEYS}
  for key in ("batch_size", "data"):
    if key not in config:
      raise ValueError(f"config.input needs {key}, it has {sorted(config)}.")
  sections, weights = _sections(config)
  for key in config:
    if key not in _OPTIONS:
      known = ("data", "pp", *_OPTIONS)
      raise ValueError(errors.unknown("key of config.input", key, known))
  data = TrainingData(
    parts=tuple(map(_part, sections)),
    weights=weights,
    process_index=process_index,
    process_count=process_count,
    **{"seed": seed, **config},
  )
  source = data.examples.source
  logging.info("Training on %s: %s", source.name, data.spec)
  if len(source) < data.batch_size:
    logging.warning(
      "%s has %d examples, fewer than a batch of %d: they repeat within it.",
      *(source.name, len(source), data.batch_size),
    )
  return data


def _sections(config: dict[str, Any]):
  """Takes the data out of the config; returns each part's section and weight.

  Raises:
    ValueError: a part of a mixture has no section, or a wrong one.
  """
  data = config.pop("data")
  if "name" in data:
    return ({"data": data, "pp": config.pop("pp", "")},), (1,)
  if "pp" in config:
    raise ValueError(
      "config.input.pp: the parts of a mixture have a pp each, as in "
      f"config.input.{next(iter(data), 'name')}.pp."
    )
  sections = {name: config.pop(name, None) for name in data}
  weights = {name: weight for name, weight in data.items() if weight}
  if not weights:
    raise ValueError(
      f"config.input.data needs a name and a split, or weights by name, got "
      f"{dict(data)}."
    )
  for name in weights:
    section, known = sections[name], ("data", "pp")
    if (
      not isinstance(section, Mapping | ml_collections.ConfigDict)
      or "data" not in section
    ):
      raise ValueError(
        f"config.input.data mixes {', '.join(weights)}: config.input.{name} "
        f"must hold its data and pp, got {section!r}."
      )
    for key in set(section) - set(known):
      raise ValueError(errors.unknown("key of a mixture's part", key, known))
  return tuple(sections[name] for name in weights), tuple(weights.values())


def _part(section: Mapping[str, Any]) -> batches.MixturePart:
  return batches.MixturePart(
    sources.make(section["data"]), pp.make(section.get("pp", ""))
  )


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
    parts=(_part({"data": data, "pp": pp_fn}),),
    batch_size=batch_size,
    process_index=process_index,
    process_count=process_count,
    cache=cache,
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Data:
  """What training and evaluation share: examples, cut into batches."""

  parts: tuple[batches.MixturePart, ...]
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
    return len(self.examples.source)

  @property
  def spec(self) -> Spec:
    """(shape, dtype) of a batch over all processes, by key."""
    return {
      key: ((self.batch_size, *field.shape), field.dtype)
      for key, field in self.examples.fields.items()
    }

  @functools.cached_property
  def examples(self) -> batches.Examples:
    """Processed examples by position, as fixed by the first one."""
    return batches.Examples(self.parts, self.seed, skip=self.skips)

  @property
  def skips(self) -> bool:
    """Whether the next example replaces one that fails."""
    return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData(_Data):
  """Endless shuffled batches; see `training`."""

  weights: tuple[float, ...] = (1,)
  repeats: int = 1
  on_error: str = "raise"

  def __post_init__(self):
    if self.on_error not in _ON_ERROR:
      raise ValueError(errors.unknown("on_error", self.on_error, _ON_ERROR))
    if not 1 <= self.repeats <= max(self.batch_size, 1):
      raise ValueError(
        f"repeats must lie in [1, batch_size={self.batch_size}], got "
        f"{self.repeats}."
      )
    super().__post_init__()

  @property
  def order(self) -> order.Order:
    """The order of the examples."""
    return order.Order(
      seed=self.seed,
      sizes=tuple(len(part.source) for part in self.parts),
      counts=order.counts(self.weights),
      repeats=self.repeats,
      batch_size=self.batch_size,
    )

  @property
  def skips(self):
    return self.on_error == "skip"

  def batches(self, examples_seen: int = 0) -> Iterator[Batch]:
    """Yields this process's rows of every batch from a position on.

    With on_error="skip" they have the column `batches.SKIPPED`. The generator's
    `close` ends its threads or processes.
    """
    return _iterate(self, examples_seen, self.order)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationData(_Data):
  """Every example once, in order; iterate as often as needed."""

  cache: bool = False
  _cached: list[Batch] = dataclasses.field(default_factory=list, init=False)

  @property
  def num_classes(self) -> int | None:
    """Number of classes of the key `label`, if the source knows it."""
    return self.examples.source.num_classes("label")

  def __len__(self) -> int:
    """Number of batches, the same for every process."""
    return -(-self.num_examples // self.batch_size)

  def __iter__(self) -> Iterator[Batch]:
    """Yields this process's rows of every batch, with `_mask`."""
    if self._cached:
      yield from self._cached
      return
    finished = []
    for batch in _iterate(self, 0, None):
      if self.cache:
        finished.append(batch)
      yield batch
    self._cached[:] = finished


def _iterate(
  data: _Data, start: int, shuffled: order.Order | None
) -> Iterator[Batch]:
  """Yields batches from position `start` on; without an order, one round."""
  host_memory.keep_images()
  local_size = data.batch_size // data.process_count
  # Threads share the work on a batch; a worker process makes whole ones.
  num_rows = local_size if data.num_workers else _shard_rows(local_size)
  num_shards = local_size // num_rows
  fields = dict(data.examples.fields)
  if shuffled is None:
    fields[batches.MASK] = batches.Field((), np.dtype(bool))
  if data.skips:
    fields[batches.SKIPPED] = batches.Field((), np.dtype(np.int32))
  buffers = None
  if not data.num_workers:
    buffers = batches.BatchBuffers(fields, num_rows, num_shards)
  shards = batches.BatchShards(
    examples=data.examples,
    start=start + data.process_index * local_size,
    num_rows=num_rows,
    num_shards=num_shards,
    batch_size=data.batch_size,
    order=shuffled,
    fields=fields,
    buffers=buffers,
  )
  dataset = grain.MapDataset.source(shards)
  if data.num_workers:
    # Grain's processes read absl flags, which a notebook or test never parses.
    if not flags.FLAGS.is_parsed():
      flags.FLAGS.mark_as_parsed()
    dataset = dataset.to_iter_dataset(
      grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    ).mp_prefetch(
      grain.MultiprocessingOptions(data.num_workers, data.prefetch),
      worker_init_fn=_start_worker,
    )
  else:
    num_threads = data.num_threads or _default_threads(data.examples)
    ahead = max(data.prefetch * num_shards, num_threads)
    dataset = dataset.to_iter_dataset(
      grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=ahead)
    ).batch(num_shards, batch_fn=batches.join)
  iterator = iter(dataset)
  try:
    yield from iterator
  finally:
    iterator.close()


def _start_worker(worker_index: int, worker_count: int):
  """Prepares a worker process, and ends it when its parent is killed."""
  del worker_index, worker_count
  host_memory.keep_images()

  def watch():
    multiprocessing.parent_process().join()
    os._exit(1)

  threading.Thread(target=watch, daemon=True).start()


def _shard_rows(local_size: int) -> int:
  """Returns how many rows a thread makes at once: up to 64, in equal shares."""
  return max(n for n in range(1, 65) if local_size % n == 0)


def _default_threads(examples: batches.Examples) -> int:
  """Returns one per core, but only one for small examples from memory.

  With those it is the interpreter that works, for one thread at a time; more
  would make each other wait.
  """
  fields = examples.fields.values()
  num_bytes = sum(math.prod(f.shape) * f.dtype.itemsize for f in fields)
  if examples.source.in_memory and num_bytes <= _SMALL_BYTES:
    return 1
  return input_pipeline.num_cores()
