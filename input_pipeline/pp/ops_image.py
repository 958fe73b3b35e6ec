"""Ops on images: arrays (rows, cols, channels), or encoded bytes to decode.

Names, arguments and defaults are big_vision's, except that `decode` always
returns the pixels of big_vision's `precise=True`, and that
`decode_jpeg_and_inception_crop` takes the ratios last. Images stay uint8 until
`value_range` or `vgg_value_range`.
"""

import contextlib
import inspect
import io
import math
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

from dpn import errors
from dpn.input_pipeline.pp import jpeg, lazy_image, op, pixels
from dpn.input_pipeline.pp import resize as resizing

# The loader's threads already keep every core busy.
cv2.setNumThreads(1)

PNG = b"\x89PNG\r\n\x1a\n"
_DECODE_FLAGS = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR_RGB}


def decode_image(data: bytes, channels: int = 3) -> np.ndarray:
  """Returns the image in `data` as uint8 of shape (rows, cols, channels).

  JPEG, PNG, WebP, AVIF, BMP, GIF (first frame) and TIFF. With three channels,
  grey images are repeated, palettes are looked up and CMYK is converted; with
  one, colours become their luma. An alpha channel is dropped, not blended, but
  a GIF's transparent pixels have its background's colour; 16-bit samples keep
  their high byte, or are rounded (TIFF without alpha); an EXIF orientation is
  ignored, as in TensorFlow, but a TIFF's orientation is not.

  Raises:
    ValueError: `data` is not bytes, or not one whole image. A JPEG that is
      damaged inside but has its last bytes is decoded all the same.
  """
  if not isinstance(data, bytes):
    raise ValueError(
      f"expected the bytes of an encoded image, got {type(data).__name__} "
      f"{np.shape(data)}: leave decoding out if the data set is decoded."
    )
  flags = _DECODE_FLAGS[channels] | cv2.IMREAD_IGNORE_ORIENTATION
  if avif := channels == 3 and data[4:8] == b"ftyp":
    # With an alpha channel, OpenCV returns BGR whatever it is asked for.
    flags = cv2.IMREAD_COLOR_BGR | cv2.IMREAD_IGNORE_ORIENTATION
  image = imdecode(data, flags)
  if avif:
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
  if data.startswith((b"II*\0", b"MM\0*")):
    image = _without_alpha(data, image)
  return image.reshape(*image.shape[:2], channels)


def _without_alpha(data, image):
  """Returns a TIFF's image; OpenCV would premultiply colours by alpha."""
  if np.shape(imdecode(data, cv2.IMREAD_UNCHANGED))[2:] != (4,):
    return image
  whole = Image.open(io.BytesIO(data), formats=["TIFF"])
  if whole.mode not in ("RGBA", "RGBa", "RGBX"):
    return image
  whole = whole.convert("RGBA") if whole.mode == "RGBa" else whole
  colours = np.ascontiguousarray(np.asarray(whole)[..., :3])
  return (
    colours if image.ndim == 3 else cv2.cvtColor(colours, cv2.COLOR_RGB2GRAY)
  )


def imdecode(data: bytes, flags: int) -> np.ndarray:
  """Returns what OpenCV decodes with these flags.

  Raises:
    ValueError: `data` is not one whole image.
  """
  image = None
  if not jpeg.is_bomb(data) and (not data.startswith(PNG) or _chunks_fit(data)):
    # OpenCV asserts that data are not empty and that no image is too large.
    with contextlib.suppress(cv2.error):
      image = cv2.imdecode(np.frombuffer(data or b"\0", np.uint8), flags)
  if image is None:
    raise ValueError(
      f"not a whole image in a known format ({len(data)} bytes that start "
      f"with {data[:12]!r}): the record is truncated, no image, one of more "
      "than 2**27 pixels, or one that must be converted before, such as HEIC."
    )
  return image


def _chunks_fit(data: bytes) -> bool:
  """Returns whether a PNG's chunks have the lengths they claim.

  OpenCV allocates the claimed lengths, perhaps gigabytes, before it checks.
  """
  place = len(PNG)
  while place < len(data) and data[place + 4 : place + 8] != b"IEND":
    place += int.from_bytes(data[place : place + 4], "big") + 12
  return place < len(data)


