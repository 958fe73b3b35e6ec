"""Writes sets of labelled photographs, from public repositories, as arrays.

  git clone https://github.com/thunderInfy/imagenette
  git -C imagenette checkout b850f030ff0701c36a4adc8b928ea9483a46915b
  python -m scripts.photo_sets imagenette imagenette data

writes data/imagenette.npz, which configs/studies/photos.py trains on: uint8
`<split>/image` (n, 128, 128, 3) and `<split>/label` for the splits train,
minival (to choose on) and test. docs/results/photos_data.md lists the sets, and
what the command prints for each.

Photographs are shrunk until their shorter side has 128 pixels, by averaging,
and the middle is cut out; those of tiny_imagenet have 64, and keep them. Where
a repository has no split, the file's SHA-256 decides, so identical files are
never in two parts. Of identical files one is kept, in test before minival, and
in minival before train; if their labels differ, none is. Each split is sorted
by SHA-256, so `test[:20%]` is a random sample.
"""

import collections
import csv
import hashlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dpn import atomic, damage, errors, paths
from dpn.input_pipeline import pp
from dpn.scripts.results import output

SHRINK = "decode|resize_small({side})|central_crop({side})"
SPLITS = ("test", "minival", "train")


class Photo(NamedTuple):
  """A file below the repository, its class, and its part or parts by hash."""

  path: str
  label: int
  # A split; or the percentages of test and minival, decided by the file's hash.
  part: str | tuple[int, int]


class PhotoSet(NamedTuple):
  """A set: where it is, which files it has, and their checksum."""

  repository: str
  commit: str
  photos: Callable[[pathlib.Path], Iterator[Photo]]
  checksum: str  # that `checksum` must return
  side: int = 128  # of the arrays, in pixels


def _imagenette(root):
  classes = sorted(path.name for path in root.glob("train/*"))
  for folder, part in (("train", (0, 10)), ("val", "test")):
    for path in sorted(root.glob(f"{folder}/*/*")):
      name = path.relative_to(root).as_posix()
      yield Photo(name, classes.index(path.parent.name), part)


def _scenes(root):
  with open(root / "train-scene classification/train.csv") as file:
    for row in csv.DictReader(file):
      name = f"train-scene classification/train/{row['image_name']}"
      yield Photo(name, int(row["label"]), (20, 10))


def _grocery(root):
  parts = {"train": "train", "val": "minival", "test": "test"}
  for name, part in parts.items():
    for line in (root / f"dataset/{name}.txt").read_text().splitlines():
      path, label, _ = line.split(", ")  # _ is the coarse class
      yield Photo(f"dataset/{path}", int(label), part)


def _tiny_imagenet(root):
  root, held_out = root / "tiny-imagenet-200", "val/val_annotations.txt"
  classes = sorted(path.name for path in root.glob("train/*"))
  for path in sorted(root.glob("train/*/images/*")):
    name = path.relative_to(root.parent).as_posix()
    yield Photo(name, classes.index(path.parts[-3]), (0, 5))
  for line in (root / held_out).read_text().splitlines():
    name, label, *_ = line.split("\t")  # and a box
    name = f"{root.name}/val/images/{name}"
    yield Photo(name, classes.index(label), "test")


SETS = {
  "imagenette": PhotoSet(
    "thunderInfy/imagenette",
    "b850f030ff0701c36a4adc8b928ea9483a46915b",
    _imagenette,
    "10a94830db05b30a17123cb472a51dc4892437ac229abd072409609e2cbc69aa",
  ),
  "scenes": PhotoSet(
    "ndb796/Scene-Classification-Dataset",
    "e38f98b5d70f987ce65ccd0977ca28f48fb9897a",
    _scenes,
    "f6c9cfb1aabe66f38c3b3415f21e3665847b518e9fffa714cefa44d6d0e990c5",
  ),
  "grocery": PhotoSet(
    "marcusklasson/GroceryStoreDataset",
    "fc80ba90f803d79d0383df52c5a4ac5de99ff6fc",
    _grocery,
    "fd09f1bd858814988f20aa9d126071dc02487756c90a0dfaae7f4565b6ccbef9",
  ),
  "tiny_imagenet": PhotoSet(
    "seshuad/IMagenet",
    "153dbc161ab7942a12c99515e80ef6454dd06693",
    _tiny_imagenet,
    "ba1dbe979d94dd66c297652995f3b438339b663167d57cc230e8a8c161af85e3",
    side=64,
  ),
}


