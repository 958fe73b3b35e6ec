"""The small data are real, balanced and cut as they should be."""

import numpy as np
import pytest

from dpn.input_pipeline import sources
from dpn.scripts import mini_data


def test_arrays_open_as_sources_and_hold_the_images(tmp_path):
  mini_data.main([str(tmp_path)])
  for name, counts in {"digits": (1000, 797), "photos": (1000, 200)}.items():
    for split, count in zip(("train", "test"), counts, strict=True):
      data = {"name": f"arrays:{tmp_path}/{name}.npz", "split": split}
      source = sources.make(data)
      assert len(source) == count
      assert source[0]["image"].shape == (32, 32, 3)
      assert source[0]["image"].dtype == np.uint8
  photos = np.load(tmp_path / "photos.npz")
  assert 450 < photos["train/label"].sum() < 550


def test_a_folder_that_cannot_be_is_named(tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(SystemExit, match=r"Error: Cannot write .*file: File ex"):
    mini_data.main([str(tmp_path / "file")])


def test_digits_are_grey_and_photos_are_not():
  grey, labels = mini_data.digits()
  assert (grey[..., 0] == grey[..., 2]).all()
  assert labels[:10].tolist() == list(range(10))
  colour, labels = mini_data.photos()
  assert (colour[..., 0] != colour[..., 2]).mean() > 0.5
  assert np.bincount(labels).tolist() == [600, 600]
