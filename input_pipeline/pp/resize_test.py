"""Resizing against the definition of each kernel, one output at a time."""

import math

import numpy as np
import pytest
from PIL import Image

from dpn.input_pipeline.pp import fused, lazy_image
from dpn.input_pipeline.pp import resize as resizing

_SIZES = [(5, 9), (3, 4), (14, 21), (5, 21), (14, 4), (7, 1)]


def resize(*args, **kw):
  return lazy_image.materialize(resizing.resize(*args, **kw))


def _image(rows=7, cols=12, channels=3, dtype=np.float32):
  rng = np.random.default_rng(0)
  return rng.integers(0, 256, (rows, cols, channels)).astype(dtype)


def _by_definition(image, size, weight):
  """Sums weight(axis length in, out, i, j) over all inputs, separably."""
  result = image.astype(np.float64)
  for axis, new in enumerate(size):
    old = image.shape[axis]
    rows = []
    for i in range(new):
      w = [weight(old, new, i, j) for j in range(old)]
      rows.append(np.tensordot(np.array(w) / sum(w), result, (0, axis)))
    result = np.stack(rows, axis)
  return result


def _box(old, new, i, j):
  low, high = i * old / new, (i + 1) * old / new
  return max(min(high, j + 1) - max(low, j), 0)


def _linear(old, new, i, j):
  centre = min(max((i + 0.5) * old / new - 0.5, 0), old - 1)
  return max(1 - abs(j - centre), 0)


def _keys(old, new, i, j):
  x = abs((i + 0.5) * old / new - 0.5 - j)
  if x < 1:
    return 1.5 * x**3 - 2.5 * x**2 + 1
  return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0


@pytest.mark.parametrize("size", _SIZES)
@pytest.mark.parametrize(
  ("method", "weight"),
  [("area", _box), ("bilinear", _linear), ("bicubic", _keys)],
)
def test_kernels(method, weight, size):
  image = _image()
  expected = _by_definition(image, size, weight)
  result = resize(image, size, method)
  assert result.dtype == np.float32
  np.testing.assert_allclose(result, expected, atol=1e-3)
  # uint8 rounds to nearest; OpenCV's 11-bit weights cost a little more.
  result = resize(image.astype(np.uint8), size, method)
  assert result.dtype == np.uint8
  assert result.flags.c_contiguous
  off = np.abs(result - np.clip(expected, 0, 255))
  assert off.max() <= (1.01 if method == "area" else 0.75)


@pytest.mark.parametrize("size", [(5, 9), (3, 4), (14, 21), (14, 4)])
@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_antialiased_kernels_are_pillows(method, size):
  kind = Image.Resampling[method.upper()]
  image = _image()
  expected = [
    Image.fromarray(image[..., c]).resize(size[::-1], kind) for c in range(3)
  ]
  result = resize(image, size, method, antialias=True)
  np.testing.assert_allclose(result, np.stack(expected, -1), atol=1e-3)


@pytest.mark.parametrize(
  "dtype", ["u1", "<u2", ">u2", "i4", "u4", "i8", "f2", ">f4", "f8", "?"]
)
@pytest.mark.parametrize("method", ["area", "bicubic"])
def test_without_numba_it_is_equal_to_the_last_bit(method, dtype, monkeypatch):
  image = _image(61, 94, dtype=dtype)
  sizes = [(23, 31), (61, 40), (100, 7), (122, 188)]
  assert fused.compiled(fused._sum_rows)
  compiled = [resize(image, size, method, True) for size in sizes]
  monkeypatch.setattr(fused, "compiled", lambda _: None)
  for size, expected in zip(sizes, compiled, strict=True):
    assert (expected.shape, expected.dtype) == ((*size, 3), dtype)
    np.testing.assert_array_equal(resize(image, size, method, True), expected)


def test_nearest_takes_the_pixel_under_the_centre():
  image = _image()
  result = resize(image, (4, 17), "nearest")
  for i in range(4):
    for j in range(17):
      row, col = math.floor((i + 0.5) * 7 / 4), math.floor((j + 0.5) * 12 / 17)
      assert (result[i, j] == image[row, col]).all()


@pytest.mark.parametrize("method", ["area", "bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize("antialias", [False, True])
def test_same_size_and_one_channel(method, antialias):
  image = _image(channels=1, dtype=np.uint8)
  np.testing.assert_array_equal(
    resize(image, (7, 12), method, antialias), image
  )
  assert resize(image, (5, 20), method, antialias).shape == (5, 20, 1)
  flat = np.full((5, 6, 2), 77, np.uint8)
  assert (resize(flat, (3, 9), method, antialias) == 77).all()


def test_wants_three_axes():
  with pytest.raises(ValueError, match=r"rows, cols, channels.*got \(4, 4\)"):
    resize(np.zeros((4, 4)), (2, 2))
