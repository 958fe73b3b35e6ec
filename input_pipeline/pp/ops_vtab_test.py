"""VTAB's labels, on examples labelled by hand."""

import numpy as np
import pytest

from dpn.input_pipeline import pp


def _label(spec, example):
  return pp.make(spec)(example, np.random.default_rng(0))["label"]


def _clevr(*depths):
  """As TFDS gives it: lists, of numbers and of arrays."""
  coords = [np.float32([50, 60, z]) for z in depths]
  return {"objects": {"size": [0] * len(depths), "pixel_coords": coords}}


def test_clevr():
  for count in (3, 7, 10):
    assert _label("clevr_count", _clevr(*range(count))) == count - 3
  for label, *depths in (
    (0, 12, 7.5, 11),
    (0, 8.0, 9),  # A bound belongs to the class below it.
    (1, 8.01),
    (2, 8.6, 20),
    (3, 9.4),
    (4, 9.7),
    (5, 10.1, 50),
  ):
    assert _label("clevr_distance", _clevr(*depths)) == label


@pytest.mark.parametrize(
  ("types", "depths", "label"),
  [
    ([0, 3], [30, 2], 2),  # The pedestrian at 2 m does not count.
    ([2, 1], [9, 15], 1),
    ([0], [7.9], 0),
    ([0], [-3], 0),
    ([0], [20], 1),
    ([4, 7], [5, 5], 3),
    ([], [], 3),
  ],
)
def test_kitti_distance(types, depths, label):
  objects = {"type": types, "location": [np.float32([1, 2, z]) for z in depths]}
  assert _label("kitti_distance", {"objects": objects}) == label


def test_bins():
  spec = 'bin_label("label_orientation", 40, 16)'
  labels = [_label(spec, {"label_orientation": np.int64(v)}) for v in range(40)]
  # 2.5 values a bin: three and two by turns.
  assert labels == [v // 5 * 2 + (v % 5 > 2) for v in range(40)]
  spec = 'bin_label("label_x_position", 32, 16)'
  labels = [_label(spec, {"label_x_position": v}) for v in range(32)]
  assert labels == [v // 2 for v in range(32)]
  with pytest.raises(ValueError, match=r"x is 40, not in \[0, 40\)"):
    _label('bin_label("x", 40, 16)', {"x": 40})
