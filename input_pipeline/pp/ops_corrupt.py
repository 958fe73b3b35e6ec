"""Corruptions of CIFAR-10-C (arXiv 1903.12261) that change light and haze.

Brightness, contrast and fog have the severities of CIFAR-10-C's code
(hendrycks/robustness, make_cifar_c.py), which lacks gamma. As there, all are
computed in float64, then rounded down to uint8.

Differs from it: the map of the fog is as large as the image needs, instead of
always 32 × 32 pixels.
"""

import numpy as np

from dpn import errors
from dpn.input_pipeline.pp import op


def brightness(image, amount, rng):
  """Raises V of HSV by `amount` of its range; hue and saturation stay."""
  x = image / 255.0
  value = x.max(-1, keepdims=True)
  below = (value - x) / np.where(value > 0, value, 1)  # as shares of the value
  return np.minimum(value + amount, 1) * (1 - below)


def contrast(image, factor, rng):
  """Shrinks deviations from each channel's mean over the image."""
  x = image / 255.0
  mean = x.mean((0, 1), keepdims=True)
  return (x - mean) * factor + mean


def gamma(image, exponent, rng):
  """Raises pixels in [0, 1] to a power, which darkens all but 0 and 1."""
  return (image / 255.0) ** exponent


def fog(image, settings, rng):
  """Adds `strength` times a plasma, then restores the largest value."""
  strength, decay = settings
  x = image / 255.0
  rows, cols = image.shape[:2]
  size = 1 << (max(rows, cols) - 1).bit_length()
  haze = strength * plasma(size, decay, rng)[:rows, :cols, None]
  return (x + haze) * (x.max() / (x.max() + strength))


def plasma(size: int, decay: float, rng: np.random.Generator) -> np.ndarray:
  """Returns a fractal of the diamond-square algorithm, (size, size) in [0, 1].

  Size is a power of two; opposite edges fit together. The noise is divided by
  the square of `decay` from one scale to the next.
  """
  grid, step, amplitude = np.zeros((size, size)), size, 100.0
  noise = lambda x: rng.uniform(-amplitude, amplitude, x.shape) * amplitude
  while step > 1:
    half = step // 2
    corners = grid[::step, ::step]
    pairs = corners + np.roll(corners, -1, 0)
    middles = (pairs + np.roll(pairs, -1, 1)) / 4
    middles += noise(middles)
    grid[half::step, half::step] = middles
    # Between two corners of a row, and then of a column.
    for axis, place in enumerate(
      [np.s_[::step, half::step], np.s_[half::step, ::step]]
    ):
      ends = corners + np.roll(corners, -1, 1 - axis)
      sides = middles + np.roll(middles, 1, axis)
      between = (ends + sides) / 4
      grid[place] = between + noise(between)
    step, amplitude = half, amplitude / decay
  grid -= grid.min()
  return grid / (grid.max() or 1)


# name → function of (image, setting, generator) to [0, 1], settings by severity
CORRUPTIONS = {
  "brightness": (brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
  "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
  "gamma": (gamma, (1.25, 1.5, 2.0, 2.5, 3.0)),
  "fog": (fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
}
SEVERITIES = (1, 2, 3, 4, 5)


@op.on_key_random
def corrupt(kind: str | None = None, severity: int = 1):
  """Applies a corruption (see the module) to uint8 images, or none for None."""
  if kind is None:
    return lambda image, rng: image
  errors.check_known("corruption", kind, CORRUPTIONS)
  if severity not in SEVERITIES:
    raise ValueError(f"severity must be 1 to 5, got {severity!r}.")
  function, settings = CORRUPTIONS[kind]

  def apply(image, rng):
    op.check_levels(image, "corrupt", channels=(1, 3))
    result = function(image, settings[severity - 1], rng)
    return (np.clip(result, 0, 1) * 255).astype(np.uint8)

  return apply
