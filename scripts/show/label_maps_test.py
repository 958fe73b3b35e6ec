"""Colours and shares by hand."""

import numpy as np
import pytest
from scipy.spatial import distance

from dpn.scripts.show import label_maps

_LABELS = np.array([[0, 2, 2], [2, 255, 7]], np.uint8)


@pytest.mark.parametrize(("size", "least"), [(2, 0.3), (20, 0.09), (150, 0.06)])
def test_colours_differ(size, least):
  table = label_maps.colours(size)
  assert table.shape == (size + 1, 3)
  assert 0 <= table.min() <= table.max() <= 1
  assert distance.pdist(table).min() > least
  assert not table[size].any()


def test_in_colour():
  table = label_maps.colours(3)
  in_colour = label_maps.in_colour(_LABELS, 3)
  np.testing.assert_array_equal(in_colour[0], table[[0, 2, 2]])
  np.testing.assert_array_equal(in_colour[1], table[[2, 3, 3]])


def test_shares_and_legend():
  assert label_maps.shares(_LABELS, 3).tolist() == [0.25, 0, 0.75]
  assert label_maps.shares(np.full((2, 2), 255), 2).tolist() == [0, 0]
  shown = label_maps.legend(_LABELS, ["sky", "road", "car"])
  names, drawn = zip(*shown, strict=True)
  assert names == ("car", "sky", "not labelled")
  np.testing.assert_array_equal(drawn, label_maps.colours(3)[[2, 0, 3]])
  many = label_maps.legend(np.arange(40), [str(k) for k in range(40)])
  assert [name for name, _ in many[-2:]] == ["and 16 more", "not labelled"]
