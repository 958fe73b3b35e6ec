"""RandAugment (arXiv 1909.13719), as in the TPU AutoAugment code.

Every layer draws one of sixteen ops, all equally likely, and applies it with
the shared magnitude; 10 is the top of the original scale, larger ones
extrapolate. Geometric ops draw their sign, sample the nearest pixel and fill
what comes from outside with 128.

Differs from the paper, as the code that everybody's results come from does:
- A chosen op is always applied: the code draws a probability and ignores it.
- Contrast blends with the grey level rows * cols / 256 (at most 255): the code
  takes the mean of the histogram's counts, not of the levels.
- A smaller magnitude is not always milder: at 0 Solarize inverts the image,
  Posterize keeps one bit, and the four enhancing ops keep a tenth.
"""

import math

import cv2
import numpy as np

from input_pipeline import op

_FILL = 128
_CUTOUT_PX = 40
_TRANSLATE_PX = 100


@op.on_key_random
def randaug(num_layers: int = 2, magnitude: float = 10):
  """Applies `num_layers` random ops of `magnitude` (0 to 30, usually).

  The image is uint8 of shape (rows, cols, 3).
  """
  if num_layers < 0 or magnitude < 0:
    raise ValueError(
      f"num_layers and magnitude must not be negative, got {num_layers!r} and "
      f"{magnitude!r}."
    )
  augmentations = list(AUGMENTATIONS.values())

  def apply(image, rng):
    if image.dtype != np.uint8 or image.shape[2:] != (3,):
      raise ValueError(
        f"expected uint8 of shape (rows, cols, 3), got {image.dtype} of "
        f"{image.shape}: place randaug before value_range."
      )
    for _ in range(num_layers):
      augment = augmentations[rng.integers(len(augmentations))]
      image = augment(image, magnitude / 10, rng)
    return image

  return apply


# Below, `level` is magnitude / 10.


def _lookup(image, table):
  """Maps levels through a table of shape (256,) or (256, 3)."""
  return cv2.LUT(image, np.asarray(table).astype(np.uint8)[None])


def _blend(low, high, factor):
  """Returns low + factor (high - low), cut to uint8."""
  low, high = np.float32(low), np.float32(high)
  return np.clip(low + np.float32(factor) * (high - low), 0, 255).astype(
    np.uint8
  )


_LEVELS = np.arange(256)


def _autocontrast(image, level, rng):
  """Stretches every channel to the full range."""
  flat = image.reshape(-1, 3)
  low, high = np.float32(flat.min(0)), np.float32(flat.max(0))
  spread = high > low
  scale = np.float32(255) / np.where(spread, high - low, np.float32(1))
  table = np.float32(_LEVELS[:, None]) * scale - low * scale
  table = np.where(spread, np.clip(table, 0, 255), _LEVELS[:, None])
  return _lookup(image, table)