def checksum(photos: Sequence[Photo], hashes: Sequence[str]) -> str:
  """Returns the SHA-256 of sha256sum's lines, sorted by path."""
  lines = sorted((p.path, h) for p, h in zip(photos, hashes, strict=True))
  text = "".join(f"{digest}  {path}\n" for path, digest in lines)
  return hashlib.sha256(text.encode()).hexdigest()


def split(
  photos: Sequence[Photo], hashes: Sequence[str]
) -> dict[str, list[int]]:
  """Returns the photographs of each split, by index, sorted by hash."""
  labels = collections.defaultdict(set)
  for photo, digest in zip(photos, hashes, strict=True):
    labels[digest].add(photo.label)
  found = {name: {} for name in SPLITS}
  for i, (photo, digest) in enumerate(zip(photos, hashes, strict=True)):
    if len(labels[digest]) == 1:
      found[_part(photo, digest)].setdefault(digest, i)
  seen, result = set(), {}
  for name, indices in found.items():
    result[name] = [i for d, i in sorted(indices.items()) if d not in seen]
    seen |= indices.keys()
  return result


def _part(photo, digest):
  if isinstance(photo.part, str):
    return photo.part
  test, minival = photo.part
  percent = int(digest, 16) % 100
  return SPLITS[(percent >= test) + (percent >= test + minival)]


def write(name: str, root: pathlib.Path, out: pathlib.Path):
  """Writes OUT/NAME.npz and says what is in it.

  Raises:
    ValueError, OSError: the folder is not that commit of the repository.
  """
  errors.check_known("set of photographs", name, SETS)
  known = SETS[name]
  with damage.reading(str(root)):
    photos = list(known.photos(root))
  digest = lambda photo: hashlib.sha256(paths.read(root / photo.path))
  hashes = [digest(photo).hexdigest() for photo in photos]
  if (found := checksum(photos, hashes)) != known.checksum:
    raise ValueError(
      f"{root} holds {len(photos)} photographs with the checksum {found}, "
      f"expected {known.checksum}: check out commit {known.commit} of "
      f"https://github.com/{known.repository}"
    )
  shrink = pp.make(SHRINK.format(side=known.side))
  rng = np.random.default_rng(0)
  image = lambda i: {"image": paths.read(root / photos[i].path)}
  arrays = {}
  for part, indices in split(photos, hashes).items():
    images = [shrink(image(i), rng)["image"] for i in indices]
    arrays[f"{part}/image"] = np.stack(images)
    arrays[f"{part}/label"] = np.int32([photos[i].label for i in indices])
  out.mkdir(parents=True, exist_ok=True)
  with atomic.replacing(str(out / f"{name}.npz")) as file:
    np.savez(file, **arrays)
  pixels = arrays["train/image"].reshape(-1, 3)  # std() would copy it as floats
  kw = {"dtype": np.float64, "casting": "unsafe"}
  square = np.einsum("nc,nc->c", pixels, pixels, **kw) / len(pixels)
  std = np.sqrt(square - pixels.mean(0) ** 2)
  counts = {part: len(arrays[f"{part}/label"]) for part in SPLITS}
  removed = len(photos) - sum(counts.values())
  output.say(
    f"{out / name}.npz: {counts}, {removed} duplicates removed of "
    f"{len(photos)} photographs with the checksum {found}.\n"
    f"train: mean {pixels.mean(0).round(2)}, deviation "
    f"{std.round(2)} of 255"
  )


def main(argv: Sequence[str] | None = None):
  parser = output.parser(__doc__)
  parser.add_argument("name", help=f"one of {', '.join(SETS)}")
  parser.add_argument("root", type=pathlib.Path, help="its checkout")
  parser.add_argument("out", type=pathlib.Path, help="folder to write to")
  args = parser.parse_args(argv)
  with output.errors_in_a_line():
    write(args.name, args.root, args.out)


if __name__ == "__main__":
  main()
