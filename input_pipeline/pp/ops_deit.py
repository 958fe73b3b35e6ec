"""Augmentations of the DeiT recipes: jitter, three-augment, random erasing.

Published as color jitter (Pillow's enhancements), 3-Augment (DeiT III, arXiv
2204.07118 §3) and random erasing (arXiv 1708.04896), with timm's defaults.

Differs from Pillow, on which published results rest: luma may be one level off;
the blur is a true Gaussian, where Pillow's is three box filters.
"""

import math

import cv2
import numpy as np

from input_pipeline.pp import op, pixels


@op.on_key_random
def color_jitter(
  brightness: float = 0.4, contrast: float = 0.4, saturation: float = 0.4
):
  """Changes brightness, contrast and saturation, in random order.

  Each factor is uniform in [max(0, 1 - x), 1 + x]; 1 is the image as it is, 0
  black, the mean grey, or the image in grey. The image is uint8.
  """
  strengths = {
    adjust_brightness: brightness,
    adjust_contrast: contrast,
    adjust_saturation: saturation,
  }
  enhancers = [(fn, strength) for fn, strength in strengths.items() if strength]

  def apply(image, rng):
    pixels.check(image, "color_jitter")
    for k in rng.permutation(len(enhancers)):
      enhance, strength = enhancers[k]
      image = enhance(image, rng.uniform(max(0, 1 - strength), 1 + strength))
    return image

  return apply


@op.on_key_random
def three_augment():
  """Makes the image grey, solarizes it, or blurs it: one of the three.

  The threshold is 128; sigma is uniform in [0.1, 2] pixels. DeiT III flips
  before, and jitters colours with 0.3 after it. The image is uint8.
  """

  def apply(image, rng):
    pixels.check(image, "three_augment")
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
  """Returns the image under a Gaussian; the border is repeated outside."""
  return cv2.GaussianBlur(
    image, (0, 0), sigma_px, borderType=cv2.BORDER_REPLICATE
  )
