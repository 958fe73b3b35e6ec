"""Mean and standard deviation of pixels, for ops and for channels."""

import pytest

from dpn.weights import pixels

HALF = pixels.Pixels((0.5,), (0.5,))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_pixels_are_written_as_ops():
  assert str(HALF) == "value_range(-1, 1)"
  imagenet = pixels.Pixels(*IMAGENET)
  assert str(imagenet).startswith("vgg_value_range((123.675, 116.28, 103.53)")


def test_pixels_for_channels():
  assert HALF.of(1) == ([0.5], [0.5])
  assert HALF.of(4) == ([0.5] * 4, [0.5] * 4)
  assert pixels.Pixels((0.4, 0.5), (0.2, 0.3)).of(2) == ([0.4, 0.5], [0.2, 0.3])
  imagenet = pixels.Pixels(*IMAGENET)
  assert imagenet.of(3) == tuple(map(list, IMAGENET))
  with pytest.raises(ValueError, match="3 channels, but the images have 1"):
    imagenet.of(1)
  assert not imagenet.close_to(pixels.Pixels((0.5,) * 4, (0.5,) * 4))
