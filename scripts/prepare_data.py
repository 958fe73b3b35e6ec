"""Writes TFDS data sets in ArrayRecord format, without TensorFlow.

  python -m scripts.prepare_data --source folder:/photos --name photos --verify

The source is anything that config.input.data can name: class folders, tar
archives, manifests, Parquet, your own. Both this code and TFDS can read the
result, as `photos`, from --data_dir (else $TFDS_DATA_DIR, else
~/tensorflow_datasets). Records are shuffled, the same way each time, so that
`train[:10%]` is a random sample: the same as `train[:10%]` of class folders and
archives. Class folders without splits, whose split is `all`, become `train`.

  python -m scripts.prepare_data --source tfrecord:OLD/dtd/3.0.1 --data_dir NEW
  python -m scripts.prepare_data --source array_record:OLD/imagenet2012/5.1.0 \
    --data_dir NEW --restart

These copy a data set of TFDS: records, their order and the number of files stay
the same, so splits keep their meaning. (TFDS's own tool,
`tensorflow_datasets.scripts.convert_format`, needs TensorFlow.)

With any source, --restart (extra `restart`) adds markers to JPEGs that let the
input decode only what a crop keeps, without changing a pixel; --max_side 512
shrinks only larger JPEGs. docs/input_performance.md says what each gains.

--vocab_size 8000 trains a sentencepiece model on the captions of the first
split, under --text_key, and writes it to the folder as `tokenizer.model`, for
the op `tokenize`.

After an interruption, the same command resumes after the last finished file.
With --verify every record is read again and compared with its checksum;
TFRecord's own checksums are compared, too, while it is read (quickly with the
package `crc32c`, which the extra `prepare` installs).
"""

import argparse
import functools
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
import tqdm

from dpn import atomic, damage, paths, schema
from dpn.evaluators import retrieval
from dpn.input_pipeline import sources
from dpn.input_pipeline.sources import rewrite, tfds, tfds_writer, tfrecord
from dpn.input_pipeline.text import tokenizers
from dpn.scripts.results import output

# Options that a copy refuses: it keeps what the data set has.
_CHOSEN = ("name", "version", "splits", "shard_size", "vocab_size", "text_key")
_NO_LABEL_MAPS = "--max_side shrinks no label maps: leave it out."
_BYTES = bytes | str  # of what is no integer
_TYPES = {"jpeg": _BYTES, "png": _BYTES, "text": _BYTES, "texts": list | _BYTES}
CHECKSUMS = "checksums.json"
TOKENIZER = "tokenizer.model"


class Checksums(TypedDict):
  """checksums.json: what is prepared from where, and which files are done."""

  origin: dict[str, Any] | None
  shards: dict[str, tuple[int, int, str]]  # see tfds_writer.Shard


class Plan(NamedTuple):
  """A data set to write, and where, below the data directory."""

  folder: str
  # By split, the number of examples in each file and what reads their records.
  files: dict[str, list[tuple[int, Callable[[], Iterator[bytes]]]]]
  checksum: int  # of the classes and of some examples; 0 for copies
  # Writes the rest: (folder, {split: written shards}, note) → None.
  finish: Callable[[str, dict[str, list[tfds_writer.Shard]], str], None]


