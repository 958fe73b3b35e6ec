"""Which files are images, and which folders hold them.

Imports nothing but the standard library, so that configs can use it.
"""

import os
import pathlib

# Names of folders of splits; folders with other names there are classes.
SPLITS = (
  *("train", "training", "val", "valid", "validation", "test", "testing"),
)
# HEIC cannot be decoded: an error names such a file, which would otherwise be
# left out without a word.
SUFFIXES = (
  *(".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jpe", ".jpeg"),
  *(".jpg", ".png", ".tif", ".tiff", ".webp"),
)


def is_image(path: str) -> bool:
  """Returns whether a file's name is that of an image, and not hidden."""
  name = os.path.basename(path)
  return name.lower().endswith(SUFFIXES) and name[0] != "."


def images(folder: str) -> list[str]:
  """Returns the relative paths of images in a folder and its subfolders.

  Each folder's own images come first, in order. Linked folders are read once,
  and those that contain `folder` not at all.
  """
  found: list[str] = []
  seen = {str(parent) for parent in pathlib.Path(folder).resolve().parents}
  for where, inside, names in os.walk(folder, onerror=_fail, followlinks=True):
    real = os.path.realpath(where)
    is_new, below = real not in seen, os.path.relpath(where, folder)
    seen.add(real)
    inside[:] = sorted(x for x in inside if x[0] != ".") if is_new else []
    images = sorted(filter(is_image, names)) if is_new else []
    found += [os.path.normpath(os.path.join(below, name)) for name in images]
  return found


def _fail(error: OSError):
  raise error


def subfolders(folder: str) -> list[str]:
  """Returns the names of a folder's subfolders, sorted, without hidden ones."""
  return sorted(
    entry.name
    for entry in os.scandir(folder)
    if entry.is_dir() and entry.name[0] != "."
  )


def has_splits(folder: str) -> bool:
  """Returns whether a folder has a subfolder that is named like a split."""
  return any(name.lower() in SPLITS for name in subfolders(folder))


def only_splits(folder: str) -> bool:
  """Returns whether all subfolders with images are named like splits."""
  names = subfolders(folder)
  names = [name for name in names if images(os.path.join(folder, name))]
  return bool(names) and all(name.lower() in SPLITS for name in names)
