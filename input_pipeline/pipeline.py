"""Opens data for training and evaluation, as configs describe it."""

import math
from collections.abc import Mapping
from typing import Any

from absl import logging

from dpn import errors, schema
from dpn.input_pipeline import batches, loader, pp, sources
from dpn.input_pipeline import order as order_lib

# Keys of big_vision that have no effect here, and why.
IGNORED_KEYS = {
  "shuffle_buffer_size": "every epoch is shuffled as a whole",
  "cache_raw": "records are read from disk as needed",
  "cache": "records are read from disk as needed",
}
# The keys of config.input, besides the sections of a mixture.
KEYS = {
  "data": "what to read: a source's `name` and `split`, see below; or the "
  "weights of a mixture, by name",
  "pp": "what to do with it: preprocessing ops, see below",
  "batch_size": "examples in a batch, over all processes",
  "seed": "of order and augmentation, in place of `config.seed`",
  "num_threads": "how many read and preprocess",
  "num_workers": "processes to use instead of threads",
  "prefetch": "batches to prepare ahead, per worker",
  "repeats": "how often an example is in a batch, each time augmented anew",
  "on_device": "whether to preprocess once, without randomness, and keep all "
  "data on the devices",
  "on_error": "`raise`, or `skip`: the next example replaces a damaged one",
}
# The numbers in config.input and their minimum.
_LOWEST = {"num_workers": 0} | dict.fromkeys(
  ("batch_size", "num_threads", "prefetch", "repeats"), 1
)
_ON_ERROR = ("raise", "skip")


def training(
  config: Mapping[str, Any],
  *,
  seed: int,
  process_index: int = 0,
  process_count: int = 1,
) -> loader.Data:
  """Returns endless shuffled data, as `config.input` asks for.

  `data` and `pp` name what to read (see `sources`) and what to do with it (see
  `pp`). For a mixture, `data` holds weights by name, and each name is a section
  of its own with `data` and `pp`:

      config.input.data = {"photos": 3, "sketches": 1}
      config.input.photos = {"data": {"name": …, "split": …}, "pp": "decode|…"}
      config.input.sketches = {…}

  Args:
    config: see `KEYS`; `data` and `batch_size` are needed.
    seed: of order and augmentation.
    process_index: which share of every batch to read.
    process_count: number of shares.

  Raises:
    ValueError: something in the config is wrong, or the first example fails.
  """
  unset = {k for k, v in config.items() if v is None} | IGNORED_KEYS.keys()
  config = {k: v for k, v in config.items() if k not in unset}
  seed = config.setdefault("seed", seed)
  for key in ("batch_size", "data"):
    if key not in config:
      raise ValueError(f"config.input needs {key}, it has {sorted(config)}.")
  parts, weights = _parts(config)
  _check_values(config)
  on_error = config.pop("on_error", "raise")
  examples = batches.Examples(parts, seed, skip=on_error == "skip")
  data = loader.Data(
    examples=examples,
    order=order_lib.Order(
      seed=seed,
      sizes=tuple(len(part.source) for part in parts),
      counts=order_lib.counts(weights),
      repeats=config.get("repeats", 1),
      batch_size=config["batch_size"],
    ),
    process_index=process_index,
    process_count=process_count,
    **{k: v for k, v in config.items() if k not in ("seed", "repeats")},
  )
  logging.info("Training on %s: %s", examples.source.name, data.spec)
  if data.num_examples < data.batch_size:
    logging.warning(
      "%s has %d examples, fewer than a batch of %d: they repeat within it.",
      *(examples.source.name, data.num_examples, data.batch_size),
    )
  return data


def _check_values(config: Mapping[str, Any]):
  """Raises ValueError at a wrong key or value; logs what has no effect."""
  for key, value in config.items():
    errors.check_known("key of config.input", key, KEYS)
    least = _LOWEST.get(key)
    if least is not None and not (type(value) is int and value >= least):
      raise ValueError(
        f"config.input.{key} must be an integer from {least}, got {value!r}."
      )
  on_device = config.get("on_device", False)
  schema.check("config.input", "on_device", on_device, bool)
  seed = config["seed"]
  # SeedSequence splits larger seeds into words, so two could share an order.
  if not (isinstance(seed, int) and 0 <= seed < 2**32):
    raise ValueError(
      f"config.input.seed, or config.seed, must be in [0, 2**32), got {seed}."
    )
  errors.check_known("on_error", config.get("on_error", "raise"), _ON_ERROR)
  by, keys = "num_workers", ["num_threads"]
  if on_device:
    by, keys = "on_device", ["num_workers", "prefetch"]
  if config.get(by) and (unused := [key for key in keys if config.get(key)]):
    logging.warning("config.input.%s has no use for %s.", by, ", ".join(unused))


