"""Turns images into a TFDS data set in ArrayRecord format, without TensorFlow.

  python -m scripts.prepare_data --source folder:/photos --name photos --verify

The source is anything that config.input.data can name: class folders, tar
archives, manifests, Parquet, your own. The result is read as `photos` from
--data_dir (else $TFDS_DATA_DIR, else ~/tensorflow_datasets), by us and by TFDS.
Records are shuffled, the same way each time, so that `train[:10%]` is a random
sample. After an interruption, the same command resumes after the last finished
file. With --verify every record is read again and compared with its checksum.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tqdm

from input_pipeline import sources
from input_pipeline.sources import tfds_writer

CHECKSUMS = "checksums.json"


def prepare(
  source: str,
  splits: Sequence[str],
  name: str,
  data_dir: str,
  *,
  version: str = "1.0.0",
  shard_size: int = 2000,
) -> str:
  """Writes a data set and returns its folder.

  Args:
    source: a name as in config.input.data.
    splits: which of the source's to take.
    name: of the data set.
    data_dir: where TFDS keeps its data sets.
    version: of the data set.
    shard_size: examples in a file.

  Raises:
    ValueError: the source is wrong, or the folder holds another data set.
  """
  opened = {
    split: sources.make({"name": source, "split": split}) for split in splits
  }
  directory = os.path.join(data_dir, name, version)
  os.makedirs(directory, exist_ok=True)
  origin = {
    "source": source,
    "shard_size": shard_size,
    "sizes": {split: len(opened[split]) for split in splits},
  }
  done = _progress(directory, origin)
  features = _features(next(iter(opened.values())))
  written = {}
  with tqdm.tqdm(
    total=sum(origin["sizes"].values()), unit=" examples", disable=None
  ) as bar:
    for split, data in opened.items():
      chunks = _chunks(len(data), shard_size)
      written[split] = []
      for k, chunk in enumerate(chunks):
        file = tfds_writer.shard_path(name, split, k, len(chunks))
        if file not in done:
          examples = _read(data, chunk, features)
          path = os.path.join(directory, file)
          done[file] = list(tfds_writer.write_shard(path, examples))
          _save(directory, origin, done)
        written[split].append(tfds_writer.Shard(*done[file]))
        bar.update(len(chunk))
  tfds_writer.write_info(directory, name, version, features, written)
  return directory


def verify(directory: str) -> tuple[int, int]:
  """Reads every record again; returns the numbers of examples and of files.

  Raises:
    ValueError: a record is missing, damaged or another one.
  """
  path = os.path.join(directory, CHECKSUMS)
  info = os.path.join(directory, "dataset_info.json")
  if not os.path.isfile(path) or not os.path.isfile(info):
    raise ValueError(
      f"{directory} lacks {CHECKSUMS} or dataset_info.json: its preparation "
      "was not finished, or was not done by scripts.prepare_data."
    )
  with open(path) as file:
    shards = json.load(file)["shards"]
  wrong = []
  for name, expected in tqdm.tqdm(shards.items(), unit=" files", disable=None):
    expected = tfds_writer.Shard(*expected)
    try:
      found = tfds_writer.read_shard(os.path.join(directory, name))
    except ValueError as error:
      wrong.append(str(error))
      continue
    if found != expected:
      wrong.append(
        f"{name} has {found.records} records with checksum {found.sha256[:12]}"
        f", expected {expected.records} with {expected.sha256[:12]}"
      )
  if wrong:
    raise ValueError(
      "\n".join(wrong)
      + f"\nDelete these files, and their lines in {path}, and prepare again."
    )
  return sum(records for records, *_ in shards.values()), len(shards)


def _progress(directory: str, origin: dict[str, Any]) -> dict[str, list]:
  """Returns the shards that are done, by file."""
  path = os.path.join(directory, CHECKSUMS)
  if not os.path.isfile(path):
    if os.listdir(directory):
      raise ValueError(
        f"{directory} holds another data set: give another --name, --version "
        "or --data_dir, or delete it."
      )
    return {}
  with open(path) as file:
    saved = json.load(file)
  if saved["origin"] != origin:
    raise ValueError(
      f"{directory} was begun with {saved['origin']}, now it is {origin}: give "
      "another --name or --version, or delete it."
    )
  return {
    file: shard
    for file, shard in saved["shards"].items()
    if os.path.isfile(os.path.join(directory, file))
  }


def _save(directory: str, origin: dict[str, Any], done: dict[str, list]):
  path = os.path.join(directory, CHECKSUMS)
  tfds_writer.write_json(path, {"origin": origin, "shards": done})


def _chunks(size: int, shard_size: int) -> list[np.ndarray]:
  """Returns the examples of each file: a fixed permutation, cut in parts."""
  order = np.random.default_rng(0).permutation(size)
  return np.array_split(order, -(-size // shard_size))


def _read(
  data: sources.Source, indices: np.ndarray, features: dict
) -> Iterator[dict]:
  """Yields examples, a few held in memory at a time."""
  for begin in range(0, len(indices), 100):
    some = indices[begin : begin + 100].tolist()
    for index, example in zip(some, data.read(some), strict=True):
      if not features.keys() <= example.keys():
        raise ValueError(
          f"{data.describe(index)} has the keys {sorted(example)}, the first "
          f"example {sorted(features)}."
        )
      yield {key: example[key] for key in features}


def _features(data: sources.Source) -> dict[str, str | int | Sequence[str]]:
  """Returns what to write by key, as `tfds_writer.write_info` wants it."""
  features = {}
  for key, value in data[0].items():
    if isinstance(value, bytes) and value.startswith(b"\xff\xd8"):
      features[key] = "jpeg"
    elif isinstance(value, bytes) and value.startswith(b"\x89PNG"):
      features[key] = "png"
    elif isinstance(value, bytes | str):
      features[key] = "jpeg" if key == "image" else "text"
    elif isinstance(value, int | np.integer):
      known = data.class_names(key) or data.num_classes(key)
      features[key] = "int" if known is None else known
    else:
      print(f"{key!r} ({type(value).__name__}) is left out.")
  if not features:
    raise ValueError(f"{data.name} has nothing that can be written: {data[0]}")
  return features


def main(argv: Sequence[str] | None = None):
  """Runs the command line; see the module."""
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--source", help="as in config.input.data")
  parser.add_argument("--splits", default="train", help="train,val,…")
  parser.add_argument("--name", required=True, help="of the data set")
  parser.add_argument("--version", default="1.0.0")
  parser.add_argument(
    "--data_dir",
    default=os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets",
  )
  parser.add_argument("--shard_size", type=int, default=2000)
  parser.add_argument("--verify", action="store_true")
  args = parser.parse_args(argv)
  data_dir = os.path.expanduser(args.data_dir)
  directory = os.path.join(data_dir, args.name, args.version)
  if not args.source and not args.verify:
    parser.error("give a --source to prepare, or --verify, or both")
  try:
    if args.source:
      prepare(
        args.source,
        args.splits.split(","),
        args.name,
        data_dir,
        version=args.version,
        shard_size=args.shard_size,
      )
      print(f"Prepared {directory}.")
    if args.verify:
      examples, files = verify(directory)
      print(f"Verified {examples} examples in {files} files.")
  except (ValueError, OSError) as error:
    sys.exit(f"Error: {error}")


if __name__ == "__main__":
  main()
