"""Windows and weights along an axis, by hand and against OpenCV."""

import cv2
import numpy as np
import pytest

from dpn import sliding_window


@pytest.mark.parametrize(
  ("size", "window", "stride", "want"),
  [
    (683, 512, 341, [0, 171]),
    (1366, 512, 341, [0, 341, 682, 854]),
    (853, 512, 341, [0, 341]),  # the last window begins where one would anyway
    (512, 512, 341, [0]),
    (300, 512, 341, [0]),
  ],
)
def test_starts(size, window, stride, want):
  assert sliding_window.starts(size, window, stride) == want


@pytest.mark.parametrize("stride", [0, 9])
def test_strides_that_leave_gaps_or_do_not_move(stride):
  with pytest.raises(ValueError, match=f"stride of {stride} .* window of 8"):
    sliding_window.starts(20, 8, stride)


@pytest.mark.parametrize(("size", "grid"), [(12, 4), (7, 5), (5, 9), (3, 1)])
def test_interpolation(size, grid):
  x = np.random.default_rng(0).normal(size=(grid, 1))
  want = cv2.resize(x, (1, size), interpolation=cv2.INTER_LINEAR)
  weights = sliding_window.interpolation(size, grid)
  np.testing.assert_allclose(weights @ x, want, atol=1e-6)


def test_axis_weights_by_hand():
  """Windows of 2 at 0 and 1, a logit per pixel: the middle one is a mean."""
  want = [[1, 0, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0, 1]]
  got = sliding_window.axis_weights(3, 3, window=2, stride=1, grid=2)
  np.testing.assert_allclose(got, want)
  # To twice the pixels: a quarter of the way from one centre to the next.
  got = sliding_window.axis_weights(6, 3, window=2, stride=1, grid=2)
  np.testing.assert_allclose(got[1], [0.75, 0.125, 0.125, 0])
  # What a window has beyond the image is dropped.
  got = sliding_window.axis_weights(2, 2, window=3, stride=1, grid=3)
  np.testing.assert_allclose(got, [[1, 0, 0], [0, 1, 0]])
