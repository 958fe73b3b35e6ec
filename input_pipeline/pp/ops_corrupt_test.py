"""Corruptions against what the authors' own functions return.

testdata/cifar_c.npz: a uint8 image (32, 32, 3); every third row and column of
it after fog, brightness and contrast of hendrycks/robustness, make_cifar_c.py
at commit 8190fe3 with scikit-image 0.26, NumPy's global generator seeded with
100 + severity; and its plasma_fractal(16, 2.5), seeded with 5.
"""

import pathlib

import numpy as np
import pytest

from dpn.input_pipeline import pp
from dpn.input_pipeline.pp import ops_corrupt

GOLDEN = dict(np.load(pathlib.Path(__file__).parent / "testdata/cifar_c.npz"))
IMAGE = GOLDEN["image"]


def corrupted(kind, severity, rng, image=IMAGE):
  return pp.make(f'corrupt("{kind}", {severity})')({"image": image}, rng)[
    "image"
  ]


@pytest.mark.parametrize("severity", ops_corrupt.SEVERITIES)
@pytest.mark.parametrize("kind", ["brightness", "contrast", "fog"])
def test_published_code(kind, severity):
  got = corrupted(kind, severity, np.random.RandomState(100 + severity))
  want = GOLDEN[f"{kind}_{severity}"]
  assert got.dtype == np.uint8
  apart = np.abs(got[::3, ::3].astype(int) - want)
  # Where a level is met exactly, rounding down is a matter of the last bit.
  assert apart.max() <= 1
  assert np.mean(apart > 0) < 0.01


def test_plasma():
  got = ops_corrupt.plasma(16, 2.5, np.random.RandomState(5))
  np.testing.assert_allclose(got, GOLDEN["plasma"], rtol=1e-9, atol=1e-12)


def test_gamma_by_hand():
  image = np.array([[[0, 64, 255]]], np.uint8)
  # 255 (64 / 255)² = 16.06, and (64 / 255)³ 255 = 4.03
  for severity, level in ((3, 16), (5, 4)):
    got = corrupted("gamma", severity, None, image)
    assert got.tolist() == [[[0, level, 255]]]


@pytest.mark.parametrize("kind", ops_corrupt.CORRUPTIONS)
def test_grey(kind):
  grey = IMAGE[..., :1]
  one, three = (
    corrupted(kind, 3, np.random.default_rng(0), np.repeat(grey, n, -1))
    for n in (1, 3)
  )
  assert one.shape == grey.shape
  assert np.abs(one.astype(int) - three).max() <= 1  # rounded down


def test_oblong_images_and_determinism():
  image = np.tile(IMAGE, (1, 2, 1))[:20, :50]
  one, same, other = (
    corrupted("fog", 5, np.random.default_rng(seed), image)
    for seed in (0, 0, 1)
  )
  assert one.shape == image.shape
  np.testing.assert_array_equal(one, same)
  assert np.abs(one.astype(int) - other).mean() > 5


def test_without_a_kind_nothing_happens():
  result = pp.make("corrupt")({"image": IMAGE}, None)
  np.testing.assert_array_equal(result["image"], IMAGE)


@pytest.mark.parametrize(
  ("spec", "message"),
  [
    ('corrupt("fogg", 1)', "Unknown corruption 'fogg'. Did you mean 'fog'"),
    ('corrupt("fog", 6)', "severity must be 1 to 5, got 6"),
    ('value_range|corrupt("fog")', "place corrupt before value_range"),
  ],
)
def test_errors(spec, message):
  with pytest.raises(ValueError, match=message):
    pp.make(spec)({"image": IMAGE}, None)