def prepare(args: argparse.Namespace, images: Mapping[str, Any]) -> str:
  """Writes a data set, or what is missing of it, and returns its folder.

  Args:
    args: of the command line.
    images: arguments of `rewrite.Rewrite`; empty to copy JPEGs as they are.

  Raises:
    ValueError, OSError: the source is wrong, or the folder holds another data
      set.
  """
  kind, _, path = args.source.partition(":")
  plan = _copy(path, kind, args) if kind in COPIED else _convert(args)
  sizes = {
    split: sum(size for size, _ in files) for split, files in plan.files.items()
  }
  origin = {"source": args.source, "shard_size": args.shard_size}
  origin |= {"sizes": sizes} | ({"images": images} if images else {})
  origin |= {"checksum": plan.checksum} if plan.checksum else {}
  change = rewrite.Rewrite(**images) if images else iter
  directory = paths.join(os.path.expanduser(args.data_dir), plan.folder)
  saved = _begin(directory, origin)
  done, written = saved["shards"], {split: [] for split in plan.files}
  name = plan.folder.partition(os.sep)[0]
  bar = tqdm.tqdm(total=sum(sizes.values()), unit=" examples", disable=None)
  for split, files in plan.files.items():
    for k, (size, records) in enumerate(files):
      file = tfds_writer.shard_path(name, split, k, len(files))
      path = paths.join(directory, file)
      if file not in done or not os.path.isfile(path):
        done[file] = tfds_writer.write_shard(path, change(records()))
        if (count := done[file][0]) != size:
          raise ValueError(
            f"{args.source}: {file} has {count} records, not {size} as its "
            "description says. Get them again from where they came."
          )
        atomic.write_json(os.path.join(directory, CHECKSUMS), saved)
      written[split].append(tfds_writer.Shard(*done[file]))
      bar.update(size)
  bar.close()
  note = f"JPEGs rewritten: {images}" if images else ""
  plan.finish(directory, written, note)
  return directory


def _begin(directory: str, origin: Mapping[str, Any]) -> Checksums:
  """Returns which files of a data set are done so far.

  Raises:
    ValueError: the folder holds another data set.
  """
  os.makedirs(directory, exist_ok=True)
  path = os.path.join(directory, CHECKSUMS)
  others = [x for x in os.listdir(directory) if not x.endswith(".partial")]
  saved = {"origin": {} if others else origin, "shards": {}}
  if os.path.isfile(path):
    saved = schema.read_json(path, Checksums)
  if saved["origin"] != origin:
    raise ValueError(
      f"{directory} holds another data set, of {saved['origin'] or '?'}; this "
      f"one is of {origin}: give another --data_dir, --name or --version."
    )
  atomic.write_json(path, saved)
  return saved


