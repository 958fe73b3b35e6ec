"""Writes data sets in TFDS's ArrayRecord format, without TensorFlow.

A data set is the folder `<name>/<version>` with a file per shard,
`features.json` and, written last, `dataset_info.json`.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_module
from tensorflow_datasets.proto import tf_example_pb2

from dpn import atomic, paths


class Shard(NamedTuple):
  """A file's number of records and bytes, and their SHA-256."""

  records: int
  bytes: int
  sha256: str


def shard_path(name: str, split: str, index: int, count: int) -> str:
  """Returns the file name of shard `index` of `count`."""
  return f"{name}-{split}.array_record-{index:05d}-of-{count:05d}"


def write_shard(path: str, records: Iterable[bytes]) -> Shard:
  """Writes serialized examples to a file, which appears when complete."""
  partial = f"{path}.incomplete"
  writer = array_record_module.ArrayRecordWriter(partial, "group_size:1")
  # `write` returns None.
  written = (writer.write(record) or record for record in records)
  try:
    try:
      shard = _summarize(written)
    finally:
      writer.close()
  except RuntimeError as e:  # whatever goes wrong in its C++
    with contextlib.suppress(OSError):
      os.remove(partial)
    raise OSError(
      f"Cannot write {path}: {e}. Free some space; the same command goes on."
    ) from e
  os.replace(partial, path)
  return shard


def records(path: str) -> Iterator[bytes]:
  """Yields every record of a file; ValueError if it is damaged."""
  try:
    reader = array_record_module.ArrayRecordReader(paths.check_regular(path))
    size = reader.num_records()
    for begin in range(0, size, 100):
      yield from reader.read(begin, min(begin + 100, size))
    reader.close()  # raises what went wrong
  except (OSError, RuntimeError, ValueError, IndexError) as error:
    raise ValueError(f"{path} cannot be read: {error}") from error


def read_shard(path: str) -> Shard:
  """Reads every record of a file and returns what it holds; see `records`."""
  return _summarize(records(path))


def _summarize(records: Iterable[bytes]) -> Shard:
  """Counts records and hashes them in their order."""
  count, size, digest = 0, 0, hashlib.sha256()
  for record in records:
    count, size = count + 1, size + len(record)
    digest.update(len(record).to_bytes(8, "little") + record)
  return Shard(count, size, digest.hexdigest())


def write_info(
  directory: str,
  name: str,
  version: str,
  features: Mapping[str, str | int | Sequence[str]],
  splits: Mapping[str, Sequence[Shard]],
  description: str = "",
):
  """Writes the description: `features.json`, then `dataset_info.json`.

  `directory` is the folder `<name>/<version>`; `splits` has each split's shards
  in order. `features` says of each key "jpeg" or "png" for an image, "text",
  "texts" for several, "int", or for a label the number or names of its classes.
  """
  entries = {key: _feature(kind) for key, kind in features.items()}
  tfds.features.FeaturesDict(entries).save_config(directory)
  info = {
    "name": name,
    "version": version,
    "description": description,
    "fileFormat": "array_record",
    "moduleName": "tensorflow_datasets.core.dataset_builders.adhoc_builder",
    "splits": [
      {
        "name": split,
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "shardLengths": [str(shard.records) for shard in shards],
        "numBytes": str(sum(shard.bytes for shard in shards)),
      }
      for split, shards in splits.items()
    ],
  }
  atomic.write_json(os.path.join(directory, "dataset_info.json"), info)


def serialize(example: Mapping[str, Any]) -> bytes:
  """Returns a record of numbers, strings, bytes, or several of one kind."""
  proto = tf_example_pb2.Example()
  for key, value in example.items():
    feature = proto.features.feature[key]
    single = isinstance(value, str | bytes | int | np.integer)
    for item in [value] if single else value:
      if isinstance(item, str | bytes):
        item = item.encode() if isinstance(item, str) else item
        feature.bytes_list.value.append(item)
      else:
        feature.int64_list.value.append(int(item))
  return proto.SerializeToString(deterministic=True)


def _feature(kind):
  if isinstance(kind, str):
    made = {
      "text": tfds.features.Text(),
      "texts": tfds.features.Sequence(tfds.features.Text()),
      "int": tfds.features.Scalar(np.int64),
    }
    return made.get(kind) or tfds.features.Image(encoding_format=kind)
  option = "num_classes" if isinstance(kind, int) else "names"
  return tfds.features.ClassLabel(**{option: kind})
