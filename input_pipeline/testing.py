"""Tiny made-up data sets for tests, in the formats of real ones."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from array_record.python import array_record_module
from tensorflow_datasets.proto import tf_example_pb2


def write_tfds(
  data_dir: str,
  name: str,
  examples: Mapping[str, Sequence[Mapping[str, Any]]],
  features: Mapping[str, str | int],
  *,
  version: str = "1.0.0",
  num_shards: int = 1,
) -> str:
  """Writes what `tfds build --file_format=array_record` would leave.

  Args:
    data_dir: TFDS directory to write in.
    name: name of the data set.
    examples: by split; images are given as encoded bytes.
    features: by key: "jpeg" or "png" for an image, "text", or the number of
      classes of a label.
    version: version of the data set.
    num_shards: files per split.

  Returns:
    The data set's directory.
  """
  directory = os.path.join(data_dir, name, version)
  os.makedirs(directory)
  split_infos = []
  for split, rows in examples.items():
    shards = np.array_split(np.arange(len(rows)), num_shards)
    for k, shard in enumerate(shards):
      path = f"{name}-{split}.array_record-{k:05d}-of-{num_shards:05d}"
      writer = array_record_module.ArrayRecordWriter(
        os.path.join(directory, path), "group_size:1"
      )
      for i in shard:
        writer.write(_serialize(rows[i]))
      writer.close()
    split_infos.append(
      {
        "name": split,
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "shardLengths": [str(len(shard)) for shard in shards],
        "numBytes": "1",
      }
    )
  info = {
    "name": name,
    "version": version,
    "fileFormat": "array_record",
    "moduleName": "tensorflow_datasets.core.dataset_builders.adhoc_builder",
    "splits": split_infos,
  }
  core = "tensorflow_datasets.core.features"
  tree = {
    "pythonClassName": f"{core}.features_dict.FeaturesDict",
    "featuresDict": {
      "features": {key: _feature(core, kind) for key, kind in features.items()}
    },
  }
  for file_name, content in (("dataset_info", info), ("features", tree)):
    with open(os.path.join(directory, f"{file_name}.json"), "w") as file:
      json.dump(content, file)
  return directory


def imagenet2012(
  data_dir: str, *, train: int = 16, validation: int = 8, seed: int = 0
) -> str:
  """Writes a made-up `imagenet2012`: 1,000 classes, JPEGs of varied sizes."""
  rng = np.random.default_rng(seed)

  def example(split, i):
    rows, cols = rng.integers(24, 48, 2)
    return {
      "file_name": f"{split}_{i:08d}.JPEG",
      "image": jpeg(rng, rows, cols),
      "label": int(rng.integers(1000)),
    }

  examples = {
    split: [example(split, i) for i in range(size)]
    for split, size in (("train", train), ("validation", validation))
  }
  features = {"file_name": "text", "image": "jpeg", "label": 1000}
  return write_tfds(
    data_dir, "imagenet2012", examples, features, version="5.1.0", num_shards=2
  )


def jpeg(rng: np.random.Generator, rows: int, cols: int) -> bytes:
  """Returns a random, smooth colour image as JPEG bytes."""
  coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
  image = cv2.resize(coarse, (int(cols), int(rows)))
  return cv2.imencode(".jpg", image)[1].tobytes()


def _serialize(example):
  proto = tf_example_pb2.Example()
  for key, value in example.items():
    feature = proto.features.feature[key]
    if isinstance(value, int):
      feature.int64_list.value.append(value)
    else:
      data = value.encode() if isinstance(value, str) else value
      feature.bytes_list.value.append(data)
  return proto.SerializeToString()


def _feature(core, kind):
  """Returns one entry of features.json."""
  if isinstance(kind, int):
    return {
      "pythonClassName": f"{core}.class_label_feature.ClassLabel",
      "classLabel": {"numClasses": str(kind)},
    }
  if kind == "text":
    return {"pythonClassName": f"{core}.text_feature.Text", "text": {}}
  return {
    "pythonClassName": f"{core}.image_feature.Image",
    "image": {
      "dtype": "uint8",
      "encodingFormat": kind,
      "shape": {"dimensions": ["-1", "-1", "3"]},
    },
  }
