"""Every op of RandAugment against a plain definition of it.

Levels are computed here in float32 as the published TensorFlow code does.
"""

import math

import numpy as np
import pytest

from dpn.input_pipeline import pp
from dpn.input_pipeline.pp import ops_randaug

_F = np.float32


def _image(rows=11, cols=14, seed=0):
  rng = np.random.default_rng(seed)
  image = rng.integers(0, 256, (rows, cols, 3), np.uint8)
  image[..., 1] = 40 + image[..., 1] // 3  # Leaves contrast to be gained.
  return image


class _Fixed:
  """A generator whose answers are chosen by the test."""

  def __init__(self, uniform=0.0, integers=()):
    integers = iter(integers)
    self.random = lambda: uniform
    self.integers = lambda high: next(integers)


def _apply(name, image, magnitude, rng=None):
  augment = ops_randaug.AUGMENTATIONS[name]
  result = augment(image, magnitude / 10, rng or _Fixed())
  assert result.dtype == np.uint8
  assert result.flags.c_contiguous
  return result


def _mix(low, high, magnitude):
  low, high, factor = map(_F, (low, high, magnitude / 10 * 1.8 + 0.1))
  return np.clip(low + factor * (high - low), 0, 255)


def _posterize(x, magnitude):
  drop = 8 - max(int(magnitude / 10 * 4), 1)
  return x // 2**drop * 2**drop


def _color(x, magnitude):
  grey = x.astype(float) @ [0.2989, 0.587, 0.114]
  return _mix(np.floor(grey / 255 * 255.5)[..., None], x, magnitude)


