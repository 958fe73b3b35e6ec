"""Tiny fake data sets for tests, in the formats of real ones."""

import io
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from PIL import Image

from dpn.input_pipeline.sources import tfds_writer


def write_tfds(
  data_dir: str,
  name: str,
  examples: Mapping[str, Sequence[Mapping[str, Any]]],
  features: Mapping[str, str | int],
  *,
  version: str = "1.0.0",
  num_shards: int = 1,
) -> str:
  """Writes what `tfds build --file_format=array_record` would; returns where.

  Args:
    data_dir: TFDS directory to write in.
    name: name of the data set.
    examples: by split; images are given as encoded bytes.
    features: by key, see `tfds_writer.write_info`.
    version: version of the data set.
    num_shards: files per split.
  """
  directory = os.path.join(data_dir, name, version)
  os.makedirs(directory)
  splits = {split: [] for split in examples}
  for split, rows in examples.items():
    shards = np.array_split(np.arange(len(rows)), num_shards)
    for k, shard in enumerate(shards):
      file = tfds_writer.shard_path(name, split, k, num_shards)
      records = [tfds_writer.serialize(rows[i]) for i in shard]
      path = os.path.join(directory, file)
      splits[split].append(tfds_writer.write_shard(path, records))
  tfds_writer.write_info(directory, name, version, features, splits)
  return directory


def imagenet2012(
  data_dir: str, *, train: int = 16, validation: int = 8, seed: int = 0
) -> str:
  """Writes a fake `imagenet2012`: 1,000 classes, JPEGs of varied sizes."""
  rng = np.random.default_rng(seed)
  examples = {
    split: [
      {
        "file_name": f"{split}_{i:08d}.JPEG",
        "image": jpeg(rng, *rng.integers(24, 48, 2)),
        "label": int(rng.integers(1000)),
      }
      for i in range(size)
    ]
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


def png(labels: np.ndarray) -> bytes:
  """Returns a label map (rows, cols) as PNG bytes."""
  return encode(labels.astype(np.uint8))


def encode(
  image: np.ndarray | Image.Image, file_format: str = "PNG", **options
) -> bytes:
  """Returns an image as Pillow writes it."""
  if isinstance(image, np.ndarray):
    image = Image.fromarray(image)
  buffer = io.BytesIO()
  image.save(buffer, file_format, **options)
  return buffer.getvalue()


def class_folders(folder: str, classes: int = 3, images: int = 8) -> str:
  """Writes small pictures to <folder>/class<k>/<file>; returns the folder."""
  rng = np.random.default_rng(0)
  for k in range(classes):
    path = pathlib.Path(folder, f"class{k}")
    path.mkdir(parents=True)
    for i in range(images):
      (path / f"{i}.jpg").write_bytes(jpeg(rng, 40, 48))
  return str(folder)