def sample_crop(
  rows: int,
  cols: int,
  rng: np.random.Generator,
  *,
  area: tuple[float, float] = (0.05, 1.0),
  ratio: tuple[float, float] = (0.75, 1.33),
) -> tuple[int, int, int, int]:
  """Returns a random box (top, left, height, width) inside the image.

  Follows `tf.image.sample_distorted_bounding_box` without boxes (GoogLeNet's
  crop, arXiv 1409.4842 §6): the aspect ratio, width / height, is uniform in
  `ratio`; then the *height* is uniform among those that keep the area within
  `area` (fractions of the image) and the box within the image. If 100 attempts
  find none, the box is the whole image.

  Differs from TensorFlow: the last row and column can be reached.
  """
  low, high = (fraction * rows * cols for fraction in area)
  for _ in range(100):
    aspect = rng.uniform(*ratio)
    shortest = round((low / aspect) ** 0.5)
    tallest = round((high / aspect) ** 0.5)
    if round(tallest * aspect) > cols:
      tallest = int((cols + 0.5) / aspect)
    tallest = min(tallest, rows)
    height = int(rng.integers(min(shortest, tallest), tallest + 1))
    # Rounding may have left the range by one pixel.
    if height * round(height * aspect) < low:
      height += 1
    if height * round(height * aspect) > high:
      height -= 1
    width = round(height * aspect)
    if (
      0 < height <= rows and 0 < width <= cols and low <= height * width <= high
    ):
      top = int(rng.integers(rows - height + 1))
      left = int(rng.integers(cols - width + 1))
      return top, left, height, width
  return 0, 0, rows, cols


def _crop(image, top, left, height, width):
  rows, cols = image.shape[:2]
  if height > rows or width > cols:
    raise ValueError(
      f"cannot crop {height} x {width} pixels from an image of {rows} x "
      f"{cols}: resize or pad it first."
    )
  return np.ascontiguousarray(lazy_image.cut(image, top, left, height, width))


def _resizer(method, antialias):
  """Returns a function that resizes an image to a size."""
  errors.check_known("resize method", method, resizing.METHODS)
  return lambda image, size: resizing.resize(image, size, method, antialias)


@op.on_key(kind="decode", lazy=True)
def decode(channels: int = 3):
  """Decodes an image to uint8 (rows, cols, channels); see `decode_image`."""
  if channels not in _DECODE_FLAGS:
    raise ValueError(f"channels must be 1 or 3, got {channels!r}.")

  def apply(data):
    lazy = jpeg.lazy(data, decode_image) if channels == 3 else None
    return lazy or decode_image(data, channels)

  return apply


@op.on_key_random(kind="crop", lazy=True)
def inception_crop(
  size: int | tuple[int, int] | None = None,
  area_min: float = 5,
  area_max: float = 100,
  method: str = "bilinear",
  antialias: bool = False,
  ratio_min: float = 0.75,
  ratio_max: float = 1.33,
):
  """Crops a random box, of random area and aspect ratio; see `sample_crop`.

  Areas are in percent of the image's, ratios are width / height. The crop is
  resized to `size`, by `method` and `antialias` as in `resize`; None leaves it
  as large as it is.
  """
  op.check_areas(area_min, area_max)
  if not 0 < ratio_min <= ratio_max:
    raise ValueError(
      f"expected 0 < ratio_min <= ratio_max, got {(ratio_min, ratio_max)}."
    )
  resize_to = _resizer(method, antialias)
  size = None if size is None else op.pair(size)
  area, ratio = (area_min / 100, area_max / 100), (ratio_min, ratio_max)

  def apply(image, rng):
    box = sample_crop(*image.shape[:2], rng, area=area, ratio=ratio)
    if not size:
      return _crop(image, *box)
    return resize_to(lazy_image.cut(image, *box), size)

  return apply


@op.declare(kind="crop", lazy=True, random=True)
def decode_jpeg_and_inception_crop(
  *args, key=None, inkey="image", outkey="image", **kw
):
  """Decodes (any format), then crops as `inception_crop` does."""
  decoder = decode(key=key, inkey=inkey, outkey=outkey)
  cropper = inception_crop(*args, key=key or outkey, **kw)
  return lambda example, rng: cropper(decoder(example, rng), rng)


decode_jpeg_and_inception_crop.__signature__ = inspect.signature(inception_crop)


