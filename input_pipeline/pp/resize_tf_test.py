"""Agreement with TensorFlow's resize on two photographs.

`testdata/tf_resize.npz` holds every sixteenth pixel of what TensorFlow 2.21
makes of them. Where TensorFlow is installed all pixels are compared, and with
the recorded ones.
"""

import pathlib

import numpy as np
import pytest
from sklearn import datasets

from dpn.input_pipeline.pp import lazy_image
from dpn.input_pipeline.pp import resize as resizing

_GOLDEN = pathlib.Path(__file__).parent / "testdata" / "tf_resize.npz"
_CASES = [
  (photo, *how)
  for photo in ("china.jpg", "flower.jpg")
  for how in (
    *(("bilinear", False), ("bilinear", True)),
    *(("bicubic", False), ("area", False)),
  )
]
_SIZE = (256, 384)
# TensorFlow looks the weights of its cubic kernel up in a table of 1024.
_TOLERANCE = {"area": 0.01, "bilinear": 0.01, "bicubic": 0.1}


def _ours(photo, method, antialias, dtype):
  image = datasets.load_sample_image(photo)  # (427, 640, 3) uint8
  return lazy_image.materialize(
    resizing.resize(image.astype(dtype), _SIZE, method, antialias)
  )


@pytest.mark.parametrize("case", _CASES)
def test_recorded_pixels(case):
  expected = np.load(_GOLDEN)["/".join(map(str, case))]
  ours = [_ours(*case, x)[::16, ::16] for x in (np.float32, np.uint8)]
  _compare(*ours, expected, _TOLERANCE[case[1]])


@pytest.mark.parametrize("case", _CASES)
def test_all_pixels(case):
  tf = pytest.importorskip("tensorflow")
  photo, method, antialias = case
  expected = tf.image.resize(
    datasets.load_sample_image(photo), _SIZE, method, antialias=antialias
  ).numpy()
  recorded = np.load(_GOLDEN)["/".join(map(str, case))]
  np.testing.assert_allclose(expected[::16, ::16], recorded, atol=1e-3)
  ours = [_ours(*case, x) for x in (np.float32, np.uint8)]
  _compare(*ours, expected, _TOLERANCE[method])


def _compare(floats, integers, expected, tolerance):
  """Checks that floats are the same, and that 8 bits differ by rounding."""
  np.testing.assert_allclose(floats, expected, atol=tolerance)
  off = np.abs(integers - np.clip(expected, 0, 255))
  assert off.mean() < 0.3  # A uniform remainder, rounded: 0.25.
  assert off.max() < 1