def _convert(args) -> Plan:
  """Plans a data set of a source's examples."""
  files, features, checksum = {}, None, 0
  for split in args.splits.split(","):
    data = sources.make({"name": args.source, "split": split})
    with damage.reading(data.describe(0)):
      found = _features(data)
    features = features or found
    if args.max_side and {"annotation", "mask"} & features.keys():
      raise ValueError(_NO_LABEL_MAPS)
    if _kinds(found) != _kinds(features):
      raise ValueError(
        f"{data.name} has {_kinds(found)!r:.300}, where the first of --splits "
        f"has {_kinds(features)!r:.300}: prepare them apart."
      )
    checksum = zlib.crc32(repr(found).encode(), checksum)
    with damage.reading(data.name):
      checksum = sources.checksum(data, checksum, keys=found)
    order = sources.shuffled(len(data))
    # TFDS reserves the name `all` for all splits together.
    files["train" if split == "all" else split] = [
      (len(chunk), functools.partial(_records, data, chunk, features))
      for chunk in np.array_split(order, -(-len(data) // args.shard_size))
    ]
  finish = lambda folder, written, note: tfds_writer.write_info(
    folder, args.name, args.version, features, written, note
  )
  folder = os.path.join(args.name, args.version)
  return Plan(folder, files, checksum, finish)


def _kinds(features):
  return {k: v if v != "png" else "jpeg" for k, v in features.items()}


def _records(data, indices, features) -> Iterator[bytes]:
  """Yields serialized examples, a few held in memory at a time."""
  for begin in range(0, len(indices), 100):
    chunk = indices[begin : begin + 100].tolist()
    with damage.reading(data.name):
      examples = data.read(chunk)
    for index, example in zip(chunk, examples, strict=True):
      for key, kind in features.items():
        value, fits = example.get(key), _TYPES.get(str(kind), int | np.integer)
        if not isinstance(value, fits):
          raise ValueError(
            f"{data.describe(index)} has {value!r:.40} as {key!r}, the first "
            f"example has {kind!r:.40}: make them alike (lists, if any is one)."
          )
      with damage.reading(data.describe(index)):
        record = tfds_writer.serialize({key: example[key] for key in features})
      yield record


def _features(data: sources.Source) -> dict[str, str | int | Sequence[str]]:
  """Returns what each key to write is, as `tfds_writer.write_info` takes it."""
  features = {}
  for key, value in data[0].items():
    if isinstance(value, bytes) and value.startswith(b"\xff\xd8"):
      features[key] = "jpeg"
    elif isinstance(value, bytes) and value.startswith(b"\x89PNG"):
      features[key] = "png"
    elif isinstance(value, bytes | str):
      features[key] = "jpeg" if key == "image" else "text"
    elif isinstance(value, list) and not value:
      raise ValueError(
        f"{data.describe(0)}: {key!r} is an empty list, so its kind is not "
        "known. Put an example with some first, or leave the key out."
      )
    elif isinstance(value, list) and isinstance(value[0], bytes | str):
      features[key] = "texts"
    elif isinstance(value, int | np.integer):
      known = data.class_names(key) or data.num_classes(key)
      for name in data.class_names(key) or ():
        lines = name.encode(errors="ignore").decode().splitlines()
        if lines != [name.strip()]:
          raise ValueError(
            f"{data.name} has a class of the name {name!r}. TFDS keeps a name "
            "in each line of a text: rename it."
          )
      features[key] = "int" if known is None else known
    elif key in ("image", "annotation", "mask"):
      raise ValueError(
        f"{data.describe(0)}: {key!r} is {type(value).__name__}, expected the "
        "bytes of an encoded file. Write PNGs, or read the source as it is."
      )
    else:
      print(f"{key!r} ({type(value).__name__}) is left out.")
  return features


def _copy(directory: str, file_format: str, args) -> Plan:
  """Plans a copy of a data set that TFDS prepared in one of `COPIED`."""
  directory = os.path.abspath(os.path.expanduser(directory))
  info = tfds.read_info(directory)
  found = info.get("fileFormat", "tfrecord")
  if found != file_format:
    raise ValueError(
      f"{directory} is {found}, not {file_format}: --source {found}:{directory}"
    )
  features = paths.read(os.path.join(directory, tfds.FEATURES))
  images = re.findall(b"image_feature|labeled_image", features)
  if args.max_side and len(images) > 1:
    raise ValueError(_NO_LABEL_MAPS)
  files = {split["name"]: [] for split in info["splits"]}
  for split, file, size in tfds.shards(info):
    path = paths.join(directory, file.replace("array_record", file_format))
    records = functools.partial(COPIED[file_format], path, args.verify)
    files[split].append((size, records))

  def finish(folder, written, note):
    named = shutil.ignore_patterns(f"*.{file_format}*", tfds.INFO, CHECKSUMS)

    def ignored(where, names):
      found = named(where, names)
      for name in names:
        path = os.path.join(where, name)
        if os.path.islink(path):  # its target may be no part of the data
          print(f"{path} is a link, and left out.")
          found.add(name)
        else:
          paths.check_regular(path)
      return found

    shutil.copytree(directory, folder, ignore=ignored, dirs_exist_ok=True)
    info["fileFormat"] = "array_record"
    info["description"] = f"{info.get('description', '')}\n{note}".strip()
    atomic.write_json(os.path.join(folder, tfds.INFO), info)

  version = os.path.basename(directory)
  names = filter(None, (info["name"], info.get("configName"), version))
  folder = os.path.join(*names)
  return Plan(folder, files, 0, finish)


# The formats of TFDS that can be copied, and what reads their files.
COPIED = {
  "tfrecord": tfrecord.records,
  "array_record": lambda path, check: tfds_writer.records(path),
}


def captions(args: argparse.Namespace) -> Iterator[str]:
  """Returns the captions of the first split in lower case, read lazily.

  Raises:
    ValueError, OSError: there are none under --text_key.
  """
  split = args.splits.partition(",")[0]
  data = sources.make({"name": args.source, "split": split})
  found = retrieval.captions(data, args.text_key)
  texts = (found[i]["text"] for i in range(len(found)))
  return ((x.decode() if isinstance(x, bytes) else x).lower() for x in texts)


def verify(directory: str) -> tuple[int, int]:
  """Reads every record again; returns the numbers of examples and of files.

  Raises:
    ValueError: a record is missing, damaged or a different one.
  """
  if not os.path.isfile(os.path.join(directory, tfds.INFO)):
    raise ValueError(
      f"{directory} has no {tfds.INFO}: preparing was not finished."
    )
  path = os.path.join(directory, CHECKSUMS)
  shards = schema.read_json(path, Checksums)["shards"]
  expected = {file: n for _, file, n in tfds.shards(tfds.read_info(directory))}
  if {file: n for file, (n, *_) in shards.items()} != expected:
    raise ValueError(
      f"{path} and {tfds.INFO} are not of the same files and numbers of "
      "records: one is damaged. Prepare again, in another folder."
    )
  wrong = []
  for name, expected in tqdm.tqdm(shards.items(), unit=" files", disable=None):
    try:
      found = tfds_writer.read_shard(paths.join(directory, name))
    except ValueError as error:
      wrong.append(str(error))
    else:
      if list(found) != expected:
        wrong.append(
          f"{name} has {found.records} records with checksum "
          f"{found.sha256[:12]}, expected {expected[0]} with {expected[2][:12]}"
        )
  if wrong:
    wrong.append(
      f"Delete these files, and their lines in {path}, and prepare again."
    )
    raise ValueError("\n".join(wrong))
  return sum(records for records, *_ in shards.values()), len(shards)


def main(argv: Sequence[str] | None = None):
  """Runs the command line; see the module."""
  parser = output.parser(__doc__)
  add, positive = parser.add_argument, output.positive
  add("--source", default="", help="like config.input.data, or tfrecord:/path")
  add("--splits", default="train", help="splits to write: train,val (train)")
  add("--name", help="name of the new data set")
  add("--version", default="1.0.0", help="of the new data set (1.0.0)")
  default = os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
  add("--data_dir", default=default, help="where data sets are (%(default)s)")
  add("--shard_size", type=positive, default=2000, help="examples in a file")
  add("--max_side", type=positive, help="shrink larger JPEGs to these pixels")
  add("--quality", type=positive, help="quality of shrunk JPEGs (95)")
  add("--restart", action="store_true", help="add restart markers to JPEGs")
  add("--verify", action="store_true", help="read all of it again")
  add("--vocab_size", type=positive, help="train a tokenizer of this size")
  add("--text_key", default="text", help="key of captions (text)")
  args = parser.parse_args(argv)
  images = {k: getattr(args, k) for k in ("max_side", "quality", "restart")}
  images = {key: value for key, value in images.items() if value}
  if "quality" in images and "max_side" not in images:
    parser.error("--quality is of images that --max_side makes smaller")
  copied = args.source.partition(":")[0] in COPIED
  if not (args.source or args.verify) or not (args.name or copied):
    parser.error("give --name, and a --source to prepare, --verify, or both")
  given = [k for k in _CHOSEN if getattr(args, k) != parser.get_default(k)]
  if copied and given:
    parser.error(f"--{', --'.join(given)}: {args.source} is copied as it is")
  if args.source and "/" in (args.name or ""):
    parser.error(f"--name={args.name}: expected one word, without folders")
  if args.source and not re.fullmatch(r"\d+\.\d+\.\d+", args.version):
    parser.error(f"--version={args.version}: expected three numbers: 1.0.0")
  args.splits = args.splits.replace(" ", "")
  if {"all", "train"} <= {*args.splits.split(",")}:
    parser.error("--splits: `all` would be written as a second `train`")
  if re.search(r"[\[+]", args.splits):
    parser.error(
      f"--splits={args.splits}: expected names such as train,val; slices can "
      "be read from the result"
    )
  with output.errors_in_a_line():
    if args.source:
      # First, before anything is written: there may be none.
      texts = captions(args) if args.vocab_size else None
      directory = prepare(args, images)
      output.say(f"Prepared {directory}.")
      if args.vocab_size:
        path = os.path.join(directory, TOKENIZER)
        tokenizers.train(texts, args.vocab_size, path)
        output.say(f"Trained {path}.")
    else:
      data_dir = os.path.expanduser(args.data_dir)
      directory = paths.join(data_dir, args.name, args.version)
    if args.verify:
      examples, files = verify(directory)
      output.say(f"Verified {examples} examples in {files} files.")


if __name__ == "__main__":
  main()
