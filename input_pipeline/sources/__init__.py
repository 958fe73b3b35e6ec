"""Random-access data sources: what they are, and how one is opened.

`make({"name": …, "split": …})` opens one. Names:

- `imagenet2012`, `tfds:imagenet2012:5.1.0`, `clevr/config`: a data set prepared
  by TFDS, or by scripts.prepare_data, as ArrayRecord; see `tfds`.
- `folder:/path`: files at /path/<split>/<class>/<file>; labels number the class
  folders in alphabetical order.
- `tar:/path`: archives /path/<split>.tar, including ImageNet's; an image's
  class is its innermost folder.
- `pairs:/path`: images and label maps in parallel folders, as ADE20K's
  ADEChallengeData2016 (`training`, `validation`) unpacks; see `files`.
- `manifest:/path/file.csv` or `.jsonl`: one row per image; see `manifest`.
- `parquet:/path`: the layout of Hugging Face data sets; see `parquet`.
- `arrays:/path/file.npz`: arrays named `<split>/image`, `<split>/label`, ….
- `arrays:digits`: scikit-learn's 8 x 8 digits, 1,438 train and 359 test.
- `arrays:glyphs`: drawn letters with their Unicode names; see `glyphs`.
- `embedded:/path`: any of these, images replaced by embeddings; see `embedded`.
- `package.module:Name`: a class of your own that takes the name of a split, see
  docs/extending.md.

`splits` has the grammar of splits. Folders, archives and pairs are sorted, and
manifests and Parquet may be, so their slices are cut from a random order that
is always the same; it is also the order in which scripts.prepare_data writes.
`subset_seed` draws an order for the slices of any source: its first 1/16 is in
its first 1/8. Seed 0 draws the order above.

Encoded images stay bytes; the ops `decode` and `decode_labels` read them.
"""

import abc
import bisect
import contextlib
import itertools
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Required, TypedDict

import numpy as np

from dpn import damage, errors, registry, schema
from dpn.input_pipeline.sources import splits

# What opens a whole split, given the rest of the name and the split. Imported
# when needed: TFDS alone takes a second.
KINDS = {
  "arrays": "dpn.input_pipeline.sources.arrays:open_split",
  "embedded": "dpn.input_pipeline.sources.embedded:EmbeddedSource",
  "folder": "dpn.input_pipeline.sources.files:folder",
  "manifest": "dpn.input_pipeline.sources.manifest:manifest",
  "pairs": "dpn.input_pipeline.sources.files:pairs",
  "parquet": "dpn.input_pipeline.sources.parquet:ParquetSource",
  "tar": "dpn.input_pipeline.sources.files:tar",
  "tfds": "dpn.input_pipeline.sources.tfds:TfdsSource",
}


class Data(TypedDict, total=False):
  """How data are named, in a config's `data` and embeddings' `source.json`."""

  name: Required[str]
  split: str
  subset_seed: int | None
  data_dir: str | None


class Source(abc.ABC):
  """Examples by index, from 0; safe to share among threads and to pickle.

  Attributes:
    name: for messages.
    classes: by label key, the names of the classes, or only how many.
    in_memory: whether reading merely indexes arrays.
    may_be_sorted: whether the examples may be ordered by class, so that slices
      must be cut from a `shuffled` order.
  """

  name: str
  classes: Mapping[str, Sequence[str] | int] = {}
  in_memory: bool = False
  may_be_sorted: bool = False

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
    """Returns where a person finds example `index`, for messages."""
    return f"{self.name}, example {index}"

  def class_names(self, label_key: str) -> Sequence[str] | None:
    """Returns the names of `label_key`'s classes, None if they have none."""
    classes = self.classes.get(label_key)
    return None if isinstance(classes, int) else classes

  def num_classes(self, label_key: str) -> int | None:
    """Returns how many classes `label_key` has, None if it is not a label."""
    classes = self.class_names(label_key)
    return self.classes.get(label_key) if classes is None else len(classes)


def make(data: Mapping[str, Any], *, own_classes: bool = True) -> Source:
  """Returns the source a config's `data` describes.

  Args:
    data: `name` and `split`, see the module; optionally `subset_seed`, and for
      TFDS `data_dir`.
    own_classes: whether the name may be an import path. Not so if it comes from
      a file: reading data must not run code.

  Raises:
    ValueError, OSError: no such data, no such split, or nothing in it.
  """
  if "name" not in data or "split" not in data:
    raise ValueError(f"data needs a name and a split, got {dict(data)}.")
  schema.check("data", "", data, Data)
  _allow_open_files()
  for key in data:
    errors.check_known("key of data", key, Data.__annotations__)
  name, options = data["name"], {}
  kind, rest = kind_of(name)
  if not (kind or own_classes):
    raise ValueError(
      f"data.name={name!r} is a class of your own. Here, it must be one of "
      f"{', '.join(KINDS)}."
    )
  if data.get("data_dir") is not None:
    if kind != "tfds":
      raise ValueError(f"data_dir is for TFDS; {name!r} carries its own path.")
    options["data_dir"] = data["data_dir"]
  slices = []
  for part in splits.parse(data["split"]):
    try:
      whole = _open(kind, rest, part.split, **options)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as e:
      raise type(e)(f"data.name={name!r}: {e}. Check the path.") from e
    slices.append((whole, *part.bounds(len(whole))))
  return join(slices, data.get("subset_seed"))


