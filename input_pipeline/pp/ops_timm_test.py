"""timm's augmentations against Pillow, which timm calls, and their promises."""

import math

import cv2
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy import stats

from dpn.input_pipeline import pp
from dpn.input_pipeline.pp import ops_timm

_FILL = (124, 116, 104)
_CUBIC = Image.Resampling.BICUBIC


def _image(rows=48, cols=64):
  coarse = np.random.default_rng(0).integers(0, 200, (4, 5, 3), np.uint8)
  return cv2.resize(coarse, (cols, rows), interpolation=cv2.INTER_CUBIC)


def _apply(spec, image, seed=0):
  return pp.make(spec)({"image": image}, np.random.default_rng(seed))["image"]


class _Sign:
  """A generator that draws one sign."""

  def __init__(self, sign):
    self.random = lambda: 0.0 if sign > 0 else 0.9


def _enhance(enhancer):
  return lambda x, level, s: enhancer(x).enhance(max(0.1, 1 + s * level * 0.9))


def _affine(image, matrix):
  return image.transform(
    image.size, Image.Transform.AFFINE, matrix, _CUBIC, fillcolor=_FILL
  )


_PILLOW = {
  "AutoContrast": lambda x, level, s: ImageOps.autocontrast(x),
  "Equalize": lambda x, level, s: ImageOps.equalize(x),
  "Invert": lambda x, level, s: ImageOps.invert(x),
  "Posterize": lambda x, level, s: x.point(
    lambda v: v & -(2 ** (8 - (4 - int(level * 4))))  # Keeps so many bits.
  ),
  "Solarize": lambda x, level, s: ImageOps.solarize(x, 256 - int(level * 256)),
  "SolarizeAdd": lambda x, level, s: x.point(
    [min(255, i + int(level * 110)) if i < 128 else i for i in range(256)] * 3
  ),
  "Color": _enhance(ImageEnhance.Color),
  "Contrast": _enhance(ImageEnhance.Contrast),
  "Brightness": _enhance(ImageEnhance.Brightness),
  "Sharpness": _enhance(ImageEnhance.Sharpness),
}
_WARPS = {
  "Rotate": lambda x, level, s: x.rotate(
    s * level * 30, _CUBIC, fillcolor=_FILL
  ),
  "ShearX": lambda x, level, s: _affine(x, (1, s * level * 0.3, 0, 0, 1, 0)),
  "ShearY": lambda x, level, s: _affine(x, (1, 0, 0, s * level * 0.3, 1, 0)),
  "TranslateX": lambda x, level, s: _affine(
    x, (1, 0, s * level * 0.45 * x.size[0], 0, 1, 0)
  ),
  "TranslateY": lambda x, level, s: _affine(
    x, (1, 0, 0, 0, 1, s * level * 0.45 * x.size[1])
  ),
}


