"""Random-access data sources: what they are, and how one is opened.

`make({"name": …, "split": …})` opens one. Names:

- `imagenet2012`, `tfds:imagenet2012:5.1.0`, `clevr/config`: a data set prepared
  by TFDS, or by scripts.prepare_data, as ArrayRecord; see `tfds`.
- `folder:/path`: files at /path/<split>/<class>/<file>; labels number the class
  folders in alphabetical order.
- `tar:/path`: the same in archives /path/<split>.tar, ImageNet's too.
- `manifest:/path/file.csv` or `.jsonl`: one row per image; see `files`.
- `parquet:/path`: the layout of Hugging Face data sets; see `parquet`.
- `arrays:/path/file.npz`: arrays named `<split>/image`, `<split>/label`, ….
- `arrays:digits`: scikit-learn's 8 x 8 digits, 1,438 train and 359 test.
- `custom:package.module:Name`: your own.

Splits follow `splits`. Encoded images stay bytes; the op `decode` reads them.

A source of your own is a class, importable from where you start, that takes the
name of a split; `custom:shapes:Squares` finds this one in shapes.py:

    import numpy as np

    from input_pipeline import sources


    class Squares(sources.Source):  # The label is the side in pixels.
      def __init__(self, split):
        self.name = f"squares:{split}"
        self._size = {"train": 1000, "test": 100}[split]

      def __len__(self):
        return self._size

      def __getitem__(self, index):
        side = index % 10
        image = np.zeros((16, 16, 3), np.uint8)
        image[:side, :side] = 255
        return {"image": image, "label": side}

      def num_classes(self, label_key):
        return 10 if label_key == "label" else None
"""

import abc
import bisect
import functools
import importlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dpn import errors
from input_pipeline.sources import splits

_KINDS = (
  "arrays",
  "custom",
  "folder",
  "manifest",
  "parquet",
  "tar",
  "tfds",
)


class Source(abc.ABC):
  """Examples by index, from 0; safe to share among threads and to pickle.

  Attributes:
    name: what error messages call it.
    in_memory: whether reading is but indexing of arrays.
  """

  name: str
  in_memory: bool = False

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

  def class_names(self, label_key: str) -> Sequence[str] | None:
    """Returns the names of those classes, None if they have none."""
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
      raise ValueError(errors.unknown("key of data", key, known))
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
  return concatenate(parts)


def _opener(name: str, data_dir: str | None):
  """Returns the function that opens a whole split of `name`."""
  kind, colon, rest = name.partition(":")
  if not colon or re.fullmatch(r"\d+\.\d+\.\d+", rest):
    kind, rest = "tfds", name
  if kind not in _KINDS:
    raise ValueError(errors.unknown("kind of data source", kind, _KINDS))
  # Deferred: each is needed by its own data only, and TFDS takes a second.
  if kind == "tfds":
    from input_pipeline.sources import tfds

    return functools.partial(tfds.open_split, rest, data_dir)
  if data_dir is not None:
    raise ValueError(f"data_dir is for TFDS; {name!r} carries its own path.")
  if kind == "custom":
    return functools.partial(_custom, rest)
  if kind == "parquet":
    from input_pipeline.sources import parquet

    return functools.partial(parquet.ParquetSource, rest)
  if kind == "arrays":
    from input_pipeline.sources import arrays

    return functools.partial(arrays.open_split, rest)
  from input_pipeline.sources import files

  return functools.partial(files.OPEN[kind], rest)


def _custom(name: str, split: str) -> Source:
  """Opens a split by a class, or a function, of the user's."""
  module, colon, attribute = name.partition(":")
  if not colon:
    raise ValueError(
      f"Cannot read 'custom:{name}'. Expected custom:package.module:Name."
    )
  try:
    module = importlib.import_module(module)
  except ModuleNotFoundError as error:
    raise ValueError(
      f"'custom:{name}': {error}. Start from its folder, or install it."
    ) from error
  if not hasattr(module, attribute):
    raise ValueError(
      f"In {module.__name__}: "
      + errors.unknown("name", attribute, vars(module))
    )
  source = getattr(module, attribute)(split)
  if not isinstance(source, Source):
    raise ValueError(
      f"'custom:{name}' gave {type(source).__name__}, expected a subclass of "
      "input_pipeline.sources.Source."
    )
  return source


def concatenate(parts: Sequence[Source]) -> Source:
  """Returns several sources, one after the other, as one."""
  return parts[0] if len(parts) == 1 else _Concatenation(parts)


class _Range(Source):
  """Examples [start, stop) of another source."""

  def __init__(self, source: Source, start: int, stop: int):
    self.name = f"{source.name}[{start}:{stop}]"
    self.in_memory = source.in_memory
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

  def class_names(self, label_key):
    return self._source.class_names(label_key)


class _Concatenation(Source):
  """Several sources, one after the other."""

  def __init__(self, parts: Sequence[Source]):
    self.name = " + ".join(part.name for part in parts)
    self.in_memory = all(part.in_memory for part in parts)
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

  def read(self, indices):
    """Returns several examples: one read per part, not per example."""
    located = [self._locate(index) for index in indices]
    examples = [None] * len(located)
    for part in self._parts:
      rows = [row for row, (source, _) in enumerate(located) if source is part]
      if rows:
        found = part.read([located[row][1] for row in rows])
        for row, example in zip(rows, found, strict=True):
          examples[row] = example
    return examples

  def describe(self, index):
    source, index = self._locate(index)
    return source.describe(index)

  def num_classes(self, label_key):
    return self._parts[0].num_classes(label_key)

  def class_names(self, label_key):
    return self._parts[0].class_names(label_key)
