"""Encoded images in files: class folders, tar archives, pairs.

Labels number the classes of all splits in alphabetical order, so they mean the
same in each; classes that a split lacks are logged.

Pairs are images and their label maps in parallel folders, with the same names
except for the suffix: /path/images/<split>/… and /path/annotations/<split>/…,
with or without subfolders. `annotations` may also be called `labels` or
`masks`, or the two folders `img_dir` and `ann_dir`.

Captions are under the key `text`. In an archive, they are files ending in .txt
beside the images, `0001.jpg` and `0001.txt`.
"""

import codecs
import dataclasses
import functools
import os
import tarfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from dpn import damage, errors, image_files, paths
from dpn.input_pipeline import sources

# Folders of images, and what those of label maps beside them may be called.
_PAIRS = {"images": ("annotations", "labels", "masks"), "img_dir": ("ann_dir",)}
_ENDINGS = f"files ending in {', '.join(image_files.SUFFIXES)}"


@dataclasses.dataclass(eq=False, kw_only=True)
class FileSource(sources.Source):
  """Images in files or archives; yields `image`, `id` and what else there is.

  Attributes:
    root: the folder that paths are relative to, or an archive.
    ids: the examples' names.
    files: by key, where each example's bytes are: paths below `root`, or rows
      (offset, size) in an archive.
    labels: (examples,), None without any.
    captions: a text, or several, for each example.
    classes: see `Source`.
  """

  name: str
  root: str
  ids: Sequence[str]
  files: Mapping[str, Sequence[str] | np.ndarray]
  labels: np.ndarray | None = None
  captions: Sequence[Any] | None = None
  classes: Mapping[str, Sequence[str] | int] = dataclasses.field(
    default_factory=dict
  )
  may_be_sorted: bool = True

  def __len__(self):
    return len(self.ids)

  def __getitem__(self, index):
    example = {"image": self._read("image", index), "id": self.ids[index]}
    if self.labels is not None:
      example["label"] = int(self.labels[index])
    for key in self.files:
      if key != "image":
        example[key] = self._read(key, index)
    if self.captions is not None:
      example["text"] = self.captions[index]
    elif "text" in example:
      example["text"] = example["text"].removeprefix(codecs.BOM_UTF8).strip()
    return example

  def _read(self, key: str, index: int) -> bytes:
    place = self.files[key][index]
    if isinstance(place, str):
      return paths.read(os.path.join(self.root, place))
    offset, size = place.tolist()
    with paths.open_regular(self.root) as file:
      file.seek(offset)
      if len(data := file.read(size)) == size:
        return data
    raise ValueError(f"{self.root} is shorter than it was: start again.")

  def describe(self, index):
    if os.path.isfile(self.root):
      return f"{self.root}, {self.ids[index]}"
    return os.path.join(self.root, self.ids[index])


def _labelled(
  name: str, ids: Sequence[str], classes: Collection[str]
) -> dict[str, Any]:
  """Returns the labels of <class>/<file> among the `classes` of all splits."""
  classes = sorted(classes)
  numbers = {name: number for number, name in enumerate(classes)}
  folders = [x.partition("/")[0] for x in ids]
  if missing := sorted({*classes} - {*folders}):
    logging.warning(
      "%s has no image of %d of the %d classes of all splits: %s.",
      *(name, len(missing), len(classes), errors.some_of(missing, 9)),
    )
  labels = np.array([numbers[folder] for folder in folders])
  return {"labels": labels, "classes": {"label": classes}}


def folder(path: str, split: str) -> FileSource:
  """Opens path/split/<class>/<file>; class folders may have subfolders.

  If `path` itself holds the class folders, they are the split "all".
  """
  path = os.path.expanduser(path)
  subfolders = image_files.subfolders(path)
  roots = {name: os.path.join(path, name) for name in subfolders}
  # A folder without images, such as annotations, is not a split.
  filled = [x for x in roots.values() if os.access(x, os.R_OK) and _has_any(x)]
  nested = split not in roots and not image_files.has_splits(path)
  classes_only = not filled and not image_files.only_splits(path)
  if (nested or classes_only) and _has_any(path):
    roots, filled = {"all": path}, [path]
  sources.check_split(f"{path}/<split>/<class>/<file>", split, roots)
  root = roots[split]
  ids = [*_by_class(root)]
  if not ids:
    raise ValueError(
      f"No image in a folder of {root}. Expected {root}/<class>/<file>, "
      f"{_ENDINGS}."
    )
  if alone := sorted(filter(image_files.is_image, os.listdir(root))):
    logging.warning(
      "%s has images in no class's folder, which are left out: %s.",
      *(root, errors.some_of(alone, 9)),
    )
  classes = {name for root in filled for name in image_files.subfolders(root)}
  name, files = f"folder:{root}", {"image": ids}
  labels = _labelled(name, ids, classes)
  return FileSource(name=name, root=root, ids=ids, files=files, **labels)


