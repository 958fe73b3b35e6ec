"""Every op of RandAugment against a definition written pixel by pixel.

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
    self._uniform, self._integers = uniform, list(integers)

  def random(self):
    return self._uniform

  def integers(self, high):
    assert 0 <= self._integers[0] < high
    return self._integers.pop(0)


def _apply(name, image, magnitude, rng=None):
  augment = ops_randaug.AUGMENTATIONS[name]
  result = augment(image, magnitude / 10, rng or _Fixed())
  assert result.dtype == np.uint8
  assert result.flags.c_contiguous
  return result


def _each(image, fn):
  """Applies fn(value, row, col, channel) to every number."""
  result = np.empty_like(image)
  for index, value in np.ndenumerate(image):
    result[index] = fn(int(value), *index)
  return result


def _mix(low, high, factor):
  value = _F(low) + _F(factor) * (_F(high) - _F(low))
  return int(min(max(value, _F(0)), _F(255)))


def _slow_posterize(image, magnitude):
  bits = int(magnitude / 10 * 4)
  keep = max(bits, 1)
  return _each(image, lambda v, *_: v // 2 ** (8 - keep) * 2 ** (8 - keep))


def _slow_solarize(image, magnitude):
  threshold = int(magnitude / 10 * 256) % 256
  return _each(image, lambda v, *_: v if v < threshold else 255 - v)


def _slow_solarize_add(image, magnitude):
  add = int(magnitude / 10 * 110)
  return _each(image, lambda v, *_: min(v + add, 255) if v < 128 else v)


def _slow_brightness(image, magnitude):
  factor = magnitude / 10 * 1.8 + 0.1
  return _each(image, lambda v, *_: _mix(0, v, factor))


def _slow_contrast(image, magnitude):
  factor = magnitude / 10 * 1.8 + 0.1
  grey = int(min(image.shape[0] * image.shape[1] / 256, 255))
  return _each(image, lambda v, *_: _mix(grey, v, factor))


def _slow_color(image, magnitude):
  factor = magnitude / 10 * 1.8 + 0.1

  def fn(value, row, col, _):
    r, g, b = (int(v) for v in image[row, col])
    grey = math.floor((0.2989 * r + 0.587 * g + 0.114 * b) / 255 * 255.5)
    return _mix(grey, value, factor)

  return _each(image, fn)


def _slow_sharpness(image, magnitude):
  factor = magnitude / 10 * 1.8 + 0.1
  rows, cols, _ = image.shape

  def fn(value, row, col, channel):
    if row in (0, rows - 1) or col in (0, cols - 1):
      return value
    window = image[row - 1 : row + 2, col - 1 : col + 2, channel].astype(int)
    smooth = (window.sum() + 4 * value) // 13
    return _mix(smooth, value, factor)

  return _each(image, fn)


def _slow_autocontrast(image, magnitude):
  low, high = image.min((0, 1)).astype(_F), image.max((0, 1)).astype(_F)

  def fn(value, row, col, c):
    if low[c] == high[c]:
      return value
    scale = _F(255) / (high[c] - low[c])
    value = _F(value) * scale + -low[c] * scale
    return int(min(max(value, _F(0)), _F(255)))

  return _each(image, fn)


def _slow_equalize(image, magnitude):
  def fn(value, row, col, c):
    channel = image[..., c]
    last = (channel == channel.max()).sum()
    step = (channel.size - last) // 255
    if step == 0:
      return value
    return min(((channel < value).sum() + step // 2) // step, 255)

  return _each(image, fn)


_SLOW = {
  "AutoContrast": _slow_autocontrast,
  "Equalize": _slow_equalize,
  "Invert": lambda image, _: _each(image, lambda v, *_: 255 - v),
  "Posterize": _slow_posterize,
  "Solarize": _slow_solarize,
  "Color": _slow_color,
  "Contrast": _slow_contrast,
  "Brightness": _slow_brightness,
  "Sharpness": _slow_sharpness,
  "SolarizeAdd": _slow_solarize_add,
}


@pytest.mark.parametrize("magnitude", [0, 5, 10, 15, 20])
@pytest.mark.parametrize("name", sorted(_SLOW))
def test_ops_on_levels(name, magnitude):
  image = _image()
  np.testing.assert_array_equal(
    _apply(name, image, magnitude), _SLOW[name](image, magnitude)
  )


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
  assert _apply(name, image, magnitude)[..., 0].ravel().tolist() == published
  for op_name in {*ops_randaug.AUGMENTATIONS} - {name}:
    monkeypatch.delitem(ops_randaug.AUGMENTATIONS, op_name)
    monkeypatch.delitem(ops_randaug.CLAMPED, op_name, raising=False)
  for arg, expected in (("", published), (", wrap=False", clamped)):
    fn = pp.make(f"randaug(1, {magnitude}{arg})")
    result = fn({"image": image}, np.random.default_rng(0))["image"]
    assert result[..., 0].ravel().tolist() == expected


@pytest.mark.parametrize("name", ["AutoContrast", "Contrast", "Equalize"])
def test_ops_on_statistics_of_larger_and_of_flat_images(name):
  image = np.concatenate([_image(30, 40)] * 2, 1)
  image[..., 2] = 77
  np.testing.assert_array_equal(_apply(name, image, 10), _SLOW[name](image, 10))


def _slow_warp(image, inverse):
  """Reads, for every pixel, the input's nearest to inverse(x, y)."""
  rows, cols, _ = image.shape
  result = np.full_like(image, 128)
  for y in range(rows):
    for x in range(cols):
      u, v = (math.copysign(math.floor(abs(w) + 0.5), w) for w in inverse(x, y))
      if 0 <= u < cols and 0 <= v < rows:
        result[y, x] = image[int(v), int(u)]
  return result


