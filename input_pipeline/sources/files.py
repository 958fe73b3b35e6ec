"""Encoded images in files: class folders, tar archives, pairs, manifests.

Labels number the classes of all splits, in alphabetical order, so that they
mean the same in each; a class that a split lacks is logged.

Pairs are images and their label maps in parallel folders, of the same names but
for the suffix: /path/images/<split>/… and /path/annotations/<split>/…, with
folders in between or not. The second may be called `labels` or `masks`, too, or
the two `img_dir` and `ann_dir`.

A manifest is a table with the columns `path`, `split`, and any of `label`,
`mask` and `caption`: a CSV file with a header, or a JSONL file with an object
per line. Paths (of images, and in `mask` of label maps) are relative to the
manifest's folder; labels are numbers from 0, or names; in JSONL a caption may
be a list of them; other columns, and spaces around a field, are ignored. Slices
are random, see `sources`: for others, name splits of your own.

Captions are under the key `text`. In an archive, they are files ending in .txt
beside the images, `0001.jpg` and `0001.txt`.
"""

import codecs
import functools
import os
import tarfile
from collections.abc import (
  Callable,
  Collection,
  Iterator,
  Mapping,
  Sequence,
)

import numpy as np
from absl import logging

from dpn import image_files
from dpn.input_pipeline import sources

# Folders of images, and those of label maps beside them.
_PAIRS = {"images": ("annotations", "labels", "masks"), "img_dir": ("ann_dir",)}


class _FileSource(sources.Source):
  """Images in files of their own; yields `image`, `id` and what there is."""

  may_be_sorted = True

  root: str
  ids: Sequence[str]  # paths below `root`
  labels: np.ndarray | None = None  # (images,)
  classes: Sequence[str] | None = None  # their names; labels may be numbers
  masks: Mapping[str, Sequence[str]] = {}  # by key, label maps' paths

  def __len__(self):
    return len(self.ids)

  def __getitem__(self, index):
    example = {"image": self._bytes(index), "id": self.ids[index]}
    if self.labels is not None:
      example["label"] = int(self.labels[index])
    for key, paths in self.masks.items():
      example[key] = _read(os.path.join(self.root, paths[index]))
    return example

  def _bytes(self, index: int) -> bytes:
    return _read(self.describe(index))

  def describe(self, index):
    return os.path.join(self.root, self.ids[index])

  def class_names(self, label_key):
    return self.classes if label_key == "label" else None


def _read(path: str) -> bytes:
  with open(path, "rb") as file:
    return file.read()


class _ClassSource(_FileSource):
  """Images whose `ids` are <class>/<file>."""

  def _number(self, classes: Collection[str]):
    """Labels the images; `classes` are those of all splits."""
    self.classes = sorted(classes)
    numbers = {name: number for number, name in enumerate(self.classes)}
    folders = [name.rpartition("/")[0] for name in self.ids]
    self.labels = np.array([numbers[folder] for folder in folders])
    if missing := sorted({*classes} - {*folders}):
      logging.warning(
        "%s has no image of %d of the %d classes of all splits: %s%s.",
        *(self.name, len(missing), len(classes), ", ".join(missing[:9])),
        ", …" if len(missing) > 9 else "",
      )


class FolderSource(_ClassSource):
  """Images in folders named by class."""

  def __init__(self, path: str, split: str):
    """Lists the files of path/split; reading happens later.

    Where classes stand in the folder itself, they are the split "all".
    """
    path = os.path.expanduser(path)
    folders = {
      name: os.path.join(path, name) for name in image_files.subfolders(path)
    }
    # A folder that holds no images, such as annotations, is no split.
    roots = [x for x in folders.values() if os.access(x, os.R_OK)]
    roots = [x for x in roots if any(_listed(x))]
    if not roots and any(_listed(path)):
      folders, roots = {"all": path}, [path]
    sources.check_split(f"{path}/<split>/<class>/<file>", split, [*folders])
    self.root = folders[split]
    self.name = f"folder:{self.root}"
    self.ids = [*_listed(self.root)]
    if not self.ids:
      raise ValueError(
        f"No image in {self.root}. Expected {self.root}/<class>/<file>, "
        f"files ending in {', '.join(image_files.SUFFIXES)}."
      )
    self._number(
      {name for root in roots for name in image_files.subfolders(root)}
    )


def _listed(root: str) -> Iterator[str]:
  """Yields <class>/<file> of the images below a folder, in order."""
  for folder in image_files.subfolders(root):
    for name in image_files.images(os.path.join(root, folder)):
      yield f"{folder}/{name}"


