"""Encoded images in files: class folders, tar archives, manifests.

A manifest is a table with the columns `path`, `label` and `split`: a CSV file
with a header, or a JSONL file with an object per line. Paths are relative to
the manifest's folder; labels are numbers from 0, or names, which are numbered
in alphabetical order; other columns are ignored.
"""

import abc
import csv
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dpn import errors
from input_pipeline.sources import Source

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
_COLUMNS = ("label", "path", "split")


class _ImageSource(Source):
  """Yields `image`, `label` and `id`.

  Attributes:
    ids: what identifies every image in the data set.
    labels: (images,) their classes.
    classes: names of the classes; None if they only have numbers.
  """

  ids: Sequence[str]
  labels: np.ndarray
  classes: Sequence[str] | None

  @abc.abstractmethod
  def _bytes(self, index: int) -> bytes:
    """Returns an encoded image."""

  def __len__(self):
    return len(self.ids)

  def __getitem__(self, index):
    return {
      "image": self._bytes(index),
      "label": int(self.labels[index]),
      "id": self.ids[index],
    }

  def num_classes(self, label_key):
    return len(self.classes) if label_key == "label" else None

  def class_names(self, label_key):
    return self.classes if label_key == "label" else None


class FolderSource(_ImageSource):
  """Images in folders named by class."""

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
        f"In {parent}: " + errors.unknown("split", split, _folders(parent))
      )
    self.classes = _folders(self._root)
    files = [
      (label, f"{name}/{entry}")
      for label, name in enumerate(self.classes)
      for entry in sorted(os.listdir(os.path.join(self._root, name)))
      if _is_image(entry)
    ]
    if not files:
      raise ValueError(
        f"No image in {self._root}. Expected {self._root}/<class>/<file>, "
        f"files ending in {', '.join(_IMAGE_SUFFIXES)}."
      )

    labels, self.ids = zip(*files, strict=True)
    self.labels = np.array(labels)

  def _bytes(self, index):
    with open(self.describe(index), "rb") as file:
      return file.read()

  def describe(self, index):
    return os.path.join(self._root, self.ids[index])


def _folders(path):
  return sorted(
    entry.name
    for entry in os.scandir(path)
    if entry.is_dir() and entry.name[0] != "."
  )


def _is_image(path: str) -> bool:
  name = os.path.basename(path)
  return name.lower().endswith(_IMAGE_SUFFIXES) and name[0] != "."


class TarSource(_ImageSource):
  """Images in an archive, read in place.

  A member's class is its folder, `…/<class>/<file>`; an archive within the
  archive is one class, the format of ImageNet's training images.
  """

  def __init__(self, path: str, split: str):
    """Reads the archive's table of contents: a pass over its headers."""
    root = os.path.expanduser(path)
    self._path = os.path.join(root, f"{split}.tar")
    self.name = f"tar:{self._path}"
    if not os.path.isfile(self._path):
      if not os.path.isdir(root):
        raise ValueError(f"No folder {root}. Expected <split>.tar in it.")
      known = [e[:-4] for e in os.listdir(root) if e.endswith(".tar")]
      raise ValueError(f"In {root}: " + errors.unknown("split", split, known))
    try:
      with open(self._path, "rb") as file:
        members = sorted(_members(file, 0, os.path.getsize(self._path)))
    except tarfile.TarError as error:
      raise ValueError(
        f"{self._path} is no uncompressed tar archive, or is cut off: {error}. "
        "A compressed one has no random access: decompress it first."
      ) from error
    if not members:
      raise ValueError(f"No image in {self._path}. Expected <class>/<file>.")
    self.ids = [name for name, _, _ in members]
    self._places = np.array([place for _, *place in members], np.int64)
    folders = [name.rpartition("/")[0] for name in self.ids]
    classes, self.labels = np.unique(folders, return_inverse=True)
    self.classes = classes.tolist()

  def _bytes(self, index):
    offset, size = self._places[index].tolist()
    with open(self._path, "rb") as file:
      file.seek(offset)
      return file.read(size)

  def describe(self, index):
    return f"{self._path}, {self.ids[index]}"