@pytest.mark.parametrize("uniform", [0.1, 0.9])
@pytest.mark.parametrize("magnitude", [0, 3, 10, 17])
def test_geometric_ops(magnitude, uniform):
  image = _image(12, 17)
  level = magnitude / 10 * (1 if uniform < 0.5 else -1)
  angle = level * 30 * math.pi / 180
  cx, cy = 8.0, 5.5

  def rotate(x, y):
    dx, dy = x - cx, y - cy
    return (
      math.cos(angle) * dx - math.sin(angle) * dy + cx,
      math.sin(angle) * dx + math.cos(angle) * dy + cy,
    )

  for name, inverse in (
    ("Rotate", rotate),
    ("ShearX", lambda x, y: (x + level * 0.3 * y, y)),
    ("ShearY", lambda x, y: (x, y + level * 0.3 * x)),
    ("TranslateX", lambda x, y: (x + level * 100, y)),
    ("TranslateY", lambda x, y: (x, y + level * 100)),
  ):
    np.testing.assert_array_equal(
      _apply(name, image, magnitude, _Fixed(uniform)),
      _slow_warp(image, inverse),
      err_msg=name,
    )


def test_positive_rotation_is_counterclockwise_and_translation_to_the_left():
  image = np.zeros((41, 41, 3), np.uint8)
  image[20, 30] = 255  # To the right of the centre.
  row, col = np.argwhere(_apply("Rotate", image, 10)[..., 0] == 255)[0]
  # 10 px at 30 degrees: 8.7 right and 5 up.
  assert (row, col) == (15, 29)
  row, col = np.argwhere(_apply("TranslateX", image, 0.7)[..., 0] == 255)[0]
  assert (row, col) == (20, 23)


@pytest.mark.parametrize("magnitude", [0, 1, 10, 20])
@pytest.mark.parametrize("centre", [(0, 0), (25, 40), (89, 99)])
def test_cutout(magnitude, centre):
  image = _image(90, 100)
  half = int(magnitude / 10 * 40)
  expected = image.copy()
  for row in range(90):
    for col in range(100):
      dy, dx = row - centre[0], col - centre[1]
      if -half <= dy < half and -half <= dx < half:
        expected[row, col] = 128
  rng = _Fixed(integers=centre)
  np.testing.assert_array_equal(
    _apply("Cutout", image, magnitude, rng), expected
  )


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
  expected = image
  for _ in range(2):
    expected = one({"image": expected}, rng)["image"]
  for spec in ("randaug", "randaug(2, 10)"):
    result = pp.make(spec)({"image": image}, np.random.default_rng(5))
    np.testing.assert_array_equal(result["image"], expected)
  identity = pp.make("randaug(0)")({"image": image}, rng)["image"]
  np.testing.assert_array_equal(identity, image)


def test_errors():
  for image in (np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 1), np.uint8)):
    with pytest.raises(ValueError, match="place randaug before value_range"):
      pp.make("randaug")({"image": image}, np.random.default_rng(0))
