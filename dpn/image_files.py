"""Which files are images, and which folders hold them.

Imports nothing but the standard library, so that configs can use it.
"""

import os

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")


def is_image(path: str) -> bool:
  """Returns whether a file's name is that of an image, and not hidden."""
  name = os.path.basename(path)
  return name.lower().endswith(SUFFIXES) and name[0] != "."


def images(folder: str) -> list[str]:
  """Returns the names of the images in a folder, sorted."""
  return sorted(filter(is_image, os.listdir(folder)))


def subfolders(folder: str) -> list[str]:
  """Returns the names of the folders in a folder, sorted, hidden ones aside."""
  return sorted(
    entry.name
    for entry in os.scandir(folder)
    if entry.is_dir() and entry.name[0] != "."
  )
