"""Writes small real data as arrays: digits and photos of 32×32 pixels.

  python -m scripts.mini_data runs/mini/data

digits.npz: the 1,797 scanned digits of scikit-learn. photos.npz: 1,200 tiles of
its two photographs; the label says which one a tile is from. Both are in
colour, with 1,000 images to train on and the others to test.
"""

import pathlib
from collections.abc import Sequence

import cv2
import einops
import numpy as np
import sklearn

from dpn import atomic
from dpn.scripts.results import output

SIDE = 32  # pixels
TRAIN = 1000
_TILE = 21  # pixels, of a photograph: 600 tiles each


def digits() -> tuple[np.ndarray, np.ndarray]:
  """Returns uint8 images (1797, 32, 32, 3) and labels from 0 to 9."""
  data = sklearn.datasets.load_digits()
  images = np.round(data.images * (255 / 16)).astype(np.uint8)
  return np.repeat(_enlarge(images)[..., None], 3, axis=-1), data.target


def photos() -> tuple[np.ndarray, np.ndarray]:
  """Returns uint8 images (1200, 32, 32, 3) and labels 0 and 1."""
  photos = np.stack(sklearn.datasets.load_sample_images().images)
  rows, cols = (length // _TILE for length in photos.shape[1:3])
  photos = photos[:, : rows * _TILE, : cols * _TILE]
  tiles = einops.rearrange(
    photos, "n (i h) (j w) c -> (n i j) h w c", h=_TILE, w=_TILE
  )
  return _enlarge(tiles), np.repeat([0, 1], rows * cols)


def _enlarge(images):
  resize = lambda x: cv2.resize(x, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
  return np.stack([*map(resize, images)])


def main(argv: Sequence[str] | None = None):
  parser = output.parser(__doc__)
  parser.add_argument("folder", type=pathlib.Path, help="folder to write to")
  folder = parser.parse_args(argv).folder
  with output.errors_in_a_line(), output.ensure_folder(str(folder)):
    write(folder)


def write(folder: pathlib.Path):
  """Writes digits.npz and photos.npz, unless they are there."""
  for make in (digits, photos):
    path = folder / f"{make.__name__}.npz"
    if not path.exists():
      images, labels = make()
      order = np.random.default_rng(0).permutation(len(images))
      arrays = {}
      for split, rows in (("train", order[:TRAIN]), ("test", order[TRAIN:])):
        arrays[f"{split}/image"] = images[rows]
        arrays[f"{split}/label"] = labels[rows].astype(np.int32)
      with atomic.replacing(str(path)) as file:
        np.savez_compressed(file, **arrays)
      print(f"Wrote {path}.")


if __name__ == "__main__":
  main()
