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
  given = [
    Photo("a", 0, "train"),
    Photo("b", 0, "test"),
    Photo("c", 0, "train"),
  ]
  found = photo_sets.split(given, [h[0], h[0], h[2]])
  assert found == {"test": [1], "minival": [], "train": [2]}


def test_scenes_are_written_from_a_checkout_and_checked(tmp_path, monkeypatch):
  folder = tmp_path / "train-scene classification"
  (folder / "train").mkdir(parents=True)
  rows, lines = ["image_name,label"], []
  for i in range(60):
    image = np.full((150, 180, 3), 4 * i, np.uint8)  # columns 26 to 153 remain
    data = cv2.imencode(".png", image)[1].tobytes()
    (folder / f"train/{i:02}.jpg").write_bytes(data)
    rows.append(f"{i:02}.jpg,{i % 6}")
    digest = hashlib.sha256(data).hexdigest()
    lines.append(f"{digest}  train-scene classification/train/{i:02}.jpg\n")
  (folder / "train.csv").write_text("\n".join(rows))
  with pytest.raises(SystemExit, match="60 photographs with the checksum"):
    photo_sets.main(["scenes", str(tmp_path), str(tmp_path)])
  known = photo_sets.SETS["scenes"]
  whole = hashlib.sha256("".join(lines).encode()).hexdigest()
  monkeypatch.setitem(photo_sets.SETS, "scenes", known._replace(checksum=whole))
  photo_sets.main(["scenes", str(tmp_path), str(tmp_path)])
  with np.load(tmp_path / "scenes.npz") as file:
    counts = {s: len(file[f"{s}/label"]) for s in photo_sets.SPLITS}
    assert sum(counts.values()) == 60
    assert counts["train"] > counts["test"] > 0
    for split in photo_sets.SPLITS:
      images, labels = file[f"{split}/image"], file[f"{split}/label"]
      assert images.shape[1:] == (128, 128, 3)
      np.testing.assert_array_equal(images[:, 5, 9, 0] // 4 % 6, labels)