def _parts(config: dict[str, Any]):
  """Takes the data out of the config and returns the parts and weights."""
  data = config.pop("data")
  if isinstance(data, sources.Source):
    return [_part(data, config.pop("pp", ""))], [1]
  schema.check("config.input", "data", data, Mapping)
  if "name" in data or not data:
    return [_part(data, config.pop("pp", ""))], [1]
  if "pp" in config:
    raise ValueError(
      "config.input.pp: the parts of a mixture have a pp each, as in "
      f"config.input.{next(iter(data))}.pp."
    )
  numbers = [w for w in data.values() if isinstance(w, int | float)]
  if (
    len(numbers) < len(data)
    or not all(0 <= weight < math.inf for weight in numbers)
    or not any(numbers)
  ):
    raise ValueError(
      f"config.input.data={dict(data)} has no name, so it is a mixture: "
      "expected weights from 0, one above it at least."
    )
  parts, weights, named = [], [], {}
  for name, weight in data.items():
    if name in KEYS or name in IGNORED_KEYS:
      raise ValueError(
        f"config.input.data names a part {name!r}, which is a key of "
        "config.input: call it otherwise."
      )
    section = config.pop(name, None)
    if not weight:
      continue
    kept = {*(section or ())} - IGNORED_KEYS.keys()
    if not {"data"} <= kept <= {"data", "pp"}:
      raise ValueError(
        f"config.input.data has no name, so it mixes {', '.join(data)}: "
        f"config.input.{name} must hold data and pp, got {section!r}."
      )
    parts.append(_part(section["data"], section.get("pp", "")))
    weights.append(weight)
    key, _ = parts[-1].preprocess.onehot_of_source() or ("", 0)
    if classes := key and parts[-1].source.class_names(key):
      named[tuple(classes)] = name
  if len(named) > 1:
    raise ValueError(
      f"config.input: {' and '.join(named.values())} have other classes, so "
      "equal labels would not mean the same. Map them with an op of your own "
      "before onehot."
    )
  return parts, weights


def _part(
  data: Mapping[str, Any] | sources.Source, spec: str
) -> batches.MixturePart:
  """Returns data and its preprocessing, checked to agree on the classes."""
  source = data if isinstance(data, sources.Source) else sources.make(data)
  preprocess = pp.make(spec)
  if onehot := preprocess.onehot_of_source():
    key, depth = onehot
    count = source.num_classes(key) or 0
    # Without class names, the count is only from the highest label.
    if depth < count or (source.class_names(key) and depth > count):
      raise ValueError(
        f"{source.name} has {count} classes of {key!r}, but onehot makes "
        f"{depth}. Set config.num_classes and the depth of every onehot to "
        f"{count}, or map the labels with an op of your own before onehot."
      )
  return batches.MixturePart(source, preprocess)


def evaluation(
  data: Mapping[str, Any] | sources.Source,
  pp_fn: str,
  batch_size: int,
  *,
  process_index: int = 0,
  process_count: int = 1,
  cache: bool = False,
) -> loader.EvaluationData:
  """Returns every example once, in order, with `_mask` false on padding.

  `data` may be a `Source` itself. Random ops change an example in the same way
  every time. With `cache`, batches stay in memory for the next round. The other
  arguments and errors are those of `training`.
  """
  return loader.EvaluationData(
    examples=batches.Examples([_part(data, pp_fn)], seed=0),
    batch_size=batch_size,
    process_index=process_index,
    process_count=process_count,
    cache=cache,
  )


def examples(
  data: Mapping[str, Any],
  pp_fn: str,
  *,
  process_index: int = 0,
  process_count: int = 1,
) -> loader.SingleExamples:
  """Returns every example once, unbatched: images of many sizes do not stack.

  Process p of n reads examples p, p + n, …. The rest is as for `evaluation`.
  """
  made = batches.Examples([_part(data, pp_fn)], seed=0, any_shape=True)
  share = range(process_index, len(made.source), process_count)
  return loader.SingleExamples(made, share)
