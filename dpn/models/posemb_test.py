"""Position embeddings by their formula, and their place in a model."""

import math

import numpy as np
import pytest

from dpn.models import posemb


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
