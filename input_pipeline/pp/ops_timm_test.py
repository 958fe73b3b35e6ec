"""timm's RandAugment, op by op against Pillow, which timm calls."""

import math

import cv2
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from input_pipeline import pp
from input_pipeline.pp import ops_timm

_FILL = (124, 116, 104)
_CUBIC = Image.Resampling.BICUBIC


def _image(rows=48, cols=64):
  coarse = np.random.default_rng(0).integers(0, 200, (4, 5, 3), np.uint8)
  return cv2.resize(coarse, (cols, rows), interpolation=cv2.INTER_CUBIC)


class _Sign:
  """A generator that draws one sign."""

  def __init__(self, sign):
    self._sign = sign

  def random(self):
    return 0.0 if self._sign > 0 else 0.9


def _factor(level, sign):
  return max(0.1, 1 + sign * level * 0.9)


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
  "Color": lambda x, level, s: ImageEnhance.Color(x).enhance(_factor(level, s)),
  "Contrast": lambda x, level, s: ImageEnhance.Contrast(x).enhance(
    _factor(level, s)
  ),
  "Brightness": lambda x, level, s: ImageEnhance.Brightness(x).enhance(
    _factor(level, s)
  ),
  "Sharpness": lambda x, level, s: ImageEnhance.Sharpness(x).enhance(
    _factor(level, s)
  ),
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
  inside = cv2.erode(
    (theirs != _FILL).any(-1).astype(np.uint8),
    np.ones((5, 5), np.uint8),
    borderType=cv2.BORDER_CONSTANT,
    borderValue=0,
  )
  inside = inside.astype(bool)
  assert inside.mean() > 0.2
  off = np.abs(ours - theirs)
  assert off[inside].mean() < 0.6  # Another cubic kernel; a smooth image.
  assert off[inside].max() <= 12
  outside = cv2.erode(
    (theirs == _FILL).all(-1).astype(np.uint8),
    np.ones((5, 5), np.uint8),
    borderType=cv2.BORDER_CONSTANT,
    borderValue=0,
  )
  assert (ours[outside.astype(bool)] == _FILL).all()


def test_recipe():
  """With p = 0 nothing happens; n and the magnitude reach the ops."""
  image = _image()
  assert set(ops_timm.AUGMENTATIONS) == {*_PILLOW, *_WARPS}
  apply = lambda spec, seed: pp.make(spec)(
    {"image": image}, np.random.default_rng(seed)
  )["image"]
  np.testing.assert_array_equal(
    apply("rand_augment('rand-m9-p0-inc1')", 0), image
  )
  changed = [
    (apply("rand_augment('rand-m9-n1-inc1')", seed) != image).any()
    for seed in range(400)
  ]
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
    np.testing.assert_array_equal(apply("rand_augment", seed), expected)


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


@pytest.mark.parametrize(
  "spec",
  ["rand-m9-mst0.5-inc1", "rand-m9", "augmix-m9-inc1", "rand-m11-inc1"],
)
def test_errors(spec):
  with pytest.raises(ValueError, match=rf"m up to 10.*got '{spec}'"):
    pp.make(f"rand_augment({spec!r})")
