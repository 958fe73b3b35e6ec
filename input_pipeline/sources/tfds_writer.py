"""Writes data sets as TFDS leaves them in ArrayRecord, without TensorFlow.

A data set is the folder `<name>/<version>` with a file per shard,
`features.json` and, written last, `dataset_info.json`.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from array_record.python import array_record_module
from tensorflow_datasets.proto import tf_example_pb2

_CORE = "tensorflow_datasets.core"
_FEATURES = f"{_CORE}.features"


class Shard(NamedTuple):
  """What a file holds: how many records, their bytes, and their SHA-256."""

  records: int
  bytes: int
  sha256: str


def shard_path(name: str, split: str, index: int, count: int) -> str:
  """Returns the file name of shard `index` of `count`."""
  return f"{name}-{split}.array_record-{index:05d}-of-{count:05d}"


def write_shard(path: str, examples: Iterable[Mapping[str, Any]]) -> Shard:
  """Writes examples, of numbers, strings and bytes, to a file."""
  return write_records(path, map(_serialize, examples))


def write_records(path: str, records: Iterable[bytes]) -> Shard:
  """Writes serialized examples to a file, which appears when it is whole."""
  summary = _Summary()
  writer = array_record_module.ArrayRecordWriter(
    f"{path}.incomplete", "group_size:1"
  )
  try:
    for record in records:
      writer.write(record)
      summary.add(record)
  finally:
    writer.close()
  os.replace(f"{path}.incomplete", path)
  return summary.shard()


def read_shard(path: str) -> Shard:
  """Reads every record of a file and returns what it holds.

  Raises:
    ValueError: the file is damaged.
  """
  summary = _Summary()
  try:
    reader = array_record_module.ArrayRecordReader(path)
    for begin in range(0, reader.num_records(), 100):
      for record in reader.read(begin, min(begin + 100, reader.num_records())):
        summary.add(record)
    reader.close()
  except (RuntimeError, ValueError, IndexError) as error:
    raise ValueError(f"{path} cannot be read: {error}") from error
  return summary.shard()


class _Summary:
  """Sums up records: those of equal sums are equal, and so is their order."""

  def __init__(self):
    self._records, self._bytes = 0, 0
    self._hash = hashlib.sha256()

  def add(self, record: bytes):
    self._records += 1
    self._bytes += len(record)
    self._hash.update(len(record).to_bytes(8, "little") + record)

  def shard(self) -> Shard:
    return Shard(self._records, self._bytes, self._hash.hexdigest())


def write_info(
  directory: str,
  name: str,
  version: str,
  features: Mapping[str, str | int | Sequence[str]],
  splits: Mapping[str, Sequence[Shard]],
):
  """Writes the two JSON files, which make the folder a data set.

  Args:
    directory: the data set's folder.
    name: name of the data set.
    version: its version.
    features: by key: "jpeg" or "png" for an image, "text", "int", or a label's
      number of classes, or their names.
    splits: by name, the shards in order.
  """
  entries = {key: _feature(kind) for key, kind in features.items()}
  tree = {
    "pythonClassName": f"{_FEATURES}.features_dict.FeaturesDict",
    "featuresDict": {"features": entries},
  }
  for key, kind in features.items():
    if not isinstance(kind, str | int):
      path = os.path.join(directory, f"{key}.labels.txt")
      _write(path, "".join(f"{label}\n" for label in kind))
  _write(os.path.join(directory, "features.json"), json.dumps(tree, indent=2))
  info = {
    "name": name,
    "version": version,
    "fileFormat": "array_record",
    "moduleName": f"{_CORE}.dataset_builders.adhoc_builder",
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
  _write(
    os.path.join(directory, "dataset_info.json"), json.dumps(info, indent=2)
  )


def _write(path: str, text: str):
  with open(path, "w", encoding="utf-8") as file:
    file.write(text)


def _serialize(example) -> bytes:
  proto = tf_example_pb2.Example()
  for key, value in example.items():
    feature = proto.features.feature[key]
    if isinstance(value, bytes | str):
      data = value.encode() if isinstance(value, str) else value
      feature.bytes_list.value.append(data)
    else:
      feature.int64_list.value.append(int(value))
  return proto.SerializeToString(deterministic=True)


def _feature(kind) -> dict[str, Any]:
  """Returns one entry of features.json."""
  if kind == "text":
    return {"pythonClassName": f"{_FEATURES}.text_feature.Text", "text": {}}
  if kind == "int":
    return {
      "pythonClassName": f"{_FEATURES}.scalar.Scalar",
      "tensor": {"shape": {}, "dtype": "int64", "encoding": "none"},
    }
  if isinstance(kind, str):
    return {
      "pythonClassName": f"{_FEATURES}.image_feature.Image",
      "image": {
        "dtype": "uint8",
        "encodingFormat": kind,
        "shape": {"dimensions": ["-1", "-1", "3"]},
      },
    }
  count = kind if isinstance(kind, int) else len(kind)
  return {
    "pythonClassName": f"{_FEATURES}.class_label_feature.ClassLabel",
    "classLabel": {"numClasses": str(count)},
  }