@op.on_key(kind="resize", lazy=True)
def resize(
  size: int | tuple[int, int], method: str = "bilinear", antialias: bool = False
):
  """Resizes to `size`; see `dpn.input_pipeline.pp.resize` for the methods."""
  size, resize_to = op.pair(size), _resizer(method, antialias)
  return lambda image: resize_to(image, size)


def _resize_side(side, length_px, method, antialias, rounded=True):
  """Returns a function that makes one side (`min` or `max`) `length_px`."""
  if isinstance(length_px, tuple | list):
    raise ValueError(
      f"expected one side in pixels, got {length_px!r}: for both, use resize."
    )
  length_px, _ = op.pair(length_px)
  resize_to = _resizer(method, antialias)

  def apply(image):
    # In float32, as the sizes behind published results were computed.
    sides = np.array(image.shape[:2], np.float32)
    factor = np.float32(length_px) / side(sides)
    rows, cols = np.maximum(np.round(sides * factor), 1).astype(int).tolist()
    if not rounded:
      rows, cols = (length_px * x // int(side(sides)) for x in image.shape[:2])
    return resize_to(image, (rows, cols))

  return apply


@op.on_key(kind="resize_shorter", size="smaller_size", lazy=True)
def resize_small(
  smaller_size: int,
  method: str = "area",
  antialias: bool = False,
  rounded: bool = True,
):
  """Resizes the shorter side to `smaller_size`, keeping the aspect ratio.

  The longer side is rounded; rounded=False rounds it down, as torchvision does.
  """
  return _resize_side(np.min, smaller_size, method, antialias, rounded)


@op.on_key(kind="rescale", lazy=True)
def resize_long(longer_size: int, method: str = "area", antialias: bool = True):
  """Resizes the longer side to `longer_size`, keeping the aspect ratio."""
  return _resize_side(np.max, longer_size, method, antialias)


@op.on_key(kind="central_crop", size="crop_size", lazy=True)
def central_crop(
  crop_size: int | tuple[int, int] | None = None, rounded: bool = False
):
  """Crops the centre; by default the largest square.

  Where it starts is rounded down; `rounded` rounds it, as torchvision does.
  """
  size = None if crop_size is None else op.pair(crop_size)

  def apply(image):
    rows, cols = image.shape[:2]
    height, width = size or (min(rows, cols),) * 2
    whole = round if rounded else math.floor
    top, left = whole((rows - height) / 2), whole((cols - width) / 2)
    return _crop(image, top, left, height, width)

  return apply


@op.on_key(kind="crop", size="crop_size", lazy=True)
def top_left_crop(crop_size: int | tuple[int, int]):
  """Crops the top left corner, such as the part a convolution strides over."""
  height, width = op.pair(crop_size)
  return lambda image: _crop(image, 0, 0, height, width)


@op.on_key_random(kind="crop", size="crop_size", lazy=True)
def random_crop(crop_size: int | tuple[int, int]):
  """Crops a box of `crop_size`, all positions equally likely."""
  height, width = op.pair(crop_size)

  def apply(image, rng):
    rows, cols = image.shape[:2]
    top = int(rng.integers(max(rows - height, 0) + 1))
    left = int(rng.integers(max(cols - width, 0) + 1))
    return _crop(image, top, left, height, width)

  return apply


@op.on_key_random
def flip_lr():
  """Mirrors left and right, half the time."""
  flip = lambda image: cv2.flip(image, 1).reshape(image.shape)
  return lambda image, rng: image if rng.random() < 0.5 else flip(image)


def _standardized(mean, std, **_):
  return (np.asarray(mean) / 255).tolist(), (np.asarray(std) / 255).tolist()


@op.on_key(kind="normalize", pixels=_standardized)
def vgg_value_range(
  mean: Sequence[float] = (0.485 * 255, 0.456 * 255, 0.406 * 255),
  std: Sequence[float] = (0.229 * 255, 0.224 * 255, 0.225 * 255),
):
  """Subtracts `mean` and divides by `std`, per channel, as float32."""
  if not np.all(np.greater(std, 0)):
    raise ValueError(f"expected deviations above 0, got std={std}.")
  scale = 1 / np.asarray(std, np.float64)
  return pixels.linear(scale, -np.asarray(mean) * scale)
