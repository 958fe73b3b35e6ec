"""Preprocesses images from files, bytes or arrays for a model."""

import os
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np

from dpn import damage, paths
from dpn.input_pipeline import pp
from dpn.input_pipeline.pp import ops_image
from dpn.weights import preprocessing

# How to convert arrays, by (channels that they have, channels wanted).
_CODES = {
  (1, 3): cv2.COLOR_GRAY2RGB,
  (3, 1): cv2.COLOR_RGB2GRAY,
  (4, 1): cv2.COLOR_RGBA2GRAY,
  (4, 3): cv2.COLOR_RGBA2RGB,
}


def prepare(
  images: Sequence[Any],
  preprocess: preprocessing.Preprocess,
  modules: Sequence[str] = (),
) -> np.ndarray:
  """Returns a batch (images, rows, cols, channels) to apply a model to.

  Args:
    images: paths, encoded bytes, Pillow images, or uint8 arrays of shape
      (rows, cols, channels) or (rows, cols).
    preprocess: the model's, from `dpn.models.vit.from_pretrained`.
    modules: modules with your own ops, as in `config.pp_modules`.

  Raises:
    ValueError, OSError: an image cannot be read, or does not come out in the
      size that the model takes.
  """
  if _is_one(images) or not (images := list(images)):
    raise ValueError(
      f"Expected a list of images, got {type(images).__name__} "
      f"{np.shape(images)}. A single one goes into a list, too."
    )
  ops = pp.make(pp.replace(preprocess.pp, "decode", ""), modules)
  *size, channels = preprocess.shape
  result = []
  for i, image in enumerate(images):
    name = image if isinstance(image, str | os.PathLike) else f"Image {i}"
    with damage.reading(str(name)):
      pixels = to_uint8(image, channels)
      result.append(ops({"image": pixels}, np.random.default_rng(0))["image"])
    want = (*(size if size[0] else result[0].shape[:2]), channels)
    if result[-1].shape != want:
      raise ValueError(
        f"{name} becomes {result[-1].shape} by {preprocess.pp!r}; expected "
        f"{want}. Resize it before, or add 'resize({want[:2]})|' to the ops: "
        "dataclasses.replace(preprocess, pp=…)."
      )
  return np.stack(result)


def _is_one(images) -> bool:
  """Returns whether this is a single image instead of a list of them."""
  is_array = hasattr(images, "ndim") and images.ndim < 4
  is_file = isinstance(images, str | bytes | os.PathLike)
  return is_file or is_array or hasattr(images, "convert")


def to_uint8(image: Any, channels: int) -> np.ndarray:
  """Returns an image as uint8 (rows, cols, channels).

  Args:
    image: see `prepare`.
    channels: how many to return. Grey becomes three equal channels, colours
      become their luma, and an alpha channel is dropped.

  Raises:
    ValueError, OSError: it is no image, or has other channels.
  """
  if isinstance(image, str | os.PathLike):
    image = paths.read(image)
  if isinstance(image, bytes):
    if channels not in (1, 3):
      raise ValueError(f"of files 1 or 3 channels are read, got {channels}")
    return ops_image.decode_image(image, channels)
  if hasattr(image, "convert"):  # Pillow's
    if image.mode in ("I", "F"):
      raise ValueError(
        f"got an image of Pillow's mode {image.mode!r}, whose range is not "
        "known. Expected grey, colours or 16 bits; or give the file's path."
      )
    if image.mode.startswith("I;16"):
      image = (np.asarray(image) >> 8).astype(np.uint8)  # as from a file
    else:
      image = image.convert("L" if channels == 1 else "RGB")
  pixels = np.asarray(image)
  if pixels.ndim == 2:
    pixels = pixels[..., None]
  code = _CODES.get((*pixels.shape[2:], channels))
  if code is not None and pixels.size and pixels.dtype == np.uint8:
    pixels = cv2.cvtColor(pixels, code).reshape(*pixels.shape[:2], channels)
  if pixels.dtype != np.uint8 or pixels.shape[2:] != (channels,):
    raise ValueError(
      f"got {pixels.dtype}{pixels.shape}; expected uint8 (rows, cols, "
      f"{channels}), levels from 0 to 255."
    )
  return pixels