def _both(name, table, level, sign):
  ours = ops_timm.AUGMENTATIONS[name](_image(), level, _Sign(sign), _FILL)
  theirs = np.asarray(table[name](Image.fromarray(_image()), level, sign))
  assert ours.dtype == np.uint8
  return ours.astype(int), theirs.astype(int)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("level", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("name", sorted(_PILLOW))
def test_ops_on_levels(name, level, sign):
  ours, theirs = _both(name, _PILLOW, level, sign)
  # Luma, and the rounding of the smoothing filter, may be one level off.
  slack = 1 if name in ("Color", "Contrast", "Sharpness") else 0
  assert np.abs(ours - theirs).max() <= slack


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("level", [0.3, 0.9])
@pytest.mark.parametrize("name", sorted(_WARPS))
def test_geometric_ops(name, level, sign):
  ours, theirs = _both(name, _WARPS, level, sign)
  erode = lambda mask: cv2.erode(
    mask.astype(np.uint8), np.ones((5, 5)), borderType=0, borderValue=0
  ).astype(bool)
  inside = erode((theirs != _FILL).any(-1))
  assert inside.mean() > 0.2
  off = np.abs(ours - theirs)[inside]
  assert off.mean() < 0.6  # Another cubic kernel; a smooth image.
  assert off.max() <= 12
  outside = erode((theirs == _FILL).all(-1))
  assert (ours[outside] == _FILL).all()


def test_recipe():
  """With p = 0 nothing happens; n and the magnitude reach the ops."""
  image = _image()
  assert set(ops_timm.AUGMENTATIONS) == {*_PILLOW, *_WARPS}
  same = _apply("rand_augment('rand-m9-p0-inc1')", image)
  np.testing.assert_array_equal(same, image)
  grey, three = (
    _apply(f"rand_augment('rand-m9-n4-p1-inc1', fill={fill})", image, 3)
    for fill in (128, (128, 128, 128))
  )
  np.testing.assert_array_equal(grey, three)
  spec = "rand_augment('rand-m9-n1-inc1')"
  changed = [(_apply(spec, image, i) != image).any() for i in range(400)]
  # Half of them, less the few that do nothing to this image; sigma 10.
  assert 150 < sum(changed) < 230
  for seed in range(20):
    rng = np.random.default_rng(seed)
    picks = rng.integers(15, size=2)
    expected = image
    for k in picks:
      if rng.random() < 0.5:
        level = min(max(rng.normal(9, 0.5), 0), 10) / 10
        augment = list(ops_timm.AUGMENTATIONS.values())[k]
        expected = augment(expected, level, rng, _FILL)
    np.testing.assert_array_equal(_apply("rand_augment", image, seed), expected)


def test_magnitude_spreads_as_asked(monkeypatch):
  levels = []
  monkeypatch.setattr(
    ops_timm,
    "AUGMENTATIONS",
    {"spy": lambda image, level, rng, fill: levels.append(level) or image},
  )
  fn = pp.make("rand_augment('rand-m9-mstd0.5-p1-inc1')")
  rng = np.random.default_rng(0)
  for _ in range(1000):
    fn({"image": _image(4, 4)}, rng)
  assert len(levels) == 2000
  # Of a normal distribution (9, 0.5) cut at 10.
  assert abs(np.median(levels) - 0.9) < 0.005
  assert max(levels) == 1.0
  share = 0.5 - 0.5 * math.erf(2 / math.sqrt(2))
  assert abs(np.mean(np.array(levels) == 1) - share) < 0.015
  levels.clear()
  uniform = pp.make("rand_augment('rand-m8-n500-mstd101-p1-inc1')")
  uniform({"image": _image(4, 4)}, rng)
  assert stats.kstest(levels, stats.uniform(0, 0.8).cdf).pvalue > 0.01


@pytest.mark.parametrize(
  "spec", ["rand-m9-mst0.5-inc1", "rand-m9", "augmix-m9-inc1", "rand-m11-inc1"]
)
def test_recipe_errors(spec):
  with pytest.raises(ValueError, match=rf"m up to 10.*got '{spec}'"):
    pp.make(f"rand_augment({spec!r})")


def test_jitter_draws_the_order():
  """Contrast around the mean and brightness do not commute."""
  image = _image()
  found = set()
  for seed in range(40):
    result = _apply("color_jitter(0.9, 0.4, 0)", image, seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(2)
    enhancers = [ops_timm.adjust_brightness, ops_timm.adjust_contrast]
    expected = image
    for k in order:
      factor = rng.uniform(*[(0.1, 1.9), (0.6, 1.4)][k])
      expected = enhancers[k](expected, factor)
    np.testing.assert_array_equal(result, expected)
    found.add(tuple(order))
  assert found == {(0, 1), (1, 0)}


def test_three_augment():
  image = _image()
  pillow = Image.fromarray(image)
  grey = np.asarray(pillow.convert("L").convert("RGB")).astype(int)
  solarized = np.asarray(ImageOps.solarize(pillow, 128)).astype(int)
  counts = np.zeros(3, int)
  for seed in range(300):
    result = _apply("three_augment", image, seed).astype(int)
    if np.abs(result - grey).max() <= 1:
      counts[0] += 1
    elif (result == solarized).all():
      counts[1] += 1
    else:
      counts[2] += 1
      assert abs(result.mean() - image.mean()) < 1
  # Binomial(300, 1/3): deviation 8.2.
  assert counts.min() > 70


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_blur_is_close_to_pillows(sigma):
  expected = Image.fromarray(_image()).filter(ImageFilter.GaussianBlur(sigma))
  off = np.abs(ops_timm.blur(_image(), sigma).astype(int) - expected)
  assert off.mean() < 0.6
  assert off.max() <= 4


def test_random_erasing():
  image = np.full((40, 60, 3), 7, np.float32)
  shares, aspects, values, erased = [], [], [], 0
  for seed in range(1000):
    result = _apply("random_erasing(0.6)", image, seed)
    changed = (result != 7).all(-1)
    if not changed.any():
      assert np.shares_memory(result, image)
      continue
    erased += 1
    rows, cols = (np.flatnonzero(changed.any(1 - axis)) for axis in (0, 1))
    box = result[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1]
    assert changed.sum() == box.shape[0] * box.shape[1]
    shares.append(changed.sum() / (40 * 60))
    aspects.append(box.shape[0] / box.shape[1])
    values.append(box.ravel())
  assert 550 < erased < 650  # Three sigma, of Binomial(1000, 0.6).
  assert min(shares) > 0.015  # Rounding to whole pixels.
  assert max(shares) < 0.345
  assert abs(np.median(np.log(aspects))) < 0.15
  values = np.concatenate(values)
  assert abs(values.mean()) < 0.01
  assert abs(values.std() - 1) < 0.01
  assert (image == 7).all()


@pytest.mark.parametrize(
  ("spec", "message"),
  [
    ("random_erasing(2)", r"in \[0, 1\]: got 2"),
    ("random_erasing", "place random_erasing after"),
    *(
      (f"value_range|{name}", f"place {name} before value_range")
      for name in ("randaug", "rand_augment", "color_jitter", "three_augment")
    ),
    ("squeeze_last_dim|randaug", "place randaug before value_range"),
  ],
)
def test_errors(spec, message):
  image = np.zeros((4, 4, 1 if "squeeze" in spec else 3), np.uint8)
  with pytest.raises(ValueError, match=message):
    _apply(spec, image)
