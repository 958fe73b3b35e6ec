"""Random-access data sources: TFDS directories, image folders and arrays.

`make({"name": …, "split": …})` opens one. Names:

- `imagenet2012`, `tfds:imagenet2012:5.1.0`, `vtab/config`: a data set prepared
  by TFDS as ArrayRecord, see `tfds_source`.
- `folder:/path`: files at /path/<split>/<class>/<file>; labels number the class
  folders in alphabetical order.
- `arrays:/path/file.npz`: arrays named `<split>/image`, `<split>/label`, ….
- `arrays:digits`: scikit-learn's 8 x 8 digits, 1,438 train and 359 test.

Splits follow `splits`. Encoded images stay bytes; the op `decode` reads them.
"""

import abc
import bisect
import functools
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpn import names
from input_pipeline import splits

_IMAGE_SUFFIXES = (
  ".bmp",
  ".gif",
  ".jpeg",
  ".jpg",
  ".png",
  ".tif",
  ".tiff",
  ".webp",
)
_KINDS = ("arrays", "folder", "tfds")


class Source(abc.ABC):
  """Examples by index, from 0; safe to share among threads and to pickle.

  Attributes:
    name: what error messages call it.
  """

  name: str

  @abc.abstractmethod
  def __len__(self) -> int:
    """Returns the number of examples."""

  @abc.abstractmethod
  def __getitem__(self, index: int) -> dict[str, Any]:
    """Returns example `index`: values are arrays, numbers, bytes or strings."""

  def read(self, indices: Sequence[int]) -> list[dict[str, Any]]:
    """Returns several examples at once, in the order asked for."""
    return [self[index] for index in indices]

  def describe(self, index: int) -> str:
    """Returns words by which a person finds example `index`."""
    return f"{self.name}, example {index}"

  def num_classes(self, label_key: str) -> int | None:
    """Returns how many classes `label_key` knows, None if it is no label."""
    return None


def make(data: Mapping[str, Any]) -> Source:
  """Returns the source a config's `data` describes.

  Args:
    data: `name` and `split`, see the module; for TFDS also `data_dir`.

  Raises:
    ValueError: no such data, no such split, or nothing in it.
  """
  data = dict(data)
  for key in data:
    if key not in ("name", "split", "data_dir"):
      known = ("name", "split", "data_dir")
      raise ValueError(names.unknown("key of data", key, known))
  if "name" not in data or "split" not in data:
    raise ValueError(f"data needs a name and a split, got {data}.")
  open_split = _opener(data["name"], data.get("data_dir"))
  parts = []
  for part in splits.parse(data["split"]):
    whole = open_split(part.split)
    start, stop = part.bounds(len(whole))
    parts.append(
      whole if stop - start == len(whole) else _Range(whole, start, stop)
    )
  return parts[0] if len(parts) == 1 else _Concatenation(parts)


def _opener(name: str, data_dir: str | None):
  """Returns the function that opens a whole split of `name`."""
  kind, colon, rest = name.partition(":")
  if not colon or re.fullmatch(r"\d+\.\d+\.\d+", rest):
    kind, rest = "tfds", name
  if kind not in _KINDS:
    raise ValueError(names.unknown("kind of data source", kind, _KINDS))
  if kind == "tfds":
    # Deferred: TFDS takes a second to import, and arrays do without it.
    from input_pipeline import tfds_source

    return functools.partial(tfds_source.open_split, rest, data_dir)
  if data_dir is not None:
    raise ValueError(f"data_dir is for TFDS; {name!r} carries its own path.")
  if kind == "folder":
    return functools.partial(FolderSource, rest)
  if rest == "digits":
    return _digits
  return functools.partial(_npz, rest)


class _Range(Source):
  """Examples [start, stop) of another source."""

  def __init__(self, source: Source, start: int, stop: int):
    self.name = f"{source.name}[{start}:{stop}]"
    self._source, self._start, self._stop = source, start, stop

  def __len__(self):
    return self._stop - self._start

  def __getitem__(self, index):
    return self._source[self._start + index]

  def read(self, indices):
    return self._source.read([self._start + index for index in indices])

  def describe(self, index):
    return self._source.describe(self._start + index)

  def num_classes(self, label_key):
    return self._source.num_classes(label_key)


