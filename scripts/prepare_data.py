"""Writes TFDS data sets in ArrayRecord format, without TensorFlow.

  python -m scripts.prepare_data --source folder:/photos --name photos --verify

The source is anything that config.input.data can name: class folders, tar
archives, manifests, Parquet, your own. The result is read as `photos` from
--data_dir (else $TFDS_DATA_DIR, else ~/tensorflow_datasets), by us and by TFDS.
Records are shuffled, the same way each time, so that `train[:10%]` is a random
sample: the one that `train[:10%]` of class folders and archives is, too.

  python -m scripts.prepare_data --source tfrecord:OLD/dtd/3.0.1 --data_dir NEW

copies a data set of TFDS from TFRecord: records, their order and the number of
files stay the same, so splits keep their meaning. (TFDS's own tool,
`tensorflow_datasets.scripts.convert_format`, needs TensorFlow.)

  python -m scripts.prepare_data --source array_record:OLD/imagenet2012/5.1.0 \
    --data_dir NEW --restart

does the same with ArrayRecord. --restart, which works with any source and needs
the extra `restart`, adds markers to JPEGs that let the input decode only what a
crop keeps: docs/input_performance.md has what that gains. No pixel changes.
--max_side 512 makes larger images smaller, which does: see there, too.

With --vocab_size 8000 a sentencepiece model is trained on the captions, under
--text_key, of the first split; `tokenizer.model` in the folder is for the op
`tokenize`.

After an interruption, the same command resumes after the last finished file.
With --verify every record is read again and compared with its checksum.
"""

import argparse
import functools
import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import tqdm

from dpn import atomic, schema
from dpn.evaluators import retrieval
from dpn.input_pipeline import sources
from dpn.input_pipeline.sources import rewrite, tfds, tfds_writer
from dpn.input_pipeline.text import tokenizers
from dpn.scripts.results import output

CHECKSUMS = "checksums.json"
TOKENIZER = "tokenizer.model"


class Checksums(TypedDict):
  """checksums.json: what is prepared from where, and what is done of it."""

  origin: dict[str, Any] | None
  shards: dict[str, tuple[int, int, str]]  # see tfds_writer.Shard


def prepare(
  source: str,
  data_dir: str,
  splits: Sequence[str] = ("train",),
  name: str = "",
  version: str = "1.0.0",
  shard_size: int = 2000,
  images: Mapping[str, Any] | None = None,
) -> str:
  """Writes a data set, or what is missing of it, and returns its folder.

  Args:
    source: a name as in config.input.data; or "tfrecord:" or "array_record:"
      and the folder of a version, which decides about everything else.
    data_dir: where TFDS keeps its data sets.
    splits: which of the source's to take.
    name: of the data set.
    version: of the data set.
    shard_size: examples in a file.
    images: arguments of `rewrite.Rewrite`; None copies JPEGs as they are.

  Raises:
    ValueError, OSError: the source is wrong, or the folder holds another data
      set.
  """
  kind, _, path = source.partition(":")
  if kind in COPIED:
    folder, shards, finish = _from_tfds(path, kind)
  else:
    folder = os.path.join(name, version)
    shards, finish = _from_source(source, splits, name, version, shard_size)
  name = folder.partition(os.sep)[0]
  directory = os.path.join(data_dir, folder)
  os.makedirs(directory, exist_ok=True)
  sizes = {s: sum(size for size, _ in shards[s]) for s in shards}
  origin = {"source": source, "shard_size": shard_size, "sizes": sizes}
  changed = iter
  if images:
    origin |= {"images": dict(images)}
    changed = rewrite.Rewrite(**images)
  checksums = os.path.join(directory, CHECKSUMS)
  saved = {"origin": None if os.listdir(directory) else origin, "shards": {}}
  if os.path.isfile(checksums):
    saved = schema.read_json(checksums, Checksums)
  if saved["origin"] != origin:
    raise ValueError(
      f"{directory} holds another data set, of {saved['origin']}; this one is "
      f"of {origin}: give another --data_dir, --name or --version."
    )
  atomic.write_json(checksums, saved)
  done = saved["shards"]
  written = {split: [] for split in shards}
  bar = tqdm.tqdm(total=sum(sizes.values()), unit=" examples", disable=None)
  for split in shards:
    for k, (size, records) in enumerate(shards[split]):
      file = tfds_writer.shard_path(name, split, k, len(shards[split]))
      path = os.path.join(directory, file)
      if file not in done or not os.path.isfile(path):
        done[file] = tfds_writer.write_shard(path, changed(records()))
        atomic.write_json(checksums, saved)
      written[split].append(tfds_writer.Shard(*done[file]))
      bar.update(size)
  bar.close()
  finish(directory, written, f"JPEGs rewritten: {images}" if images else "")
  return directory