class PairsSource(_FileSource):
  """Images and label maps in parallel folders; yields an `annotation` too."""

  def __init__(self, path: str, split: str):
    """Lists the files of both folders; reading happens later."""
    self.root = os.path.expanduser(path)
    there = {*image_files.subfolders(self.root)}
    pairs = [
      (images, masks)
      for images, names in _PAIRS.items()
      for masks in names
      if {images, masks} <= there
    ]
    if len(pairs) != 1:
      raise ValueError(
        f"{path} holds the folders {sorted(there)}. Expected one of images and "
        "one of label maps: images beside annotations, labels or masks, or "
        "img_dir beside ann_dir."
      )
    folders = [os.path.join(self.root, folder) for folder in pairs[0]]
    sources.check_split(
      f"{folders[0]}/<split>", split, image_files.subfolders(folders[0])
    )
    folders = [os.path.join(folder, split) for folder in folders]
    self.name = f"pairs:{folders[0]}"
    images, masks = (_by_stem(self.root, folder) for folder in folders)
    if not images or (alone := sorted(images.keys() ^ masks.keys())):
      alone = [images.get(stem) or masks[stem] for stem in alone[:3]]
      raise ValueError(
        f"Expected pairs of the same name in {folders[0]} ({len(images)} files)"
        f" and {folders[1]} ({len(masks)} files), which end in "
        f"{', '.join(image_files.SUFFIXES)}. Without a partner: "
        f"{', '.join(alone)}, …."
      )
    stems = sorted(images)
    self.ids = [images[stem] for stem in stems]
    self.masks = {"annotation": [masks[stem] for stem in stems]}


def _by_stem(root: str, folder: str) -> dict[str, str]:
  """Returns paths below `root` of a folder's images, by path without suffix."""
  found = {}
  for where, _, names in os.walk(folder, followlinks=True):
    for name in filter(image_files.is_image, sorted(names)):
      path = os.path.join(where, name)
      stem = os.path.splitext(os.path.relpath(path, folder))[0]
      path = os.path.relpath(path, root)
      if stem in found:
        raise ValueError(
          f"In {root}, {found[stem]} and {path} have the same name; expected "
          "one file for each."
        )
      found[stem] = path
  return found


class TarSource(_ClassSource):
  """Images in an archive, read in place.

  A member's class is its folder, `…/<class>/<file>`; an archive within the
  archive is one class, the format of ImageNet's training images.
  """

  def __init__(self, path: str, split: str):
    """Reads the tables of contents of all splits: passes over their headers."""
    root = os.path.expanduser(path)
    there = sorted(os.listdir(root))
    files = [e for e in there if e.endswith(".tar") and e[0] != "."]
    if not files:
      raise ValueError(
        f"{root} holds no .tar archive, but: {', '.join(there[:9])}. A "
        "compressed one has no random access: decompress it first."
      )
    sources.check_split(root, split, [file[:-4] for file in files])
    self._path = os.path.join(root, f"{split}.tar")
    self.name = f"tar:{self._path}"
    self.ids, self._places, self._texts = _contents(self._path)
    if not self.ids:
      raise ValueError(f"No image in {self._path}. Expected <class>/<file>.")
    paths = [os.path.join(root, file) for file in files]
    ids = (name for x in paths for name in _contents(x)[0])
    self._number({name.rpartition("/")[0] for name in ids})

  def __getitem__(self, index):
    example = super().__getitem__(index)
    if self._texts is not None:
      text = self._read(self._texts[index])
      example["text"] = text.removeprefix(codecs.BOM_UTF8).strip()
    return example

  def _bytes(self, index):
    return self._read(self._places[index])

  def _read(self, place):
    offset, size = place.tolist()
    with open(self._path, "rb") as file:
      file.seek(offset)
      return file.read(size)

  def describe(self, index):
    return f"{self._path}, {self.ids[index]}"


