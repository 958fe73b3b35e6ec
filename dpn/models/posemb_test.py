"""Position embeddings by hand, and their place in a model."""

import math

import numpy as np
import pytest

from dpn.models import posemb


def test_sincos2d_by_hand():
  """Width 8 has two frequencies, 1 and 1e-4; the tokens go row by row."""
  table = posemb.sincos2d(2, 3, 8)
  assert table.shape == (1, 6, 8)
  s1, c1, s2, c2 = math.sin(1), math.cos(1), math.sin(2), math.cos(2)
  slow = [math.sin(1e-4), math.cos(1e-4), math.sin(2e-4), math.cos(2e-4)]
  np.testing.assert_allclose(
    table[0, [0, 2, 3, 5]],
    [  # sin x      cos x          sin y         cos y
      [0, 0, 1, 1, 0, 0, 1, 1],
      [s2, slow[2], c2, slow[3], 0, 0, 1, 1],
      [0, 0, 1, 1, s1, slow[0], c1, slow[1]],
      [s2, slow[2], c2, slow[3], s1, slow[0], c1, slow[1]],
    ],
    atol=1e-15,
  )


def test_sincos2d_against_its_formula():
  rows, cols, width = 3, 4, 20
  table = posemb.sincos2d(rows, cols, width)
  quarter = width // 4
  for y, x, i in np.ndindex(rows, cols, quarter):
    omega = 10_000.0 ** (-i / (quarter - 1))
    got = table[0, y * cols + x, i::quarter]
    want = [fn(omega * k) for k in (x, y) for fn in (math.sin, math.cos)]
    np.testing.assert_allclose(got, want, atol=1e-14)


@pytest.mark.parametrize("width", [4, 10])
def test_sincos2d_width(width):
  with pytest.raises(
    ValueError, match=f"multiple of 4 and at least 8, got {width}"
  ):
    posemb.sincos2d(2, 2, width)
