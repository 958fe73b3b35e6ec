"""Data sets in the Parquet layout of the Hugging Face hub, read from disk.

The files of a split are `<split>-*.parquet`, in the folder or in its `data/`,
or `<split>/*.parquet`. Columns keep their names; an image column, which the hub
stores as {bytes, path}, yields the bytes. Class names come from the metadata
that `datasets` leaves in the files. Slices are random, see `sources`; slices in
`datasets` are not.

Parquet has no random access: whole row groups are read and cached, up to a
quarter of the machine's memory per process. In shuffled order, what does not
fit is read again and again; scripts.prepare_data turns it into ArrayRecord.
"""

import bisect
import collections
import glob
import itertools
import os
import re
import threading

from absl import logging

from dpn import damage, schema
from dpn.input_pipeline import sources
from dpn.paths import check_regular

_LOCK = threading.Lock()
# Row groups and their sizes, the last used last, by file, time and number.
_TABLES: collections.OrderedDict[tuple, tuple] = collections.OrderedDict()


class ParquetSource(sources.Source):
  """The rows of one split."""

  may_be_sorted = True

  def __init__(self, path: str, split: str):
    """Reads the files' footers; rows are read later."""
    try:
      from pyarrow import parquet  # from the extra `hf`
    except ModuleNotFoundError as error:
      raise ValueError(
        "Reading Parquet needs pyarrow: pip install 'dual-patchnorm[hf]'."
      ) from error
    self._args = path, split
    root = os.path.expanduser(path)
    self.name = f"parquet:{root}:{split}"
    paths = _paths_by_split(root)
    if not paths:
      raise ValueError(
        f"{root} holds no .parquet file, nor do its folders. If it is what "
        "datasets' save_to_disk wrote, that is Arrow: load it and write each "
        "split, as by to_parquet('train.parquet')."
      )
    sources.check_split(root, split, paths)
    _check_one_split(paths[split])
    files = []
    for path in paths[split]:
      with damage.reading(path):
        stamp = path, os.stat(path).st_mtime_ns
        file = parquet.ParquetFile(check_regular(path))
        files.append((stamp, file))
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        size = sum(group.total_byte_size for group in groups)
        damage.check_unpacked(path, size, times=200)
    for (path, _), file in files:
      classes = _class_names(path, file)
      if path != paths[split][0] and classes != self.classes:
        raise ValueError(
          f"{path} names other classes than {paths[split][0]}: labels would "
          "not mean the same. Put each in a folder of its own."
        )
      self.classes = classes
    self._groups = [
      (f, (s, i)) for s, f in files for i in range(f.num_row_groups)
    ]
    infos = [file.metadata.row_group(i) for file, (_, i) in self._groups]
    self._ends = list(itertools.accumulate(info.num_rows for info in infos))
    if not self._ends or not self._ends[-1]:
      raise ValueError(f"{self.name} has no rows.")
    sizes, budget = [info.total_byte_size for info in infos], _budget_bytes()
    if sum(sizes) > budget:
      logging.warning(
        "%s has %.1f GB, of which %.1f fit in memory; reading it shuffled is "
        "slow. Convert it: python -m scripts.prepare_data --source parquet:%s",
        *(self.name, sum(sizes) / 1e9, budget / 1e9, root),
      )

  def __reduce__(self):
    return ParquetSource, self._args

  def __len__(self):
    return self._ends[-1]

  def __getitem__(self, index):
    group = bisect.bisect_right(self._ends, index)
    table = self._table(group)
    row = index - self._ends[group] + len(table)
    keys = table.column_names
    return {key: _plain(table.column(key)[row].as_py()) for key in keys}

  def _table(self, group: int):
    """Returns a row group, from the cache or else from the file."""
    file, key = self._groups[group]
    with _LOCK:  # or several threads would read the same group
      if key not in _TABLES:
        table = file.read_row_group(key[1])
        _TABLES[key] = table, table.nbytes
        held = lambda: sum(size for _, size in _TABLES.values())
        while len(_TABLES) > 1 and held() > _budget_bytes():
          _TABLES.popitem(last=False)
      _TABLES.move_to_end(key)
      return _TABLES[key][0]


def _paths_by_split(root: str) -> dict[str, list[str]]:
  """Returns the files of every split, in order."""
  paths = collections.defaultdict(list)
  for folder in ("", *sorted(os.listdir(root))):
    pattern = os.path.join(glob.escape(os.path.join(root, folder)), "*.parquet")
    for path in sorted(glob.glob(pattern)):
      base = os.path.basename(path)
      by_name = re.sub(r"(-\d{5}-of-\d{5}.*)?\.parquet", "", base)
      paths[by_name if folder in ("", "data") else folder].append(path)
  return paths


def _check_one_split(paths: list[str]):
  """Raises ValueError if files are of several splits, or some are missing."""
  bases = map(os.path.basename, paths)
  parts = [m for b in bases if (m := re.match(r"(.+)-(\d{5})-of-(\d{5})", b))]
  names = {m[1] for m in parts}
  if len(names) > 1 and names & {"train", "validation", "test"}:
    folder = os.path.dirname(paths[0])
    raise ValueError(
      f"{folder} holds several splits, {', '.join(sorted(names))}. Give that "
      f"folder: parquet:{folder}."
    )
  there = {m.groups() for m in parts}
  for name, _, n in there:
    missing = {(name, f"{i:05d}", n) for i in range(int(n))} - there
    if missing:
      raise ValueError(
        f"{paths[0]} is one of {int(n)} files, of which {len(missing)} are not "
        f"there: the first is {min(missing)[1]}. Get them, or rename these."
      )


def _class_names(path, file) -> dict[str, list[str]]:
  """Returns the class names of every label column."""
  metadata = file.schema_arrow.metadata or {}
  where = f"The metadata 'huggingface' in {path}"
  with damage.reading(where):
    told = schema.parse(where, metadata.get(b"huggingface", b"{}"), dict)
    features = told.get("info", {}).get("features", {})
    return {
      key: [*map(str, feature["names"])]
      for key, feature in features.items()
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


def _budget_bytes() -> int:
  if hasattr(os, "sysconf"):
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4
  return 2**32  # Windows does not say; 16 GB are common.