def _contents(path: str) -> tuple[list[str], np.ndarray, np.ndarray | None]:
  """Returns <class>/<file> of the images, in order, and (offset, size).

  And of their captions, None if there are none.
  """
  stat = os.stat(path)
  return _read_contents(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(16)
def _read_contents(path, size, _):
  try:
    with open(path, "rb") as file:
      members = sorted(_members(file, 0, size))
  except tarfile.TarError as error:
    raise ValueError(
      f"{path} is no uncompressed tar archive, or is cut off: {error}. All in "
      "its folder are read, to number the classes. A compressed one has no "
      "random access: decompress it first."
    ) from error
  images = [member for member in members if image_files.is_image(member[0])]
  by_stem = {m[-1]: m[1:3] for m in members if not image_files.is_image(m[0])}
  names = [name for name, *_ in images]
  texts = [by_stem.get(stem) for *_, stem in images]
  if any(texts) and not all(texts):
    raise ValueError(
      f"{path}: {names[texts.index(None)]} has no caption beside it, a file of "
      "the same name ending in .txt, but other images have."
    )
  array = lambda places: np.array(places, np.int64)
  places = array([place for _, *place, _ in images])
  return names, places, array(texts) if any(texts) else None


def _members(file, begin: int, end: int) -> Iterator[tuple[str, int, int, str]]:
  """Yields (class/file, offset, size, stem) of images and texts in a range.

  The stem is the whole path without its suffix.
  """
  # An archive ends in empty blocks; tarfile does not miss them.
  file.seek(max(end - tarfile.BLOCKSIZE, begin))
  if file.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
    raise tarfile.ReadError("it has no end")
  file.seek(begin)
  with tarfile.open(fileobj=file, mode="r:") as archive:
    names = functools.cache(
      lambda: {os.path.normpath(m.name): m for m in archive.getmembers()}
    )
    for member in archive:
      folder, base = os.path.split(member.name)
      is_text = base.lower().endswith(".txt") and base[0] != "."
      is_example = is_text or image_files.is_image(member.name)
      if not (is_example or base.endswith(".tar")):
        continue
      there = _linked(member, names)
      first, stop = there.offset_data, there.offset_data + there.size
      if not there.isfile():
        continue
      if is_example:
        stem = os.path.splitext(os.path.normpath(member.name))[0]
        yield f"{os.path.basename(folder)}/{base}", first, there.size, stem
      else:
        place = file.tell()
        for name, *where, stem in _members(file, first, stop):
          within = f"{base[:-4]}/{os.path.basename(name)}"
          yield within, *where, f"{member.name}/{stem}"
        file.seek(place)


def _linked(member, names: Callable[[], Mapping[str, tarfile.TarInfo]]):
  """Returns what a link in an archive leads to, of anything else itself.

  `names` returns all members by their normalized names.
  """
  for _ in range(32):
    if member.islnk():
      target = member.linkname
    elif member.issym():
      target = os.path.join(os.path.dirname(member.name), member.linkname)
    else:
      return member
    target = os.path.normpath(target)
    if target not in names():
      raise tarfile.ReadError(f"{member.name} is a link to {target}, not in it")
    member = names()[target]
  raise tarfile.ReadError(f"{member.name} is a link to itself")


class ManifestSource(_FileSource):
  """Images listed in a table; the `id` is the path."""

  def __init__(self, path: str, split: str):
    """Reads the table; images are read later."""
    path = os.path.expanduser(path)
    self.name = f"manifest:{path}:{split}"
    self.root = os.path.dirname(path)
    table = _table(path)
    sources.check_split(path, split, set(table["split"]))
    chosen = (table["split"] == split).to_numpy()
    self.ids = table["path"][chosen].tolist()
    self._num_classes = self._captions = None
    if "caption" in table:
      self._captions = table["caption"][chosen].tolist()
    if "mask" in table:
      self.masks = {"mask": table["mask"][chosen].tolist()}
    if "label" in table:
      labels, self.classes = _numbered(table["label"], path)
      # Over all splits: a small one may lack the last class.
      self._num_classes = int(labels.max()) + 1
      self.labels = labels[chosen]

  def __getitem__(self, index):
    example = super().__getitem__(index)
    if self._captions is not None:
      example["text"] = self._captions[index]
    return example

  def num_classes(self, label_key):
    return self._num_classes if label_key == "label" else None


def _table(path: str):
  """Returns a manifest's columns as text; a caption may be a list of texts."""
  import pandas as pd  # takes half a second

  try:
    if path.endswith(".jsonl"):
      table = pd.read_json(path, lines=True, dtype=False, encoding="utf-8-sig")
    else:
      table = pd.read_csv(
        path, dtype=str, keep_default_na=False, skipinitialspace=True
      )
      # pandas would take the first column for the names of rows.
      if not isinstance(table.index, pd.RangeIndex):
        raise ValueError(
          "row 1 has more fields than the header; a field with a comma in it "
          "needs double quotes"
        )
    targets = sorted({"label", "mask", "caption"} & {*table}) or ["label"]
    table = table[["path", "split", *targets]].map(
      lambda x: x.strip() if isinstance(x, str) else x
    )
  except (ValueError, AttributeError, KeyError) as error:
    raise ValueError(
      f"Cannot read {path}: {error}. Expected a .csv file with a header or a "
      ".jsonl file of objects, with the columns path, split, and label, mask "
      "or caption."
    ) from error
  missing = table.isna() | (table == "")
  if missing.any(axis=None):
    row, column = np.argwhere(missing.to_numpy())[0]
    raise ValueError(f"{path}: row {row + 1} has no {table.columns[column]}.")
  return table.astype({k: str for k in table if k != "caption"})


def _numbered(labels, path: str) -> tuple[np.ndarray, list[str] | None]:
  """Returns labels as numbers, with the classes' names if they had names."""
  numeric = labels.str.isdecimal()
  if numeric.all():
    return labels.astype(int).to_numpy(), None
  if numeric.any():
    raise ValueError(
      f"{path}: the labels are partly numbers ({labels[numeric].iloc[0]!r}) "
      f"and partly names ({labels[~numeric].iloc[0]!r}). Expected numbers "
      "from 0, or names, for all."
    )
  if labels.str.fullmatch(r"[+-]?\d*\.?\d+|\d+\.").all():
    raise ValueError(
      f"{path}: the labels are numbers such as {labels.iloc[0]!r}. Expected "
      "integers from 0, or names."
    )
  classes, numbers = np.unique(labels.tolist(), return_inverse=True)
  return numbers, classes.tolist()
