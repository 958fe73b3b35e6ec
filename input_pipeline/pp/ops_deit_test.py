"""DeiT's augmentations against Pillow and against what they promise."""

import cv2
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy import stats

from input_pipeline import pp
from input_pipeline.pp import ops_deit


def _image(rows=30, cols=40):
  coarse = np.random.default_rng(0).integers(0, 256, (5, 6, 3), np.uint8)
  return cv2.resize(coarse, (cols, rows), interpolation=cv2.INTER_CUBIC)


def _apply(spec, image, seed=0):
  return pp.make(spec)({"image": image}, np.random.default_rng(seed))["image"]


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0, 1.7])
@pytest.mark.parametrize(
  ("ours", "pillows"),
  [
    (ops_deit.adjust_brightness, ImageEnhance.Brightness),
    (ops_deit.adjust_contrast, ImageEnhance.Contrast),
    (ops_deit.adjust_saturation, ImageEnhance.Color),
  ],
)
def test_enhancements_are_pillows(ours, pillows, factor):
  expected = pillows(Image.fromarray(_image())).enhance(factor)
  off = ours(_image(), factor).astype(int) - np.asarray(expected)
  # One level of luma, times |1 - factor|, cut to a whole level.
  assert np.abs(off).max() <= 1


def test_jitter_with_one_strength_follows_its_factor():
  image = np.full((2, 2, 3), 100, np.uint8)
  levels = [
    _apply("color_jitter(0.4, 0, 0)", image, seed)[0, 0, 0]
    for seed in range(500)
  ]
  uniform = stats.uniform(60, 80)  # 100 (1 ± 0.4)
  assert stats.kstest(levels, uniform.cdf).pvalue > 0.01


def test_jitter_draws_the_order():
  """Contrast around the mean and brightness do not commute."""
  image = _image()
  found = set()
  for seed in range(40):
    result = _apply("color_jitter(0.9, 0.9, 0)", image, seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(2)
    factors = rng.uniform(0.1, 1.9, 2)
    enhancers = [ops_deit.adjust_brightness, ops_deit.adjust_contrast]
    expected = image
    for k, factor in zip(order, factors, strict=True):
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
  off = np.abs(ops_deit.blur(_image(), sigma).astype(int) - expected)
  assert off.mean() < 0.6
  assert off.max() <= 4


def test_random_erasing():
  image = np.full((40, 60, 3), 7, np.float32)
  shares, aspects, values, erased = [], [], [], 0
  for seed in range(1000):
    result = _apply("random_erasing(0.6)", image, seed)
    changed = (result != 7).all(-1)
    if not changed.any():
      assert result is image
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


def test_errors():
  with pytest.raises(ValueError, match=r"in \[0, 1\]: got 2"):
    pp.make("random_erasing(2)")
  with pytest.raises(ValueError, match="place random_erasing after"):
    _apply("random_erasing", _image())
  for name in ("color_jitter", "three_augment"):
    with pytest.raises(ValueError, match=f"place {name} before value_range"):
      _apply(name, np.zeros((4, 4, 3), np.float32))
