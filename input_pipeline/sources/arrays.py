"""Data held in memory: .npz files, scikit-learn's digits, glyphs."""

import functools
import importlib.util
import os
from collections.abc import Mapping, Sequence

import numpy as np

from dpn.input_pipeline import sources


class ArraySource(sources.Source):
  """Rows of arrays held in memory."""

  in_memory = True

  def __init__(
    self,
    name: str,
    columns: Mapping[str, np.ndarray],
    num_classes: Mapping[str, int] | None = None,
    class_names: Mapping[str, Sequence[str]] | None = None,
  ):
    """Takes columns of equal length; the rest is by label key."""
    self.name, self._columns = name, columns
    self._class_names = class_names or {}
    self._num_classes = num_classes or {}
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) != 1:
      raise ValueError(f"{name}: arrays differ in length: {lengths}.")

  def __len__(self):
    return len(next(iter(self._columns.values())))

  def __getitem__(self, index):
    return {key: column[index] for key, column in self._columns.items()}

  def num_classes(self, label_key):
    found = self._num_classes.get(label_key)
    return super().num_classes(label_key) if found is None else found

  def class_names(self, label_key):
    return self._class_names.get(label_key)


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
  with np.load(path, allow_pickle=False) as file:
    keys = [key.rpartition("/") for key in file.files]
    sources.check_split(path, split, {head for head, slash, _ in keys if slash})
    columns = {
      tail: file[f"{split}/{tail}"] for head, _, tail in keys if head == split
    }
    # Over all splits: a small one may lack the last class.
    labels = [
      int(file[f"{head}/label"].max())
      for head, _, tail in keys
      if tail == "label"
    ]
  counts = {"label": max(labels) + 1} if labels else {}
  return ArraySource(f"{path}:{split}", columns, counts)


@functools.cache
def _glyphs(split: str) -> ArraySource:
  from dpn.input_pipeline.sources import glyphs  # takes a second

  sources.check_split("glyphs", split, glyphs.SPLITS)
  columns, names = glyphs.split(split)
  names = {"label": names}
  return ArraySource(f"glyphs:{split}", columns, class_names=names)


def _digits(split: str) -> ArraySource:
  """Opens `train` or `test` (every fifth) of the bundled digits."""
  sources.check_split("digits", split, ("train", "test"))
  # (example, 64 values from 0 to 16 and the label). Importing scikit-learn to
  # read its file would take longer than all else that starts a run.
  folder = importlib.util.find_spec("sklearn").submodule_search_locations[0]
  path = os.path.join(folder, "datasets", "data", "digits.csv.gz")
  table = np.loadtxt(path, np.int32, delimiter=",")
  in_test = np.arange(len(table)) % 5 == 4
  table = table[in_test if split == "test" else ~in_test]
  images = np.round(table[:, :64].reshape(-1, 8, 8, 1) * (255 / 16))
  columns = {"image": images.astype(np.uint8), "label": table[:, 64].copy()}
  return ArraySource(f"digits:{split}", columns, {"label": 10})