def _equalize(image, level, rng):
  """Flattens every channel's histogram."""
  tables = []
  for channel in range(3):
    counts = cv2.calcHist([image], [channel], None, [256], [0, 256])
    counts = counts[:, 0].astype(np.int64)
    last = counts[counts.nonzero()[0][-1]]
    step = (counts.sum() - last) // 255
    if step:
      below = np.cumsum(counts) - counts
      table = np.minimum((below + step // 2) // step, 255)
    else:
      table = _LEVELS
    tables.append(table)
  return _lookup(image, np.stack(tables, -1))


def _invert(image, level, rng):
  return 255 - image


def _posterize(image, level, rng):
  shift = min(max(8 - int(level * 4), 0), 7)
  return _lookup(image, _LEVELS >> shift << shift)


def _solarize(image, level, rng):
  return _lookup(
    image, np.where(int(level * 256) > _LEVELS, _LEVELS, 255 - _LEVELS)
  )


def _solarize_add(image, level, rng):
  added = np.minimum(_LEVELS + int(level * 110), 255)
  return _lookup(image, np.where(_LEVELS < 128, added, _LEVELS))


def _enhancement(level):
  return level * 1.8 + 0.1


def _color(image, level, rng):
  """Blends with the image in grey."""
  # 0.2989 R + 0.587 G + 0.114 B, scaled as conversion to [0, 1] and back does.
  # float32 holds these sums exactly.
  sums = image.astype(np.float32) @ np.float32([2989, 5870, 1140])
  grey = sums.astype(np.int32) * 511 // 5_100_000
  return _blend(grey[..., None], image, _enhancement(level))


def _contrast(image, level, rng):
  mean = min(image.shape[0] * image.shape[1] // 256, 255)
  return _lookup(image, _blend(mean, _LEVELS, _enhancement(level)))


def _brightness(image, level, rng):
  return _lookup(image, _blend(0, _LEVELS, _enhancement(level)))


def _sharpness(image, level, rng):
  """Blends with a smoothed image; the outermost pixels stay."""
  kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32)
  smooth = cv2.filter2D(image, cv2.CV_32F, kernel) // 13
  result = image.copy()
  inner = (slice(1, -1), slice(1, -1))
  result[inner] = _blend(smooth[inner], image[inner], _enhancement(level))
  return result


def _signed(value, rng):
  return value if rng.random() < 0.5 else -value


def _warp(image, matrix):
  """Returns the image whose pixel (x, y) is the input's at matrix (x, y, 1)."""
  rows, cols = image.shape[:2]
  x, y = np.arange(cols), np.arange(rows)[:, None]
  source = np.empty((rows, cols, 2))
  for axis, (a, b, c) in enumerate(matrix):
    source[..., axis] = a * x + b * y + c
  # To the nearest, halves away from zero.
  source = np.copysign(np.floor(np.abs(source) + 0.5), source)
  return cv2.remap(
    image,
    np.clip(source, -1, 2**15 - 1).astype(np.int16),
    None,
    cv2.INTER_NEAREST,
    borderMode=cv2.BORDER_CONSTANT,
    borderValue=(_FILL,) * 3,
  )


def _rotate(image, level, rng):
  """Rotates about the centre, by up to 30 degrees at magnitude 10."""
  angle = math.radians(_signed(level * 30, rng))
  cos, sin = math.cos(angle), math.sin(angle)
  x, y = (image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2
  return _warp(
    image,
    [
      (cos, -sin, x - cos * x + sin * y),
      (sin, cos, y - sin * x - cos * y),
    ],
  )


def _shear_x(image, level, rng):
  return _warp(image, [(1, _signed(level * 0.3, rng), 0), (0, 1, 0)])


def _shear_y(image, level, rng):
  return _warp(image, [(1, 0, 0), (_signed(level * 0.3, rng), 1, 0)])


def _translate_x(image, level, rng):
  shift_px = _signed(level * _TRANSLATE_PX, rng)
  return _warp(image, [(1, 0, shift_px), (0, 1, 0)])


def _translate_y(image, level, rng):
  shift_px = _signed(level * _TRANSLATE_PX, rng)
  return _warp(image, [(1, 0, 0), (0, 1, shift_px)])


def _cutout(image, level, rng):
  """Fills a square around a random pixel, cut at the border."""
  half_px = int(level * _CUTOUT_PX)
  row, col = (int(rng.integers(n)) for n in image.shape[:2])
  result = image.copy()
  result[
    max(row - half_px, 0) : row + half_px, max(col - half_px, 0) : col + half_px
  ] = _FILL
  return result


AUGMENTATIONS = {
  "AutoContrast": _autocontrast,
  "Equalize": _equalize,
  "Invert": _invert,
  "Rotate": _rotate,
  "Posterize": _posterize,
  "Solarize": _solarize,
  "Color": _color,
  "Contrast": _contrast,
  "Brightness": _brightness,
  "Sharpness": _sharpness,
  "ShearX": _shear_x,
  "ShearY": _shear_y,
  "TranslateX": _translate_x,
  "TranslateY": _translate_y,
  "Cutout": _cutout,
  "SolarizeAdd": _solarize_add,
}

OPS = {"randaug": randaug}
