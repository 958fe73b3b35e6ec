"""Data sets prepared by TFDS, read without TensorFlow.

`tfds.data_source` gives random access to ArrayRecord files only. Images are
not decoded: the bytes go to the op `decode`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Required, TypedDict

import tensorflow_datasets as tfds
from tensorflow_datasets.core.utils import version as versions_lib
from tensorflow_datasets.proto import tf_example_pb2

from dpn import damage, errors, paths, schema
from dpn.input_pipeline import sources
from dpn.input_pipeline.sources import tfds_writer

INFO = "dataset_info.json"
FEATURES = "features.json"
_FEATURES = "tensorflow_datasets.core.features."


class Split(TypedDict, total=False):
  """A split in dataset_info.json."""

  name: Required[str]
  shardLengths: list[str | int]


class Info(TypedDict, total=False):
  """dataset_info.json, which TFDS writes last."""

  name: Required[str]
  configName: str
  description: str
  fileFormat: str
  splits: Required[list[Split]]


def read_info(directory: str) -> Info:
  """Returns the description in a data set's folder.

  Raises:
    FileNotFoundError: preparing was not finished, or it is not a data set.
    ValueError: the file is damaged.
  """
  path = os.path.join(directory, INFO)
  info = schema.read_json(path, Info)
  for split in info["splits"]:
    lengths = split.setdefault("shardLengths", [])
    if not all(re.fullmatch("[0-9]{1,15}", str(x)) for x in lengths):
      raise ValueError(
        f"{path}: shardLengths of {split['name']!r} must be numbers of "
        f"examples, got {errors.shown(lengths)}."
      )
  return info


def shards(info: Info) -> Iterator[tuple[str, str, int]]:
  """Yields (split, file, examples) of every ArrayRecord file of a data set."""
  for split in info["splits"]:
    name, sizes = split["name"], split["shardLengths"]
    for k, size in enumerate(sizes):
      file = tfds_writer.shard_path(info["name"], name, k, len(sizes))
      yield name, file, int(size)


class TfdsSource(sources.Source):
  """A whole split of a data set prepared as ArrayRecord."""

  def __init__(self, name: str, split: str, data_dir: str | None = None):
    """Opens a split.

    Args:
      name: `name` or `name/config`, and `:version`, by default the newest.
      split: its name.
      data_dir: where TFDS keeps its data sets; by default $TFDS_DATA_DIR, or
        else ~/tensorflow_datasets.

    Raises:
      ValueError, OSError: there is no such data set or split, or it was
        prepared in a format without random access.
    """
    self._args = name, split, data_dir
    self._directory = directory = _find(name, data_dir)
    info = read_info(directory)
    file_format = info.get("fileFormat", "tfrecord")
    if file_format != "array_record":
      raise ValueError(
        f"{directory} was prepared as {file_format}, which has no random "
        "access. Convert it, and set data_dir to where the copy is: python -m "
        f"scripts.prepare_data --source tfrecord:{directory} --data_dir NEW"
      )
    sources.check_split(directory, split, [s["name"] for s in info["splits"]])
    builder, self._records = _open(directory, split)
    self.name = f"{builder.info.full_name}:{split}"
    features = dict(builder.info.features.items())
    self._fields = {key: _field(f) for key, f in features.items()}
    with damage.reading(os.path.join(directory, FEATURES)):
      named = {key: getattr(f, "names", None) for key, f in features.items()}
    self.classes = {key: names for key, names in named.items() if names}

  def __reduce__(self):
    return TfdsSource, self._args

  def __len__(self):
    return len(self._records)

  def __getitem__(self, index):
    return self.read([index])[0]

  def read(self, indices: Sequence[int]) -> list[dict[str, Any]]:
    """Returns several examples at once: one read per file, not per record."""
    with damage.reading(self._directory):
      if None in self._fields.values():
        return self._records.__getitems__(indices)
      records = self._records.data_source.__getitems__(indices)
      return [self._parse(record) for record in records]

  def _parse(self, record):
    """Parses a record as TFDS would, images, texts and labels only."""
    features = tf_example_pb2.Example.FromString(record).features.feature
    return {
      key: getattr(features[key], field).value[0]
      for key, field in self._fields.items()
    }


def _open(directory: str, split: str):
  """Returns TFDS's builder and its data source, which leaves images encoded."""
  _check_features(os.path.join(directory, FEATURES))
  for file in os.listdir(directory):
    paths.check_regular(os.path.join(directory, file))
  try:
    builder = tfds.builder_from_directory(directory)
    features, image = builder.info.features.items(), tfds.features.Image
    images = [key for key, x in features if isinstance(x, image)]
    for file in builder.info.splits[split].filepaths:
      if not os.path.samefile(os.path.dirname(file), directory):
        raise ValueError(f"{file} is not in the folder")
    decoders = dict.fromkeys(images, tfds.decode.SkipDecoding())
    return builder, builder.as_data_source(split=split, decoders=decoders)
  except Exception as e:  # TFDS raises anything on damaged files
    raise ValueError(
      f"{directory} cannot be read as a data set of TFDS: {e!r}. "
      f"features.json, {INFO} or a record file is damaged or missing; prepare "
      "the data again."
    ) from e


def _check_features(path: str):
  """Raises ValueError if features.json names classes that are not TFDS's own.

  TFDS would import their modules.
  """

  def visit(value):
    if isinstance(value, dict):
      for key, part in value.items():
        own = isinstance(part, str) and not part.startswith(_FEATURES)
        if key in ("pythonClassName", "python_class_name", "type") and own:
          raise ValueError(
            f"{path} names the class {part!r}, whose module TFDS would import: "
            f"only those in {_FEATURES} are."
          )
        visit(part)
    elif isinstance(value, list):
      for part in value:
        visit(part)

  visit(schema.read_json(path, dict))


def _field(feature) -> str | None:
  """Returns the record's field for a feature, None if TFDS must parse it."""
  if isinstance(feature, tfds.features.Image | tfds.features.Text):
    return "bytes_list"
  if isinstance(feature, tfds.features.ClassLabel):
    return "int64_list"
  return None


def _find(name: str, data_dir: str | None) -> str:
  """Returns the versioned directory of a data set."""
  directory = os.path.expanduser(
    data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  )
  if not os.path.isdir(directory):
    raise ValueError(
      f"There is no TFDS directory {directory}. Set data_dir in the config's "
      "data, or TFDS_DATA_DIR in the environment. To read from a bucket, mount "
      "it: records are not read over the network."
    )
  path, _, version = name.partition(":")
  for folder in path.split("/"):
    directory = _enter(directory, "data set", folder)
  versions = versions_lib.list_all_versions(directory)
  if not versions:
    raise ValueError(
      f"{directory} holds no prepared version, but: "
      f"{', '.join(sorted(os.listdir(directory))) or 'nothing'}. For a data "
      "set with configs, write name/config."
    )
  return _enter(directory, "version", version or str(versions[-1]))


def _enter(directory: str, kind: str, entry: str) -> str:
  known = os.listdir(directory)
  if entry not in known:
    raise ValueError(f"In {directory}: {errors.unknown(kind, entry, known)}")
  return os.path.join(directory, entry)