def _sharpness(x, magnitude):
  wide = np.pad(x, ((1, 1), (1, 1), (0, 0)))
  rows, cols, _ = x.shape
  neighbours = sum(
    wide[i : i + rows, j : j + cols] for i in range(3) for j in range(3)
  )
  result = _mix((neighbours + 4 * x) // 13, x, magnitude)
  result[[0, -1]], result[:, [0, -1]] = x[[0, -1]], x[:, [0, -1]]
  return result


def _autocontrast(x, _):
  low, high = _F(x.min((0, 1))), _F(x.max((0, 1)))
  scale = _F(255) / np.maximum(high - low, 1)
  return np.where(high > low, np.clip(_F(x) * scale - low * scale, 0, 255), x)


def _equalize(x, _):
  result = x.copy()
  for (row, col, c), value in np.ndenumerate(x):
    channel = x[..., c]
    if step := (channel.size - (channel == channel.max()).sum()) // 255:
      below = (channel < value).sum()
      result[row, col, c] = min((below + step // 2) // step, 255)
  return result


_DEFINITIONS = {  # functions of int32 images
  "AutoContrast": _autocontrast,
  "Equalize": _equalize,
  "Invert": lambda x, _: 255 - x,
  "Posterize": _posterize,
  "Solarize": lambda x, m: np.where(x < int(m * 25.6) % 256, x, 255 - x),
  "Color": _color,
  "Contrast": lambda x, m: _mix(min(x[..., 0].size // 256, 255), x, m),
  "Brightness": lambda x, m: _mix(0, x, m),
  "Sharpness": _sharpness,
  "SolarizeAdd": lambda x, m: np.where(
    x < 128, np.minimum(x + int(m * 11), 255), x
  ),
}


def _check(name, image, magnitude):
  expected = _DEFINITIONS[name](image.astype(np.int32), magnitude)
  got = _apply(name, image, magnitude)
  np.testing.assert_array_equal(got, expected.astype(np.uint8))


@pytest.mark.parametrize("magnitude", [0, 5, 10, 15, 20])
@pytest.mark.parametrize("name", _DEFINITIONS)
def test_ops_on_levels(name, magnitude):
  _check(name, _image(), magnitude)


@pytest.mark.parametrize("name", ["AutoContrast", "Contrast", "Equalize"])
def test_ops_on_statistics_of_larger_and_of_flat_images(name):
  image = np.concatenate([_image(30, 40)] * 2, 1)
  image[..., 2] = 77
  _check(name, image, 10)


@pytest.mark.parametrize(
  ("name", "magnitude", "published", "clamped"),
  [
    ("Solarize", 0, [255, 254, 128, 127, 1, 0], [255, 254, 128, 127, 1, 0]),
    ("Solarize", 5, [0, 1, 127, 127, 1, 0], [0, 1, 127, 127, 1, 0]),
    ("Solarize", 10, [255, 254, 128, 127, 1, 0], [0, 1, 127, 128, 254, 255]),
    ("Solarize", 15, [0, 1, 127, 127, 1, 0], [0, 1, 127, 128, 254, 255]),
    ("Solarize", 20, [255, 254, 128, 127, 1, 0], [0, 1, 127, 128, 254, 255]),
    ("Posterize", 10, [0, 0, 112, 128, 240, 240], [0, 0, 112, 128, 240, 240]),
    ("Posterize", 20, [0, 1, 127, 128, 254, 255], [0, 1, 127, 128, 254, 255]),
    ("Posterize", 30, [0, 0, 0, 128, 128, 128], [0, 1, 127, 128, 254, 255]),
  ],
)
def test_what_wraps_at_256(name, magnitude, published, clamped, monkeypatch):
  levels = np.uint8([0, 1, 127, 128, 254, 255])
  image = np.stack([levels.reshape(2, 3)] * 3, -1)
  for table in (ops_randaug.AUGMENTATIONS, ops_randaug.CLAMPED):
    for other in {*table} - {name}:
      monkeypatch.delitem(table, other)
  for arg, expected in (("", published), (", wrap=False", clamped)):
    fn = pp.make(f"randaug(1, {magnitude}{arg})")
    result = fn({"image": image}, np.random.default_rng(0))["image"]
    assert result[..., 0].ravel().tolist() == expected


def _warped(image, inverse):
  """Reads, for every pixel, the input's nearest to inverse(x, y)."""
  rows, cols, _ = image.shape
  result = np.full_like(image, 128)
  for y, x in np.ndindex(rows, cols):
    u, v = (math.copysign(math.floor(abs(w) + 0.5), w) for w in inverse(x, y))
    if 0 <= u < cols and 0 <= v < rows:
      result[y, x] = image[int(v), int(u)]
  return result


@pytest.mark.parametrize("uniform", [0.1, 0.9])
@pytest.mark.parametrize("magnitude", [0, 3, 10, 17])
def test_geometric_ops(magnitude, uniform):
  image = _image(12, 17)
  level = magnitude / 10 * (1 if uniform < 0.5 else -1)
  cos, sin = (f(level * 30 * math.pi / 180) for f in (math.cos, math.sin))
  cx, cy = 8.0, 5.5
  for name, inverse in {
    "Rotate": lambda x, y: (
      cos * (x - cx) - sin * (y - cy) + cx,
      sin * (x - cx) + cos * (y - cy) + cy,
    ),
    "ShearX": lambda x, y: (x + level * 0.3 * y, y),
    "ShearY": lambda x, y: (x, y + level * 0.3 * x),
    "TranslateX": lambda x, y: (x + level * 100, y),
    "TranslateY": lambda x, y: (x, y + level * 100),
  }.items():
    got = _apply(name, image, magnitude, _Fixed(uniform))
    np.testing.assert_array_equal(got, _warped(image, inverse), err_msg=name)


@pytest.mark.parametrize("magnitude", [0, 1, 10, 20])
@pytest.mark.parametrize("centre", [(0, 0), (25, 40), (89, 99)])
def test_cutout(magnitude, centre):
  image = _image(90, 100)
  half = int(magnitude / 10 * 40)
  dy, dx = np.arange(90)[:, None] - centre[0], np.arange(100) - centre[1]
  inside = (-half <= dy) & (dy < half) & (-half <= dx) & (dx < half)
  got = _apply("Cutout", image, magnitude, _Fixed(integers=centre))
  np.testing.assert_array_equal(got, np.where(inside[..., None], 128, image))


def test_all_sixteen_are_drawn_and_always_applied():
  assert len(ops_randaug.AUGMENTATIONS) == 16
  # Large enough for sixty pixels of translation to leave something.
  image = _image(70, 80)
  candidates = {}
  for name in ops_randaug.AUGMENTATIONS:
    if name != "Cutout":  # Has as many results as there are pixels.
      for uniform in (0.1, 0.9):
        result = _apply(name, image, 6, _Fixed(uniform))
        assert candidates.setdefault(result.tobytes(), name) == name
  assert image.tobytes() not in candidates
  counts = dict.fromkeys(ops_randaug.AUGMENTATIONS, 0)
  fn = pp.make("randaug(1, 6)")
  for seed in range(1600):
    result = fn({"image": image}, np.random.default_rng(seed))["image"]
    counts[candidates.get(result.tobytes(), "Cutout")] += 1
  # Binomial(1600, 1/16): mean 100, standard deviation 9.7.
  assert min(counts.values()) > 60
  assert max(counts.values()) < 140


def test_layers_compose_and_defaults():
  image = _image()
  rng = np.random.default_rng(5)
  one = pp.make("randaug(1, 10)")
  expected = one(one({"image": image}, rng), rng)["image"]
  for spec in ("randaug", "randaug(2, 10)"):
    result = pp.make(spec)({"image": image}, np.random.default_rng(5))
    np.testing.assert_array_equal(result["image"], expected)
  identity = pp.make("randaug(0)")({"image": image}, rng)["image"]
  np.testing.assert_array_equal(identity, image)
