"""Data sets in the Parquet layout of the Hugging Face hub, read from disk.

The files of a split are `<split>-*.parquet`, in the folder or in its `data/`,
or `<split>/*.parquet`. Columns keep their names; one of images, which the hub
stores as {bytes, path}, yields the bytes. Class names come from the metadata
that `datasets` leaves in the files.

Parquet has no random access: a group of rows is read at once, and kept for the
next time, up to a quarter of the machine's memory. What does not fit is read
again and again in shuffled order; scripts.prepare_data turns it into
ArrayRecord.
"""

import bisect
import collections
import functools
import glob
import itertools
import json
import os
import re
import threading

from absl import logging

from dpn import errors
from input_pipeline.sources import Source


class ParquetSource(Source):
  """The rows of one split."""

  def __init__(self, path: str, split: str):
    """Reads the files' footers; rows are read later."""
    self._args = path, split
    root = os.path.expanduser(path)
    self.name = f"parquet:{root}:{split}"
    self._files = [_open(file) for file in _find(root, split)]
    self._groups = [
      (file, group)
      for file in self._files
      for group in range(file.num_row_groups)
    ]
    infos = [file.metadata.row_group(group) for file, group in self._groups]
    self._ends = list(itertools.accumulate(info.num_rows for info in infos))
    if not self._ends or not self._ends[-1]:
      raise ValueError(f"{self.name} has no rows.")
    self._labels = _class_labels(self._files[0])
    self._lock = threading.Lock()
    self._budget = _memory_bytes() // 4
    size = sum(info.total_byte_size for info in infos)
    if size > self._budget:
      logging.warning(
        "%s has %.1f GB, of which %.1f can be kept in memory; shuffled reading "
        "will be slow. Turn it into ArrayRecord: python -m "
        "scripts.prepare_data --source parquet:%s",
        self.name,
        size / 1e9,
        self._budget / 1e9,
        path,
      )
    largest = max(info.total_byte_size for info in infos)
    self._table = functools.lru_cache(max(self._budget // max(largest, 1), 1))(
      self._read_group
    )

  def __reduce__(self):
    return ParquetSource, self._args

  def __len__(self):
    return self._ends[-1]

  def __getitem__(self, index):
    group = bisect.bisect_right(self._ends, index)
    row = index - (self._ends[group - 1] if group else 0)
    with self._lock:  # or several threads would read the same group
      table = self._table(group)
    return {
      key: _plain(table.column(key)[row].as_py()) for key in table.column_names
    }

  def _read_group(self, group: int):
    file, number = self._groups[group]
    return file.read_row_group(number)

  def num_classes(self, label_key):
    classes = self.class_names(label_key)
    return None if classes is None else len(classes)

  def class_names(self, label_key):
    return self._labels.get(label_key)


def _open(path: str):
  try:
    from pyarrow import parquet  # From the extra `hf`.
  except ModuleNotFoundError as error:
    raise ValueError(
      "Reading Parquet needs pyarrow: pip install 'dual-patchnorm[hf]'."
    ) from error
  return parquet.ParquetFile(path)


def _find(root: str, split: str) -> list[str]:
  """Returns the files of a split, in order."""
  if not os.path.isdir(root):
    raise ValueError(f"No folder {root}. Expected <split>-*.parquet in it.")
  by_split = collections.defaultdict(list)
  for pattern in ("*.parquet", "data/*.parquet", "*/*.parquet"):
    for path in sorted(glob.glob(os.path.join(glob.escape(root), pattern))):
      folder, base = os.path.split(os.path.relpath(path, root))
      match = re.match(r"(.+?)(-\d{5}-of-\d{5}.*)?\.parquet", base)
      name = match[1] if folder in ("", "data") else folder
      if path not in by_split[name]:
        by_split[name].append(path)
  if split not in by_split:
    raise ValueError(f"In {root}: " + errors.unknown("split", split, by_split))
  return by_split[split]


def _class_labels(file) -> dict[str, list[str]]:
  """Returns the class names of every label column."""
  metadata = file.schema_arrow.metadata or {}
  info = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {})
  return {
    key: feature["names"]
    for key, feature in info.get("features", {}).items()
    if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
  }


def _plain(value):
  """Returns the bytes of an image; anything else as it is."""
  if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
    if value["bytes"] is None:
      raise ValueError(
        f"the image {value['path']!r} is not in the Parquet file, only its "
        "path: save the data set with embedded images."
      )
    return value["bytes"]
  return value


def _memory_bytes() -> int:
  if hasattr(os, "sysconf"):
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return 2**34  # Windows does not say; 16 GB are common.
