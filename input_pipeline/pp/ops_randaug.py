"""RandAugment (arXiv 1909.13719), as in the TPU AutoAugment code.

Every layer draws one of sixteen ops, all equally likely, and applies it with
the shared magnitude; 10 is the top of the original scale, larger magnitudes
extrapolate. Geometric ops draw their sign, sample the nearest pixel and put 128
where pixels from outside the image would go.

Differs from the paper as does the code that everybody's results come from:
- A chosen op is always applied: the code draws a probability and ignores it.
- Contrast blends with the grey level rows * cols / 256 (at most 255): the code
  takes the mean of the histogram's counts, not of the levels.
- A smaller magnitude is not always milder: at 0 Solarize inverts the image,
  Posterize keeps one bit, and the four enhancing ops keep a tenth.
- Solarize compares uint8 pixels with a threshold (magnitude * 25.6) that
  TensorFlow converted to uint8 whenever this code ran, with NumPy before 2: it
  wraps at 256. Magnitudes 10, 20 and 30 invert everything, as 0 does; at 15 the
  levels from 128 on. The shift of Posterize wraps likewise: from 22.5 on, one
  bit stays. `wrap=False` clamps both: from 10 on Solarize, and from 20 on
  Posterize, change nothing.
"""

import cv2
import numpy as np

from dpn.input_pipeline.pp import op, pixels

_FILL = 128
_CUTOUT_PX = 40
_TRANSLATE_PX = 100


@op.on_key_random(channels=(3,))
def randaug(num_layers: int = 2, magnitude: float = 10, wrap: bool = True):
  """Applies `num_layers` random ops of `magnitude` (0 to 30, usually).

  `wrap` is for Solarize and Posterize, see the module.
  """
  table = AUGMENTATIONS if wrap else AUGMENTATIONS | CLAMPED
  augmentations = list(table.values())

  def apply(image, rng):
    for _ in range(num_layers):
      augment = augmentations[rng.integers(len(augmentations))]
      image = augment(image, magnitude / 10, rng)
    return image

  return apply


def _factor(level):
  return level * 1.8 + 0.1


def _color(image, level, _):
  """Blends with the image in grey."""
  # 0.2989 R + 0.587 G + 0.114 B, scaled as conversion to [0, 1] and back does.
  # float32 holds these sums exactly.
  sums = image.astype(np.float32) @ np.float32([2989, 5870, 1140])
  grey = sums.astype(np.int32) * 511 // 5_100_000
  return pixels.blend(grey[..., None], image, _factor(level))


def _contrast(image, level, _):
  mean = min(image.shape[0] * image.shape[1] // 256, 255)
  return pixels.fade(image, mean, _factor(level))


def _warp(image, matrix):
  """Returns the image whose pixel (x, y) is the input's at matrix (x, y, 1)."""
  rows, cols = image.shape[:2]
  x, y = np.arange(cols), np.arange(rows)[:, None]
  nearest = np.empty((rows, cols, 2), np.int16)
  for axis, (a, b, c) in enumerate(matrix):
    # Often x or y does not matter, and a single row or column is enough.
    source = (a * x + b * y if a and b else a * x if a else b * y) + c
    # To the nearest, halves away from zero.
    source = np.copysign(np.floor(np.abs(source) + 0.5), source)
    nearest[..., axis] = np.clip(source, -1, 2**15 - 1)
  outside = cv2.BORDER_CONSTANT, (_FILL,) * 3
  return cv2.remap(image, nearest, None, cv2.INTER_NEAREST, None, *outside)


def _cutout(image, level, rng):
  """Fills a square around a random pixel, cut at the border."""
  half_px = int(level * _CUTOUT_PX)
  rows, cols = (
    slice(max(centre - half_px, 0), centre + half_px)
    for centre in (int(rng.integers(n)) for n in image.shape[:2])
  )
  result = image.copy()
  result[rows, cols] = _FILL
  return result


# Functions of (image, level, generator); `level` is magnitude / 10.
AUGMENTATIONS = {
  "AutoContrast": lambda x, *_: pixels.autocontrast(x, np.float32),
  "Equalize": lambda x, *_: pixels.equalize(x),
  "Invert": lambda x, *_: 255 - x,
  "Rotate": pixels.rotate(_warp, -0.5),
  "Posterize": lambda x, level, _: pixels.posterize(
    x, min((8 - int(level * 4)) % 256, 7)
  ),
  "Solarize": lambda x, level, _: pixels.solarize(x, int(level * 256) % 256),
  "Color": _color,
  "Contrast": _contrast,
  "Brightness": lambda x, level, _: pixels.fade(x, 0, _factor(level)),
  "Sharpness": lambda x, level, _: pixels.sharpen(x, _factor(level), 0.5),
  "ShearX": pixels.affine(_warp, 0, 1, 0.3),
  "ShearY": pixels.affine(_warp, 1, 0, 0.3),
  "TranslateX": pixels.affine(_warp, 0, 2, _TRANSLATE_PX),
  "TranslateY": pixels.affine(_warp, 1, 2, _TRANSLATE_PX),
  "Cutout": _cutout,
  "SolarizeAdd": lambda x, level, _: pixels.solarize_add(x, int(level * 110)),
}
CLAMPED = {
  "Posterize": lambda x, level, _: pixels.posterize(
    x, min(max(8 - int(level * 4), 0), 7)
  ),
  "Solarize": lambda x, level, _: pixels.solarize(x, int(level * 256)),
}
