"""Sets of photographs: splits by hash, duplicates, checksums, shrinking."""

import hashlib

import cv2
import numpy as np
import pytest

from dpn.scripts import photo_sets
from dpn.scripts.photo_sets import Photo


def test_identical_files_are_kept_once_and_never_with_two_labels():
  h = [f"{n:064x}" for n in (5, 5, 25, 25, 99, 19, 29, 30)]
  labels = [0, 0, 1, 2, 3, 0, 0, 0]
  photos = [Photo(str(i), label, (20, 10)) for i, label in enumerate(labels)]
  # The hash modulo 100: below 20 test, below 30 minival.
  expected = {"test": [0, 5], "minival": [6], "train": [7, 4]}
  assert photo_sets.split(photos, h) == expected
  splits = ("train", "test", "train")
  given = [Photo(str(i), 0, split) for i, split in enumerate(splits)]
  found = photo_sets.split(given, [h[0], h[0], h[2]])
  assert found == {"test": [1], "minival": [], "train": [2]}


def _scenes(root):
  """Writes 60 images of the grey 4 * i, and their classes i % 6."""
  folder = "train-scene classification"
  rows = [f"{i:02}.jpg,{i % 6}\n" for i in range(60)]
  lines = [_image(root, f"{folder}/train/{i:02}.jpg", i) for i in range(60)]
  (root / folder / "train.csv").write_text("image_name,label\n" + "".join(rows))
  return lines


def _tiny_imagenet(root):
  """Writes as many, of six folders; the last twelve are held out."""
  folder, rows = "tiny-imagenet-200", []
  names = [f"train/n{i % 6}/images/n{i % 6}_{i:02}.JPEG" for i in range(48)]
  for i in range(48, 60):
    names.append(f"val/images/val_{i}.JPEG")
    rows.append(f"val_{i}.JPEG\tn{i % 6}\t0\t0\t62\t62\n")
  lines = [_image(root, f"{folder}/{name}", i) for i, name in enumerate(names)]
  (root / folder / "val/val_annotations.txt").write_text("".join(rows))
  return sorted(lines, key=lambda line: line.split("  ")[1])


def _image(root, name, i):  # columns 26 to 153 remain of 180
  image = np.full((150, 180, 3), 4 * i, np.uint8)
  data = cv2.imencode(".png", image)[1].tobytes()
  (root / name).parent.mkdir(parents=True, exist_ok=True)
  (root / name).write_bytes(data)
  return f"{hashlib.sha256(data).hexdigest()}  {name}\n"


@pytest.mark.parametrize(
  ("name", "make", "side"),
  [("scenes", _scenes, 128), ("tiny_imagenet", _tiny_imagenet, 64)],
)
def test_sets_are_written_from_a_checkout_and_checked(
  name, make, side, tmp_path, monkeypatch
):
  lines = make(tmp_path)
  with pytest.raises(SystemExit, match="60 photographs with the checksum"):
    photo_sets.main([name, str(tmp_path), str(tmp_path)])
  known = photo_sets.SETS[name]
  whole = hashlib.sha256("".join(lines).encode()).hexdigest()
  monkeypatch.setitem(photo_sets.SETS, name, known._replace(checksum=whole))
  photo_sets.main([name, str(tmp_path), str(tmp_path)])
  with np.load(tmp_path / f"{name}.npz") as file:
    counts = {s: len(file[f"{s}/label"]) for s in photo_sets.SPLITS}
    assert sum(counts.values()) == 60
    assert counts["train"] > counts["test"] > 0
    for split in photo_sets.SPLITS:
      images, labels = file[f"{split}/image"], file[f"{split}/label"]
      assert images.shape[1:] == (side, side, 3)
      np.testing.assert_array_equal(images[:, 5, 9, 0] // 4 % 6, labels)
