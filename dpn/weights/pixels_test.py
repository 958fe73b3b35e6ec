"""Preprocessing strings and the pixels they make."""

import numpy as np
import pytest

from dpn.weights import pixels

HALF = pixels.Pixels((0.5,), (0.5,))


@pytest.mark.parametrize(
  ("pp", "low", "high"),
  [
    ("resize(8)|value_range(-1, 1)|flip_lr", -1, 1),
    ("decode|value_range(-1,1)", -1, 1),
    ("value_range", -1, 1),
    ("value_range()|keep('image')", -1, 1),
    ("value_range(0, 1)", 0, 1),
    ("value_range(vmin=0, vmax=2)", 0, 2),
    ("decode|vgg_value_range|x", -0.485 / 0.229, (1 - 0.485) / 0.229),
    # (255 x - 51) / 25.5
    ("vgg_value_range((51, 0, 0), (25.5, 1, 1))", -2, 8),
    ("vgg_value_range(51, std=25.5)|flip_lr", -2, 8),
    # 0 … 127.5 to -1 … 1, so 255 to 3.
    ("value_range(-1, 1, in_max=127.5)|keep('image')", -1, 3),
    ("value_range(0, 1, 51, 102)", -1, 4),
    ("value_range(-1, 1, 0, 255, True)", -1, 1),
    ('value_range(0, 1, key="image")|value_range(0, 9, key="depth")', 0, 1),
  ],
)
def test_pixels_of_preprocessing(pp, low, high):
  got = pixels.of_pp(pp)
  ends = [(x - got.mean[0]) / got.std[0] for x in (0, 1)]
  np.testing.assert_allclose(ends, [low, high], atol=1e-9)


@pytest.mark.parametrize(
  "pp",
  [
    "decode|flip_lr",
    "value_range(0, x)",
    "value_range(-1, 1)|value_range(0, 1)",
  ],
)
def test_pixels_that_are_not_understood(pp):
  assert pixels.of_pp(pp) is None


def test_pixels_are_written_as_ops():
  assert str(HALF) == "value_range(-1, 1)"
  imagenet = pixels.Pixels(*pixels.IMAGENET)
  assert str(imagenet).startswith("vgg_value_range((123.675, 116.28, 103.53)")


def test_pixels_for_channels():
  assert HALF.of(1) == ([0.5], [0.5])
  assert HALF.of(4) == ([0.5] * 4, [0.5] * 4)
  imagenet = pixels.Pixels(*pixels.IMAGENET)
  assert imagenet.of(3) == tuple(map(list, pixels.IMAGENET))
  with pytest.raises(ValueError, match="3 channels, but the images have 1"):
    imagenet.of(1)
