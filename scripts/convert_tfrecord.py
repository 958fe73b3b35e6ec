"""Copies a TFDS data set from TFRecord to ArrayRecord, without TensorFlow.

  python -m scripts.convert_tfrecord DATA_DIR/caltech101/3.0.1 --data_dir OTHER

Records, their order and the number of files stay the same, so splits keep their
meaning. Started again, it resumes after the last finished file. TFDS's own
tool, `python -m tensorflow_datasets.scripts.convert_format`, needs TensorFlow.
"""

import argparse
import json
import os
import shutil
import struct
import sys
from collections.abc import Iterator, Sequence

import tqdm

from input_pipeline.sources import tfds_writer


def convert(directory: str, data_dir: str) -> str:
  """Copies one data set and returns the folder of the copy.

  Args:
    directory: a version's folder, `…/<name>/<version>`, or one of a config,
      `…/<name>/<config>/<version>`.
    data_dir: TFDS directory for the copy.

  Raises:
    ValueError: it is no TFRecord data set, or a file is damaged.
  """
  directory = os.path.abspath(os.path.expanduser(directory))
  info_path = os.path.join(directory, "dataset_info.json")
  if not os.path.isfile(info_path):
    raise ValueError(
      f"{directory} has no dataset_info.json. Expected the folder of a "
      "version, as ~/tensorflow_datasets/caltech101/3.0.1."
    )
  with open(info_path, encoding="utf-8") as file:
    info = json.load(file)
  if info.get("fileFormat", "tfrecord") != "tfrecord":
    raise ValueError(f"{directory} is {info['fileFormat']}, not tfrecord.")
  parents = filter(None, (info["name"], info.get("configName")))
  target = os.path.join(
    os.path.expanduser(data_dir), *parents, os.path.basename(directory)
  )
  if target == directory:
    raise ValueError("--data_dir must be another one than the data set's own.")
  os.makedirs(target, exist_ok=True)
  for split in tqdm.tqdm(info["splits"], unit=" splits", disable=None):
    _copy_split(directory, target, info["name"], split)
  for entry in os.scandir(directory):
    if entry.is_file() and ".tfrecord" not in entry.name:
      shutil.copy(entry.path, target)
  # Last, and whole or not at all: it makes the folder a data set.
  path = os.path.join(target, "dataset_info.json")
  tfds_writer.write_json(path, {**info, "fileFormat": "array_record"})
  return target


def _copy_split(directory, target, name, split):
  lengths = [int(length) for length in split["shardLengths"]]
  for k, length in enumerate(lengths):
    file = tfds_writer.shard_path(name, split["name"], k, len(lengths))
    path = os.path.join(target, file)
    if os.path.isfile(path):
      continue
    source = os.path.join(directory, file.replace("array_record", "tfrecord"))
    shard = tfds_writer.write_records(path, records(source))
    if shard.records != length:
      os.remove(path)
      raise ValueError(
        f"{source} has {shard.records} records, dataset_info.json says {length}"
        ": it is damaged."
      )


def records(path: str) -> Iterator[bytes]:
  """Yields the records of a TFRecord file, without checking their checksums.

  Each is its length (8 bytes), a checksum (4), the bytes, a checksum (4).

  Raises:
    ValueError: the file is cut off.
  """
  left = os.path.getsize(path)
  with open(path, "rb") as file:
    while header := file.read(12):
      left -= 16
      size = struct.unpack("<Q", header[:8])[0] if len(header) == 12 else left
      if not 0 <= size <= left:
        raise ValueError(f"{path} is cut off, or no TFRecord file.")
      yield file.read(size)
      file.read(4)
      left -= size


def main(argv: Sequence[str] | None = None):
  """Runs the command line; see the module."""
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("directory", help="of the version to convert")
  parser.add_argument(
    "--data_dir", required=True, help="TFDS directory for the copy"
  )
  args = parser.parse_args(argv)
  try:
    print(f"Wrote {convert(args.directory, args.data_dir)}.")
  except (ValueError, OSError) as error:
    sys.exit(f"Error: {error}")


if __name__ == "__main__":
  main()
