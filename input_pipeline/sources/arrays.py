"""Data held in memory: .npz files, scikit-learn's digits, glyphs."""

import functools
import importlib.util
import os
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging

from dpn import damage
from dpn.input_pipeline import sources


class ArraySource(sources.Source):
  """Rows of arrays held in memory."""

  in_memory = True

  def __init__(
    self,
    name: str,
    columns: Mapping[str, np.ndarray],
    classes: Mapping[str, Sequence[str] | int] | None = None,
    may_be_sorted: bool = False,
  ):
    """Takes columns of equal length; the rest is as in `sources.Source`."""
    self.name, self._columns, self.classes = name, columns, classes or {}
    self.may_be_sorted = may_be_sorted
    lengths = {key: (*np.shape(x), -1)[0] for key, x in columns.items()}
    if len(set(lengths.values())) != 1 or -1 in lengths.values():
      raise ValueError(
        f"{name}: arrays differ in length or have none: {lengths}."
      )

  def __len__(self):
    return len(next(iter(self._columns.values())))

  def __getitem__(self, index):
    return {key: column[index] for key, column in self._columns.items()}


def open_split(name: str, split: str) -> ArraySource:
  """Opens a split of `digits`, `glyphs`, or of the .npz file at `name`.

  Raises:
    ValueError, OSError: there is no such file or split, or its arrays do not
      fit.
  """
  if name == "digits":
    return _digits(split)
  if name == "glyphs":
    return _glyphs(split)
  path = os.path.expanduser(name)
  with damage.reading(path), damage.open_npz(path, times=200) as file:
    known = {key.partition("/")[0] for key in file.files if "/" in key}
    if not known:
      raise ValueError(
        f"{path} holds the arrays {', '.join(file.files)}. Expected names with "
        "the split in front, such as train/image and train/label."
      )
    sources.check_split(path, split, known)
    names = [key for key in file.files if key.startswith(f"{split}/")]
    try:
      columns = {key.removeprefix(f"{split}/"): file[key] for key in names}
      # From all splits, as a small one may lack the last class.
      labels = {key: file[key] for key in file.files if key.endswith("/label")}
    except ValueError as e:
      raise ValueError(f"{path}: {e}. Expected numbers or text.") from e
  for key, column in labels.items():
    _check_labels(f"{path}: {key}", column)
  if "image" in columns:
    _check_images(f"{path}: {split}/image", columns["image"])
  counts = [int(column.max(initial=0)) + 1 for column in labels.values()]
  classes = {"label": max(counts)} if counts else {}
  return ArraySource(f"{path}:{split}", columns, classes, may_be_sorted=True)


def _check_labels(name: str, labels: np.ndarray):
  """Raises ValueError for labels, not label maps, that `onehot` cannot read."""
  if labels.ndim < 3 and (
    labels.dtype.kind not in "iu"
    or labels.max(initial=0) >= 2**31
    or (labels.ndim == 2 and labels.shape[1] > 1 and _is_one_hot(labels))
  ):
    raise ValueError(
      f"{name} is {labels.dtype} of shape {labels.shape}. Expected integers "
      "from 0, below 2^31, (examples,): take argmax(-1) of one-hot vectors, "
      "np.unique(names, return_inverse=True)[1] of names, and another key than "
      "label for anything else."
    )


def _is_one_hot(labels: np.ndarray) -> bool:
  in_row = labels.min(initial=0) >= 0 and (labels.sum(axis=1) == 1).all()
  return bool(labels.size and in_row)


def _check_images(name: str, images: np.ndarray):
  """Raises ValueError for images that would be misread silently."""
  got = f"{name} is {images.dtype} of shape {images.shape}"
  if images.dtype.kind not in "fS" and images.dtype != np.uint8:
    raise ValueError(f"{got}. Expected uint8, from 0 to 255, or floats.")
  if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] > 4:
    raise ValueError(
      f"{got}. Expected (examples, rows, cols, channels): take np.moveaxis("
      "images, 1, -1)."
    )
  is_float = images.dtype.kind == "f" and images.ndim > 2 and images.size
  if is_float and images.min() >= 0 and images.max() <= 1:
    logging.warning(
      "%s, from 0 to 1. value_range and vgg_value_range expect 0 to 255; here, "
      "write value_range(-1, 1, 0, 1).",
      got,
    )


@functools.cache
def _glyphs(split: str) -> ArraySource:
  from dpn.input_pipeline.sources import glyphs  # takes a second

  sources.check_split("glyphs", split, glyphs.SPLITS)
  columns, names = glyphs.split(split)
  name, classes = f"glyphs:{split}", {"label": names}
  return ArraySource(name, columns, classes, may_be_sorted=True)


def _digits(split: str) -> ArraySource:
  """Opens `train` or `test` (every fifth) of the bundled digits."""
  sources.check_split("digits", split, ("train", "test"))
  # A row has 64 values from 0 to 16 and the label. Importing scikit-learn to
  # read its file would take longer than anything else at a run's start.
  folder = importlib.util.find_spec("sklearn").submodule_search_locations[0]
  path = os.path.join(folder, "datasets", "data", "digits.csv.gz")
  table = np.loadtxt(path, np.int32, delimiter=",")
  in_test = np.arange(len(table)) % 5 == 4
  table = table[in_test if split == "test" else ~in_test]
  images = np.round(table[:, :64].reshape(-1, 8, 8, 1) * (255 / 16))
  columns = {"image": images.astype(np.uint8), "label": table[:, 64].copy()}
  return ArraySource(f"digits:{split}", columns, {"label": 10})