class _Concatenation(Source):
  """Several sources, one after the other."""

  def __init__(self, parts: Sequence[Source]):
    self.name = " + ".join(part.name for part in parts)
    self._parts = parts
    self._ends = list(itertools.accumulate(map(len, parts)))

  def _locate(self, index):
    part = bisect.bisect_right(self._ends, index)
    return self._parts[part], index - (self._ends[part - 1] if part else 0)

  def __len__(self):
    return self._ends[-1]

  def __getitem__(self, index):
    source, index = self._locate(index)
    return source[index]

  def describe(self, index):
    source, index = self._locate(index)
    return source.describe(index)

  def num_classes(self, label_key):
    return self._parts[0].num_classes(label_key)


class FolderSource(Source):
  """Images in folders named by class; yields `image`, `label` and `id`."""

  def __init__(self, path: str, split: str):
    """Lists the files of path/split; reading happens later."""
    self._root = os.path.join(os.path.expanduser(path), split)
    self.name = f"folder:{self._root}"
    if not os.path.isdir(self._root):
      parent = os.path.dirname(self._root)
      if not os.path.isdir(parent):
        raise ValueError(
          f"No folder {parent}. Expected <split>/<class>/ in it."
        )
      raise ValueError(
        f"In {parent}: " + names.unknown("split", split, _folders(parent))
      )
    self._classes = _folders(self._root)
    self._files = [
      (label, entry)
      for label, name in enumerate(self._classes)
      for entry in sorted(os.listdir(os.path.join(self._root, name)))
      if entry.lower().endswith(_IMAGE_SUFFIXES) and entry[0] != "."
    ]
    if not self._files:
      raise ValueError(
        f"No image in {self._root}. Expected {self._root}/<class>/<file>, "
        f"files ending in {', '.join(_IMAGE_SUFFIXES)}."
      )

  def __len__(self):
    return len(self._files)

  def __getitem__(self, index):
    label, entry = self._files[index]
    with open(self.describe(index), "rb") as file:
      image = file.read()
    return {
      "image": image,
      "label": label,
      "id": f"{self._classes[label]}/{entry}",
    }

  def describe(self, index):
    label, entry = self._files[index]
    return os.path.join(self._root, self._classes[label], entry)

  def num_classes(self, label_key):
    return len(self._classes) if label_key == "label" else None


def _folders(path):
  return sorted(
    entry.name
    for entry in os.scandir(path)
    if entry.is_dir() and entry.name[0] != "."
  )


class ArraySource(Source):
  """Rows of arrays held in memory."""

  def __init__(
    self,
    name: str,
    columns: Mapping[str, np.ndarray],
    num_classes: Mapping[str, int],
  ):
    """Takes columns of equal length; num_classes is by label key."""
    self.name = name
    self._columns = dict(columns)
    self._num_classes = dict(num_classes)
    lengths = {key: len(column) for key, column in self._columns.items()}
    if len(set(lengths.values())) != 1:
      raise ValueError(f"{name}: arrays differ in length: {lengths}.")

  def __len__(self):
    return len(next(iter(self._columns.values())))

  def __getitem__(self, index):
    return {key: column[index] for key, column in self._columns.items()}

  def num_classes(self, label_key):
    return self._num_classes.get(label_key)


def _digits(split: str) -> ArraySource:
  """Opens `train` or `test` (every fifth) of the bundled digits."""
  from sklearn import datasets  # Deferred: this data set alone needs it.

  in_split = {
    "train": lambda i: i % 5 != 4,
    "test": lambda i: i % 5 == 4,
  }
  if split not in in_split:
    raise ValueError("In digits: " + names.unknown("split", split, in_split))
  digits = datasets.load_digits()
  rows = in_split[split](np.arange(len(digits.target)))
  images = np.round(digits.images[rows, :, :, None] * (255 / 16))
  columns = {
    "image": images.astype(np.uint8),
    "label": digits.target[rows].astype(np.int32),
  }
  return ArraySource(f"digits:{split}", columns, {"label": 10})


def _npz(path: str, split: str) -> ArraySource:
  """Opens the arrays named `<split>/…` of a file."""
  path = os.path.expanduser(path)
  if not os.path.isfile(path):
    raise ValueError(f"No file {path}. Expected an .npz with <split>/image, ….")
  with np.load(path, allow_pickle=False) as file:
    keys = [key.rpartition("/") for key in file.files]
    known = sorted({head for head, slash, _ in keys if slash})
    if split not in known:
      raise ValueError(f"In {path}: " + names.unknown("split", split, known))
    columns = {
      tail: file[f"{split}/{tail}"] for head, _, tail in keys if head == split
    }
    # Over all splits: a small one may lack the last class.
    labels = [
      int(file[f"{head}/{tail}"].max())
      for head, _, tail in keys
      if tail == "label"
    ]
  counts = {"label": max(labels) + 1} if labels else {}
  return ArraySource(f"{path}:{split}", columns, counts)
