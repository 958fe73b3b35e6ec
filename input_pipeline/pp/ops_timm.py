"""Augmentations of the DeiT recipes, with timm's names and defaults.

timm's RandAugment differs from `ops_randaug`: its fifteen ops are each applied
with probability 1/2, and their effect grows with the magnitude; it interpolates
cubically, and fills with ImageNet's mean colour. The other augmentations are
color jitter (Pillow's enhancements), 3-Augment (DeiT III, arXiv 2204.07118 §3)
and random erasing (arXiv 1708.04896).

Differs from timm and Pillow, on which published results rest: the cubic kernel
is OpenCV's, a = -3/4 instead of -1; what lies outside the image blends in over
one pixel; luma may be one level off; the blur is a true Gaussian instead of
three box filters.
"""

import math
import re

import cv2
import numpy as np

from dpn.input_pipeline.pp import op, pixels


@op.on_key_random(channels=(3,))
def rand_augment(
  spec: str = "rand-m9-mstd0.5-inc1",
  fill: int | tuple[int, int, int] = (124, 116, 104),
):
  """Applies random ops; `spec` is written as in timm's recipes.

  That is "rand", then joined by hyphens `m` (magnitude, 0 to 10), `mstd` (its
  standard deviation, 0 if not given; above 100: uniform in [0, m]), `n` (ops
  per image, 2), `p` (probability of each, 0.5) and `inc1` (ops that grow with
  the magnitude, the only set here). Pixels from outside the image are `fill`.
  """
  given = _parse(spec)
  fill = (fill,) * 3 if isinstance(fill, int) else fill
  mean, std = given["m"], given["mstd"]
  augmentations = list(AUGMENTATIONS.values())

  def apply(image, rng):
    for k in rng.integers(len(augmentations), size=int(given["n"])):
      if rng.random() < given["p"]:
        magnitude = rng.uniform(0, mean) if std > 100 else rng.normal(mean, std)
        level = min(max(magnitude, 0), 10) / 10
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


def _warp(image, matrix, fill):
  """Returns the image whose point (x, y) is the input's at matrix (x, y, 1).

  Points are in pixels from the top left corner: pixel centres lie at halves.
  """
  matrix[:, 2] += matrix[:, :2] @ [0.5, 0.5] - 0.5  # From centres to centres.
  size, flags = image.shape[1::-1], cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
  return cv2.warpAffine(
    image, matrix, size, None, flags, cv2.BORDER_CONSTANT, fill
  )


@op.on_key_random(channels=(3,))
def color_jitter(
  brightness: float = 0.4, contrast: float = 0.4, saturation: float = 0.4
):
  """Changes brightness, contrast and saturation, in random order.

  The factor of an argument x is uniform in [max(0, 1 - x), 1 + x]; 1 leaves the
  uint8 image as it is, 0 gives black, the mean grey, or the image in grey.
  """
  strengths = {
    adjust_brightness: brightness,
    adjust_contrast: contrast,
    adjust_saturation: saturation,
  }
  enhancers = [(fn, strength) for fn, strength in strengths.items() if strength]

  def apply(image, rng):
    for k in rng.permutation(len(enhancers)):
      enhance, strength = enhancers[k]
      image = enhance(image, rng.uniform(max(0, 1 - strength), 1 + strength))
    return image

  return apply


@op.on_key_random(channels=(3,))
def three_augment():
  """Makes the image grey, solarizes it, or blurs it: one of the three.

  The threshold is 128; sigma is uniform in [0.1, 2] pixels. DeiT III flips the
  uint8 image before this op, and jitters its colours with 0.3 after it.
  """

  def apply(image, rng):
    choice = rng.integers(3)
    if choice == 0:
      return pixels.grey(image)
    if choice == 1:
      return pixels.solarize(image, 128)
    return blur(image, rng.uniform(0.1, 2.0))

  return apply


@op.on_key_random
def random_erasing(
  p: float = 0.25, area_min: float = 2, area_max: float = 100 / 3
):
  """Replaces, with probability `p`, a random box by normal noise.

  Areas are in percent of the image's. The box's height / width is log-uniform
  in [0.3, 1 / 0.3]; after ten attempts that do not fit, nothing is erased. The
  noise has mean 0 and deviation 1: the op belongs after vgg_value_range, or
  value_range.
  """
  if not 0 <= p <= 1:
    raise ValueError(f"p is a probability, in [0, 1]: got {p!r}.")
  op.check_areas(area_min, area_max)

  def apply(image, rng):
    if image.dtype != np.float32:
      raise ValueError(
        f"expected float32, got {image.dtype}: place random_erasing after "
        "vgg_value_range or value_range."
      )
    if rng.random() >= p:
      return image
    rows, cols = image.shape[:2]
    for _ in range(10):
      area = rng.uniform(area_min, area_max) / 100 * rows * cols
      aspect = math.exp(rng.uniform(math.log(0.3), -math.log(0.3)))
      height = round(math.sqrt(area * aspect))
      width = round(math.sqrt(area / aspect))
      if height < rows and width < cols:
        top = int(rng.integers(rows - height + 1))
        left = int(rng.integers(cols - width + 1))
        image = image.copy()
        box = image[top : top + height, left : left + width]
        box[:] = rng.standard_normal(box.shape, np.float32)
        break
    return image

  return apply


def adjust_brightness(image: np.ndarray, factor: float) -> np.ndarray:
  """Blends with black."""
  return pixels.fade(image, 0, factor)


def adjust_contrast(image: np.ndarray, factor: float) -> np.ndarray:
  """Blends with the mean level of the image in grey."""
  luma = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
  return pixels.fade(image, int(cv2.mean(luma)[0] + 0.5), factor)


def adjust_saturation(image: np.ndarray, factor: float) -> np.ndarray:
  """Blends with the image in grey."""
  return pixels.blend(pixels.grey(image), image, factor)


def blur(image: np.ndarray, sigma_px: float) -> np.ndarray:
  """Returns the image blurred by a Gaussian; outside, the border repeats."""
  return cv2.GaussianBlur(
    image, (0, 0), sigma_px, borderType=cv2.BORDER_REPLICATE
  )


# Functions of (image, level, generator, fill); `level` is magnitude / 10.
AUGMENTATIONS = {
  "AutoContrast": lambda x, *_: pixels.autocontrast(x),
  "Equalize": lambda x, *_: pixels.equalize(x),
  "Invert": lambda x, *_: 255 - x,
  "Rotate": pixels.rotate(_warp, 0),
  # At level 1, no bit is left.
  "Posterize": lambda x, level, *_: pixels.posterize(x, 4 + int(level * 4)),
  "Solarize": lambda x, level, *_: pixels.solarize(x, 256 - int(level * 256)),
  "SolarizeAdd": lambda x, level, *_: pixels.solarize_add(x, int(level * 110)),
  "Color": _enhancer(adjust_saturation),
  "Contrast": _enhancer(adjust_contrast),
  "Brightness": _enhancer(adjust_brightness),
  "Sharpness": _enhancer(lambda x, factor: pixels.sharpen(x, factor, 6.5)),
  "ShearX": pixels.affine(_warp, 0, 1, 0.3),
  "ShearY": pixels.affine(_warp, 1, 0, 0.3),
  "TranslateX": pixels.affine(_warp, 0, 2, 0.45, relative=True),
  "TranslateY": pixels.affine(_warp, 1, 2, 0.45, relative=True),
}
