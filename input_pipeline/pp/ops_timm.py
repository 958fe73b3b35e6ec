"""RandAugment as timm has it, which DeiT and most CIFAR recipes use.

It is not the RandAugment of `ops_randaug`: fifteen ops, each applied with
probability 1/2, whose effect grows with the magnitude; cubic interpolation, and
a fill of ImageNet's mean colour.

Differs from timm: OpenCV's cubic kernel has a = -3/4, Pillow's -1, and what
lies outside the image blends in over one pixel.
"""

import math
import re

import cv2
import numpy as np

from dpn import errors
from input_pipeline.pp import op, ops_deit, pixels

_PARTS = ("m", "mstd", "n", "p", "inc")


@op.on_key_random
def rand_augment(
  spec: str = "rand-m9-mstd0.5-inc1",
  fill: tuple[int, int, int] = (124, 116, 104),
):
  """Applies random ops; `spec` is written as in timm's recipes.

  Args:
    spec: "rand", then joined by hyphens `m` (magnitude, 0 to 10), `mstd` (its
      standard deviation, 0 if not given), `n` (ops per image, 2), `p`
      (probability of each, 0.5) and `inc1`, the set of ops that grow with the
      magnitude, which is the only one here.
    fill: colour of what comes from outside the image.

  The image is uint8.
  """
  given = _parse(spec)
  magnitude, std = given["m"], given["mstd"]
  augmentations = list(AUGMENTATIONS.values())

  def apply(image, rng):
    pixels.check(image, "rand_augment")
    for k in rng.integers(len(augmentations), size=int(given["n"])):
      if rng.random() < given["p"]:
        level = min(max(rng.normal(magnitude, std), 0), 10) / 10
        image = augmentations[k](image, level, rng, fill)
    return image

  return apply


def _parse(spec):
  """Returns the numbers of a spec by name."""
  head, *parts = spec.split("-")
  values = {"mstd": 0.0, "n": 2.0, "p": 0.5}
  for part in parts:
    match = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", part)
    if not match or match[1] not in _PARTS:
      raise ValueError(
        f"In {spec!r}: " + errors.unknown("part of the recipe", part, _PARTS)
      )
    values[match[1]] = float(match[2])
  if head != "rand" or values.get("inc") != 1 or "m" not in values:
    raise ValueError(
      f"expected a recipe like 'rand-m9-mstd0.5-inc1' (rand, m and inc1 must "
      f"be there), got {spec!r}."
    )
  if values["m"] > 10 or values["p"] > 1 or values["n"] % 1:
    raise ValueError(
      f"expected m up to 10, p up to 1 and a whole n, got {spec!r}."
    )
  return values


# Below, `level` is magnitude / 10, from 0 to 1.


def _signed(value, rng):
  return value if rng.random() < 0.5 else -value


def _autocontrast(image, level, rng, fill):
  return pixels.autocontrast(image)


def _equalize(image, level, rng, fill):
  return pixels.equalize(image)


def _invert(image, level, rng, fill):
  return 255 - image


def _posterize(image, level, rng, fill):
  shift = 4 + int(level * 4)  # At the very top, no bit is left.
  return pixels.lookup(image, pixels.LEVELS >> shift << shift)


def _solarize(image, level, rng, fill):
  return pixels.solarize(image, 256 - int(level * 256))


def _solarize_add(image, level, rng, fill):
  return pixels.solarize_add(image, int(level * 110))


def _factor(level, rng):
  return max(0.1, 1 + _signed(level * 0.9, rng))


def _color(image, level, rng, fill):
  return ops_deit.adjust_saturation(image, _factor(level, rng))


def _contrast(image, level, rng, fill):
  return ops_deit.adjust_contrast(image, _factor(level, rng))


def _brightness(image, level, rng, fill):
  return ops_deit.adjust_brightness(image, _factor(level, rng))


def _sharpness(image, level, rng, fill):
  """Blends with a smoothed image, whose outermost pixels are the image's."""
  kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
  smooth = image.copy()
  smooth[1:-1, 1:-1] = cv2.filter2D(image, -1, kernel)[1:-1, 1:-1]
  return pixels.blend(smooth, image, _factor(level, rng))


def _warp(image, matrix, fill):
  """Returns the image whose point (x, y) is the input's at matrix (x, y, 1).

  Points are in pixels from the top left corner: pixel centres lie at halves.
  """
  inverse = np.array(matrix, np.float64)
  inverse[:, 2] += inverse[:, :2] @ [0.5, 0.5] - 0.5  # From centres to centres.
  return cv2.warpAffine(
    image,
    inverse,
    image.shape[1::-1],
    flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP,
    borderMode=cv2.BORDER_CONSTANT,
    borderValue=fill,
  )


def _rotate(image, level, rng, fill):
  angle = math.radians(_signed(level * 30, rng))
  cos, sin = math.cos(angle), math.sin(angle)
  y, x = image.shape[0] / 2, image.shape[1] / 2
  matrix = [
    (cos, -sin, x - cos * x + sin * y),
    (sin, cos, y - sin * x - cos * y),
  ]
  return _warp(image, matrix, fill)


def _shear_x(image, level, rng, fill):
  return _warp(image, [(1, _signed(level * 0.3, rng), 0), (0, 1, 0)], fill)


def _shear_y(image, level, rng, fill):
  return _warp(image, [(1, 0, 0), (_signed(level * 0.3, rng), 1, 0)], fill)


def _translate_x(image, level, rng, fill):
  shift_px = _signed(level * 0.45, rng) * image.shape[1]
  return _warp(image, [(1, 0, shift_px), (0, 1, 0)], fill)


def _translate_y(image, level, rng, fill):
  shift_px = _signed(level * 0.45, rng) * image.shape[0]
  return _warp(image, [(1, 0, 0), (0, 1, shift_px)], fill)


AUGMENTATIONS = {
  "AutoContrast": _autocontrast,
  "Equalize": _equalize,
  "Invert": _invert,
  "Rotate": _rotate,
  "Posterize": _posterize,
  "Solarize": _solarize,
  "SolarizeAdd": _solarize_add,
  "Color": _color,
  "Contrast": _contrast,
  "Brightness": _brightness,
  "Sharpness": _sharpness,
  "ShearX": _shear_x,
  "ShearY": _shear_y,
  "TranslateX": _translate_x,
  "TranslateY": _translate_y,
}

OPS = {"rand_augment": rand_augment}