def train_tokenizer(
  source: str, split: str, key: str, vocab_size: int, directory: str
) -> str:
  """Trains a sentencepiece model on a split's captions; returns its path.

  Raises:
    ValueError: the examples have no text under `key`.
  """
  data = sources.make({"name": source, "split": split})
  texts = retrieval.captions(data, key)
  rows = (texts[i]["text"] for i in range(len(texts)))
  plain = (x.decode() if isinstance(x, bytes) else x for x in rows)
  path = os.path.join(directory, TOKENIZER)
  tokenizers.train((text.lower() for text in plain), vocab_size, path)
  return path


def _from_source(source, splits, name, version, shard_size):
  """Plans a data set of a source's examples.

  Returns:
    By split, the size of each file and a function that returns its records; and
    a function (folder, {split: shards}, note) → None to call at the end.
  """
  shards, features = {}, None
  for split in splits:
    data = sources.make({"name": source, "split": split})
    features = features or _features(data)
    order = sources.shuffled(len(data))
    shards[split] = [
      (len(chunk), functools.partial(_records, data, chunk, features))
      for chunk in np.array_split(order, -(-len(data) // shard_size))
    ]
  return shards, lambda folder, written, note: tfds_writer.write_info(
    folder, name, version, features, written, note
  )


def _from_tfds(directory, file_format):
  """Plans a copy; returns its folder, and the same as `_from_source`."""
  directory = os.path.abspath(os.path.expanduser(directory))
  info = tfds.read_info(directory)
  found = info.get("fileFormat", "tfrecord")
  if found != file_format:
    raise ValueError(
      f"{directory} is {found}, not {file_format}: --source {found}:{directory}"
    )
  shards = {}
  for split in info["splits"]:
    sizes = [int(length) for length in split["shardLengths"]]
    shards[split["name"]] = []
    for k, size in enumerate(sizes):
      file = tfds_writer.shard_path(info["name"], split["name"], k, len(sizes))
      path = os.path.join(directory, file.replace("array_record", file_format))
      records = functools.partial(COPIED[file_format], path, size)
      shards[split["name"]].append((size, records))

  def finish(folder, written, note):
    ignored = shutil.ignore_patterns(f"*.{file_format}*", tfds.INFO, CHECKSUMS)
    shutil.copytree(directory, folder, ignore=ignored, dirs_exist_ok=True)
    info["fileFormat"] = "array_record"
    info["description"] = f"{info.get('description', '')}\n{note}".strip()
    atomic.write_json(os.path.join(folder, tfds.INFO), info)

  version = os.path.basename(directory)
  folder = os.path.join(info["name"], info.get("configName") or "", version)
  return folder, shards, finish


def verify(directory: str) -> tuple[int, int]:
  """Reads every record again; returns the numbers of examples and of files.

  Raises:
    ValueError: a record is missing, damaged or another one.
  """
  if not os.path.isfile(os.path.join(directory, tfds.INFO)):
    raise ValueError(
      f"{directory} has no {tfds.INFO}: preparing was not finished."
    )
  path = os.path.join(directory, CHECKSUMS)
  shards = schema.read_json(path, Checksums)["shards"]
  wrong = []
  for name, expected in tqdm.tqdm(shards.items(), unit=" files", disable=None):
    try:
      found = tfds_writer.read_shard(os.path.join(directory, name))
    except ValueError as error:
      wrong.append(str(error))
      continue
    if list(found) != expected:
      wrong.append(
        f"{name} has {found.records} records with checksum {found.sha256[:12]}"
        f", expected {expected[0]} with {expected[2][:12]}"
      )
  if wrong:
    raise ValueError(
      "\n".join(wrong)
      + f"\nDelete these files, and their lines in {path}, and prepare again."
    )
  return sum(records for records, *_ in shards.values()), len(shards)


def _tfrecords(path: str, count: int) -> Iterator[bytes]:
  """Yields the records of a TFRecord file, without checking their checksums.

  Each is its length (8 bytes), a checksum (4), the bytes, a checksum (4).

  Raises:
    ValueError: the file is cut off, or does not hold `count` records.
  """
  left, found = os.path.getsize(path), 0
  with open(path, "rb") as file:
    while header := file.read(12):
      left -= 16
      size = struct.unpack("<Q", header[:8])[0] if len(header) == 12 else left
      if not 0 <= size <= left:
        raise ValueError(f"{path} is cut off, or no TFRecord file.")
      yield file.read(size)
      file.read(4)
      left, found = left - size, found + 1
  if found != count:
    raise ValueError(f"{path} has {found} records, {tfds.INFO} says {count}.")


# The formats of TFDS that can be copied, and what reads a file of them.
COPIED = {
  "tfrecord": _tfrecords,
  "array_record": lambda path, count: tfds_writer.records(path),
}


def _records(data, indices, features) -> Iterator[bytes]:
  """Yields serialized examples, a few held in memory at a time."""
  for begin in range(0, len(indices), 100):
    for example in data.read(indices[begin : begin + 100].tolist()):
      yield tfds_writer.serialize({key: example[key] for key in features})


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
    elif isinstance(value, list) and isinstance(value[0], bytes | str):
      features[key] = "texts"
    elif isinstance(value, int | np.integer):
      known = data.class_names(key) or data.num_classes(key)
      features[key] = "int" if known is None else known
    else:
      print(f"{key!r} ({type(value).__name__}) is left out.")
  return features


def main(argv: Sequence[str] | None = None):
  """Runs the command line; see the module."""
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument(
    "--source", help="as in config.input.data, or tfrecord:…, or array_record:…"
  )
  parser.add_argument("--splits", default="train", help="train,val,…")
  parser.add_argument("--name", help="of the data set")
  parser.add_argument("--version", default="1.0.0")
  parser.add_argument(
    "--data_dir",
    default=os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets",
  )
  parser.add_argument("--shard_size", type=int, default=2000)
  parser.add_argument("--max_side", type=int, help="pixels of larger JPEGs")
  parser.add_argument("--quality", type=int, help="of those, 95 by default")
  parser.add_argument("--restart", action="store_true", help="add markers")
  parser.add_argument("--verify", action="store_true")
  parser.add_argument("--vocab_size", type=int, help="of a tokenizer to train")
  parser.add_argument("--text_key", default="text", help="of captions")
  args = parser.parse_args(argv)
  copies = (args.source or "").partition(":")[0] in COPIED
  images = {k: getattr(args, k) for k in ("max_side", "quality", "restart")}
  images = {key: value for key, value in images.items() if value}
  if "quality" in images and "max_side" not in images:
    parser.error("--quality is of images that --max_side makes smaller")
  if not (args.source or args.verify) or not (args.name or copies):
    parser.error("give --name, and a --source to prepare, --verify, or both")
  data_dir = os.path.expanduser(args.data_dir)
  with output.errors_in_a_line():
    if args.source:
      what = (args.splits.split(","), args.name, args.version, args.shard_size)
      directory = prepare(args.source, data_dir, *what, images)
      output.say(f"Prepared {directory}.")
      if args.vocab_size:
        what = args.source, what[0][0], args.text_key, args.vocab_size
        output.say(f"Trained {train_tokenizer(*what, directory)}.")
    else:
      directory = os.path.join(data_dir, args.name, args.version)
    if args.verify:
      examples, files = verify(directory)
      output.say(f"Verified {examples} examples in {files} files.")


if __name__ == "__main__":
  main()