def _members(file, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
  """Yields (class/file, offset, size) of the images between two offsets."""
  # An archive ends in empty blocks; tarfile does not miss them.
  file.seek(max(end - tarfile.BLOCKSIZE, begin))
  if file.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
    raise tarfile.ReadError("it has no end")
  file.seek(begin)
  with tarfile.open(fileobj=file, mode="r:") as archive:
    for member in archive:
      first, stop = member.offset_data, member.offset_data + member.size
      folder, base = os.path.split(member.name)
      if not member.isfile():
        continue
      if _is_image(member.name):
        yield f"{os.path.basename(folder)}/{base}", first, member.size
      elif base.endswith(".tar"):
        place = file.tell()
        for name, *where in _members(file, first, stop):
          yield f"{base[:-4]}/{os.path.basename(name)}", *where
        file.seek(place)


class ManifestSource(_ImageSource):
  """Images listed in a table; the `id` is the path."""

  def __init__(self, path: str, split: str):
    """Reads the table; images are read later."""
    path = os.path.expanduser(path)
    self.name = f"manifest:{path}:{split}"
    self._root = os.path.dirname(path)
    rows = list(_rows(path))
    known = sorted({row["split"] for row in rows})
    if split not in known:
      raise ValueError(f"In {path}: " + errors.unknown("split", split, known))
    labels, self.classes = _numbered([row["label"] for row in rows], path)
    # Over all splits: a small one may lack the last class.
    self._num_classes = int(labels.max()) + 1
    chosen = [i for i, row in enumerate(rows) if row["split"] == split]
    self.labels = labels[chosen]
    self.ids = [rows[i]["path"] for i in chosen]

  def _bytes(self, index):
    with open(self.describe(index), "rb") as file:
      return file.read()

  def describe(self, index):
    return os.path.join(self._root, self.ids[index])

  def num_classes(self, label_key):
    return self._num_classes if label_key == "label" else None


def _rows(path: str) -> Iterator[dict[str, Any]]:
  """Yields the rows of a manifest, each with all three columns."""
  if not path.endswith((".csv", ".jsonl")) or not os.path.isfile(path):
    raise ValueError(f"No manifest {path}. Expected a .csv or .jsonl file.")
  with open(path, newline="", encoding="utf-8") as file:
    try:
      parsed = csv.DictReader(file) if path.endswith(".csv") else _objects(file)
      for number, row in enumerate(parsed, 1):
        missing = [key for key in _COLUMNS if row.get(key) in (None, "")]
        if missing:
          raise ValueError(
            f"row {number} has no {' and no '.join(missing)}; its columns are "
            f"{', '.join(map(str, row))}"
          )
        yield {key: row[key] for key in _COLUMNS}
    except (ValueError, csv.Error) as error:
      raise ValueError(
        f"Cannot read {path}: {error}. Expected the columns path, label and "
        "split."
      ) from error


def _objects(file):
  for number, line in enumerate(file, 1):
    if line.strip():
      row = json.loads(line)
      if not isinstance(row, dict):
        raise ValueError(f"line {number} is no object: {line.strip()[:40]!r}")
      yield row


def _numbered(
  labels: Sequence[Any], path: str
) -> tuple[np.ndarray, list[str] | None]:
  """Returns labels as numbers, with the classes' names if they had names."""
  texts = [str(label) for label in labels]
  numeric = [text.isdecimal() for text in texts]
  if all(numeric):
    return np.array([int(text) for text in texts]), None
  if any(numeric):
    raise ValueError(
      f"{path}: the labels are partly numbers ({texts[numeric.index(True)]!r}) "
      f"and partly names ({texts[numeric.index(False)]!r}). Expected numbers "
      "from 0, or names, for all."
    )
  classes, labels = np.unique(texts, return_inverse=True)
  return labels, classes.tolist()