def _by_class(root: str) -> Iterator[str]:
  """Yields <class>/<file> of the images below a folder, in order."""
  for name in image_files.subfolders(root):
    for file in image_files.images(os.path.join(root, name)):
      yield f"{name}/{file}"


def _has_any(root: str) -> bool:
  return any(_by_class(root))


def pairs(path: str, split: str) -> FileSource:
  """Opens images and their label maps, under the key `annotation`."""
  root = os.path.expanduser(path)
  there = image_files.subfolders(root)
  found = [
    (images, masks)
    for images, names in _PAIRS.items()
    for masks in names
    if {images, masks} <= {*there}
  ]
  if len(found) != 1:
    raise ValueError(
      f"{path} holds the folders {there}. Expected one of images and one of "
      "label maps: images beside annotations, labels or masks, or img_dir "
      "beside ann_dir."
    )
  folders = [os.path.join(root, folder) for folder in found[0]]
  splits = image_files.subfolders(folders[0])
  sources.check_split(f"{folders[0]}/<split>", split, splits)
  folders = [os.path.join(folder, split) for folder in folders]
  images, masks = (_by_stem(root, folder) for folder in folders)
  alone = [(images | masks)[x] for x in sorted(images.keys() ^ masks.keys())]
  if not images or alone:
    raise ValueError(
      f"Expected pairs of the same name in {folders[0]} ({len(images)} files) "
      f"and {folders[1]} ({len(masks)} files), {_ENDINGS}. Without a partner: "
      f"{', '.join(alone[:3])}, …."
    )
  ids, masks = ([paths[x] for x in sorted(images)] for paths in (images, masks))
  files = {"image": ids, "annotation": masks}
  name = f"pairs:{folders[0]}"
  return FileSource(name=name, root=root, ids=ids, files=files)


def _by_stem(root: str, folder: str) -> dict[str, str]:
  """Returns paths below `root` of a folder's images, by path without suffix."""
  found = {}
  for name in image_files.images(folder):
    stem, _ = os.path.splitext(name)
    path = os.path.relpath(os.path.join(folder, name), root)
    if stem in found:
      raise ValueError(
        f"In {root}, {found[stem]} and {path} have the same name. Expected "
        "one file for each."
      )
    found[stem] = path
  return found


def tar(path: str, split: str) -> FileSource:
  """Opens the archive path/split.tar, which is read in place.

  An image's class is the folder it is in directly, `…/<class>/<file>`. An
  archive within the archive is one class, as in ImageNet's training images;
  images in no folder, as in its validation archive, have no labels. The tables
  of contents of all splits are read, to number the classes.
  """
  root = os.path.expanduser(path)
  there = sorted(os.listdir(root))
  archives = [x for x in there if x.endswith(".tar") and x[0] != "."]
  if not archives:
    raise ValueError(
      f"{root} holds no .tar archive, but: {', '.join(there[:9])}. A "
      "compressed one has no random access: decompress it first."
    )
  sources.check_split(root, split, [x.removesuffix(".tar") for x in archives])
  archive = os.path.join(root, f"{split}.tar")
  ids, files = _contents(archive)
  if not ids:
    raise ValueError(
      f"No image in {archive}. Expected <class>/<file>, not hidden."
    )
  every = (_contents(os.path.join(root, x))[0] for x in archives)
  classes = {name.rpartition("/")[0] for names in every for name in names}
  name, labels = f"tar:{archive}", {}
  without = [x for x in ids if x.startswith("/")]
  if without and len(without) < len(ids):
    raise ValueError(
      f"{archive}: {without[0]} is in no folder, which would be its class, but "
      f"{len(ids) - len(without)} images are. Take it out, or the folders away."
    )
  if not without:
    labels = _labelled(name, ids, classes - {""})
  return FileSource(name=name, root=archive, ids=ids, files=files, **labels)


def _contents(path: str) -> tuple[list[str], dict[str, np.ndarray]]:
  """Returns <class>/<file> of an archive's images, and `FileSource.files`."""
  stat = os.stat(path)
  return _read_contents(path, stat.st_size, stat.st_mtime_ns)