def _allow_open_files():
  """Lifts the soft limit: files stay open, as 1,024 of ImageNet by TFDS."""
  with contextlib.suppress(ImportError, OSError, ValueError):
    import resource  # not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    wanted = 10_240 if hard == endless else min(hard, 65_536)  # macOS's most
    if soft != endless and soft < wanted:
      resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def named(name: str, data_dir: str | None) -> dict[str, Any]:
  """Returns a config's `data` without the split; only TFDS has `data_dir`."""
  data = {"name": name}
  return data | {"data_dir": data_dir} if kind_of(name)[0] == "tfds" else data


def kind_of(name: str) -> tuple[str, str]:
  """Returns one of `KINDS` and what follows it, or "" for an import path."""
  kind, _, rest = name.partition(":")
  if not rest and name.startswith(("/", "~", ".")):
    raise ValueError(
      f"data.name={name!r} does not say what kind of data is at that path. "
      f"Expected one of {', '.join(KINDS)} before it, as in 'folder:{name}'."
    )
  if name.endswith(":"):
    raise ValueError(f"data.name={name!r} has nothing behind its colon.")
  if not rest or re.fullmatch(r"\d+\.\d+\.\d+", rest):
    return "tfds", name
  if kind not in KINDS and not rest.isidentifier():
    raise ValueError(
      f"{errors.unknown('kind of data source', kind, KINDS)} Or an import path "
      "of your own, 'package.module:Name'."
    )
  return (kind, rest) if kind in KINDS else ("", name)


def _open(kind: str, rest: str, split: str, **options) -> Source:
  """Returns a whole split; the first two arguments are from `kind_of`."""
  if kind:
    opens = registry.import_path("data.name", KINDS[kind])
    return opens(rest, split, **options)
  cls = registry.import_path("data.name", rest)
  if not (isinstance(cls, type) and issubclass(cls, Source)):
    raise ValueError(
      f"data.name={rest!r} is not a subclass of input_pipeline.sources.Source."
    )
  try:
    source = cls(split)
  except KeyError as e:
    if e.args != (split,):
      raise
    raise ValueError(f"data.name={rest!r} has no split {e}.") from e
  if not hasattr(source, "name"):
    source.name = f"{rest}:{split}"
  return source


def check_split(where: str, split: str, known: Collection[str]):
  """Raises ValueError if `split` is not among those known."""
  if split not in known:
    raise ValueError(f"In {where}: {errors.unknown('split', split, known)}")


def shuffled(size: int, seed: int = 0) -> np.ndarray:
  """Returns 0, …, size - 1 in random order, the same on every machine."""
  return np.random.default_rng(seed).permutation(size)


def checksum(
  source: Source, start: int = 0, *, keys: Collection = (), skip: bool = False
) -> int:
  """Returns `start` continued by a CRC-32 of eight examples, all or some keys.

  `skip` passes over examples that cannot be read, as when a file is missing.
  """
  for index in np.linspace(0, len(source) - 1, 8).astype(int).tolist():
    try:
      example = source[index]
    except Exception as error:
      if not skip or damage.is_shortage(error):
        raise
      example = {}
    for key in sorted(keys or example):
      if isinstance(value := example[key], np.ndarray):
        has_object = value.dtype.hasobject  # of which these are addresses
        value = repr(value.tolist()) if has_object else value.tobytes()
      data = value if isinstance(value, bytes) else repr(value).encode()
      start = zlib.crc32(key.encode() + data, start)
  return start


def join(
  slices: Sequence[tuple[Source, int, int]], seed: int | None = None
) -> Source:
  """Returns the examples [start, stop) of each source, one after the other.

  They follow the source's order; a random one with `seed` or `may_be_sorted`.
  """
  source, start, stop = slices[0]
  whole = len(slices) == 1 and stop - start == len(source)
  return source if whole else _Slices(slices, seed)


class _Slices(Source):
  """Parts of other sources, one after the other."""

  def __init__(self, slices: Sequence[tuple[Source, int, int]], seed):
    names, self._slices = [], []
    for part, start, stop in slices:
      rows, name = range(len(part)), part.name
      if stop - start < len(part):
        name += f"[{start}:{stop}]"
        if seed is not None or part.may_be_sorted:
          name += " at random"
          rows = shuffled(len(part), seed or 0)
      names.append(name)
      self._slices.append((part, rows[start:stop]))
    self.name = " + ".join(names)
    self.in_memory = all(part.in_memory for part, _ in self._slices)
    self._ends = [*itertools.accumulate(len(rows) for _, rows in self._slices)]

  def num_classes(self, label_key):
    self.class_names(label_key)  # raises if the parts' classes differ
    return self._slices[0][0].num_classes(label_key)

  def class_names(self, label_key):
    first, *others = [x.class_names(label_key) for x, _ in self._slices]
    if any([*(names or ())] != [*(first or ())] for names in others):
      raise ValueError(
        f"{self.name}: the parts have other classes, so equal labels would not "
        "mean the same."
      )
    return first

  def _locate(self, index):
    """Returns the number of the part that holds an example, and its index."""
    part = bisect.bisect_right(self._ends, index)
    _, rows = self._slices[part]
    return part, int(rows[index - self._ends[part] + len(rows)])

  def __len__(self):
    return self._ends[-1]

  def __getitem__(self, index):
    part, index = self._locate(index)
    return self._slices[part][0][index]

  def read(self, indices):
    """Returns several examples at once: one read per part, not per example."""
    located = [self._locate(index) for index in indices]
    examples = [None] * len(located)
    for part in {part for part, _ in located}:
      places = [i for i, (other, _) in enumerate(located) if other == part]
      rows = [located[i][1] for i in places]
      found = self._slices[part][0].read(rows)
      for i, example in zip(places, found, strict=True):
        examples[i] = example
    return examples

  def describe(self, index):
    part, index = self._locate(index)
    return self._slices[part][0].describe(index)
