"""RandAugment as timm has it, which DeiT and most CIFAR recipes use.

It is not the RandAugment of `ops_randaug`: fifteen ops, each applied with
probability 1/2, whose effect grows with the magnitude; cubic interpolation, and
a fill of ImageNet's mean colour.

Differs from timm: OpenCV's cubic kernel has a = -3/4, Pillow's -1, and what
lies outside the image blends in over one pixel.
"""

import re

import cv2
import numpy as np

from input_pipeline.pp import op, ops_deit, pixels


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
  number = re.compile(r"(m|mstd|n|p|inc)(\d+(?:\.\d+)?)")
  matches = [number.fullmatch(part) for part in parts]
  values = {"m": -1, "mstd": 0.0, "n": 2.0, "p": 0.5, "inc": 0}
  if head == "rand" and all(matches):
    values |= {match[1]: float(match[2]) for match in matches}
  in_range = 0 <= values["m"] <= 10 and values["p"] <= 1
  if not in_range or values["n"] % 1 or values["inc"] != 1:
    raise ValueError(
      "expected a recipe like 'rand-m9-mstd0.5-inc1' (m up to 10 and inc1 must "
      f"be there; mstd, a whole n and p up to 1 may be), got {spec!r}."
    )
  return values


def _enhancer(enhance):
  """Returns the op that enhances by a random factor around 1."""
  return lambda image, level, rng, _: enhance(
    image, max(0.1, 1 + pixels.random_sign(level * 0.9, rng))
  )


def _sharpen(image, factor):
  """Blends with a smoothed image, whose outermost pixels are the image's."""
  kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13
  smooth = image.copy()
  smooth[1:-1, 1:-1] = cv2.filter2D(image, -1, kernel)[1:-1, 1:-1]
  return pixels.blend(smooth, image, factor)


def _warp(image, matrix, fill):
  """Returns the image whose point (x, y) is the input's at matrix (x, y, 1).

  Points are in pixels from the top left corner: pixel centres lie at halves.
  """
  matrix[:, 2] += matrix[:, :2] @ [0.5, 0.5] - 0.5  # From centres to centres.
  return cv2.warpAffine(
    image,
    matrix,
    image.shape[1::-1],
    flags=cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP,
    borderMode=cv2.BORDER_CONSTANT,
    borderValue=fill,
  )


def _rotate(image, level, rng, fill):
  degrees = pixels.random_sign(level * 30, rng)
  rows, cols = image.shape[:2]
  return _warp(image, pixels.rotation(degrees, cols / 2, rows / 2), fill)


# Functions of (image, level, generator, fill); `level` is magnitude / 10.
AUGMENTATIONS = {
  "AutoContrast": lambda x, *_: pixels.autocontrast(x),
  "Equalize": lambda x, *_: pixels.equalize(x),
  "Invert": lambda x, *_: 255 - x,
  "Rotate": _rotate,
  # At the very top, no bit is left.
  "Posterize": lambda x, level, *_: pixels.posterize(x, 4 + int(level * 4)),
  "Solarize": lambda x, level, *_: pixels.solarize(x, 256 - int(level * 256)),
  "SolarizeAdd": lambda x, level, *_: pixels.solarize_add(x, int(level * 110)),
  "Color": _enhancer(ops_deit.adjust_saturation),
  "Contrast": _enhancer(ops_deit.adjust_contrast),
  "Brightness": _enhancer(ops_deit.adjust_brightness),
  "Sharpness": _enhancer(_sharpen),
  "ShearX": pixels.affine(_warp, 0, 1, 0.3),
  "ShearY": pixels.affine(_warp, 1, 0, 0.3),
  "TranslateX": pixels.affine(_warp, 0, 2, 0.45, relative=True),
  "TranslateY": pixels.affine(_warp, 1, 2, 0.45, relative=True),
}