@functools.cache
def _read_contents(path, size, _):
  with damage.reading(path), paths.open_regular(path) as file:
    try:
      found = sorted(_examples(file, 0, size))
    except tarfile.TarError as error:
      raise ValueError(
        f"{path} is no uncompressed tar archive, or damaged: {error}. All "
        "archives of the folder are read, to number the classes. A compressed "
        "one has no random access: decompress it first."
      ) from error
  images = [x for x in found if image_files.is_image(x[0])]
  captions = {x[-1]: x[1:3] for x in found if not image_files.is_image(x[0])}
  ids = [name for name, *_ in images]
  folders: dict[str, str] = {}
  for name, *_, stem in images:
    folder, within, _ = stem.partition(".tar/")
    folder = folder if within else os.path.dirname(stem)
    first = folders.setdefault(name.rpartition("/")[0], folder)
    if first != folder:
      logging.warning(
        "In %s, %s and %s are one class: the innermost folder's name.",
        *(path, first, folder),
      )
      break
  places = {"image": [place for _, *place, _ in images]}
  texts = [captions.get(stem) for *_, stem in images]
  if any(texts):
    if not all(texts):
      raise ValueError(
        f"{path}: {ids[texts.index(None)]} has no caption beside it, a file of "
        "the same name ending in .txt, but other images have."
      )
    places["text"] = texts
  return ids, {key: np.array(x, np.int64) for key, x in places.items()}


def _examples(
  file, begin: int, end: int
) -> Iterator[tuple[str, int, int, str]]:
  """Yields (class/file, offset, size, stem) of an archive's images and texts.

  The stem is the whole path without its suffix. The archive is at [begin, end)
  of the file.
  """
  file.seek(begin)
  with tarfile.open(fileobj=file, mode="r:") as archive:
    entries = {}  # by name: what is added again replaces what was there
    for entry in archive:
      # Python before 3.11.14 reads an entry of negative size again and again.
      if entry.issparse() or not 0 <= entry.size <= end - entry.offset_data:
        raise tarfile.ReadError(f"{entry.name} is sparse, or cut off")
      # Links could make archives within each other unfold to billions.
      if entry.name.endswith(".tar") and (entry.islnk() or entry.issym()):
        raise tarfile.ReadError(f"{entry.name} is a link to an archive")
      name = os.path.normpath(entry.name)
      # A file that is listed twice is stored as a link to itself.
      again = entry.islnk() and os.path.normpath(entry.linkname) == name
      if not (again and name in entries):
        entries[name] = entry
    _check_end(file, archive.offset, end)
  folders = {os.path.dirname(x) for x, e in entries.items() if not e.isdir()}
  root = os.path.commonpath([f"/{x}" for x in folders] or "/")
  below = {x: os.path.relpath(f"/{x}", root).split("/") for x in folders}
  dotted = lambda name: name.startswith(".") and name not in (".", "..")
  hidden = {x for x, names in below.items() if any(map(dotted, names))}
  for path, entry in entries.items():
    folder, base = os.path.split(path)
    if folder in hidden:
      continue  # hidden, as .ipynb_checkpoints
    is_text = base.lower().endswith(".txt") and base[0] != "."
    is_example = is_text or image_files.is_image(base)
    if not (is_example or base.endswith(".tar")):
      continue
    there = _follow(entry, entries)
    if not there.isfile():
      continue
    start, size = there.offset_data, there.size
    if is_example:
      stem = os.path.splitext(path)[0]
      yield f"{os.path.basename(folder)}/{base}", start, size, stem
    else:
      for name, *place, stem in _examples(file, start, start + size):
        name = f"{base[:-4]}/{os.path.basename(name)}"
        yield name, *place, f"{entry.name}/{stem}"


def _check_end(file, begin: int, end: int):
  """Raises ReadError unless an archive ends in empty blocks from `begin` on.

  tarfile mistakes a damaged header, or the end of the file, for such an end.
  """
  file.seek(begin)
  left = end - begin
  if left < tarfile.BLOCKSIZE:
    raise tarfile.ReadError("it has no end")
  while left > 0:
    blocks = file.read(min(left, tarfile.RECORDSIZE))
    if not blocks or blocks.strip(tarfile.NUL):
      raise tarfile.ReadError(f"no entry can be read at byte {end - left}")
    left -= len(blocks)


def _follow(entry: tarfile.TarInfo, by_name: Mapping[str, tarfile.TarInfo]):
  """Returns what a link in an archive leads to; anything else as it is."""
  for _ in range(32):
    if not (entry.islnk() or entry.issym()):
      return entry
    # Hard links are relative to the top, symbolic ones to their folder.
    folder = os.path.dirname(entry.name) if entry.issym() else ""
    target = os.path.normpath(os.path.join(folder, entry.linkname))
    if target not in by_name:
      raise tarfile.ReadError(f"{entry.name} is a link to {target}, not in it")
    entry = by_name[target]
  raise tarfile.ReadError(f"{entry.name} is a link to itself")
