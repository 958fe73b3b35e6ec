"""Ops on an image and its label map, with the same random draw for both.

`decode_labels` makes `labels`, uint8 of shape (rows, cols), which other ops
treat like the `image`. ADE20K as Dual PatchNorm trains on it (arXiv 2302.01327,
Appendix G, which calls `random_resize_with_mask` mmseg_style_resize):

    decode
    |decode_labels(150, inkey="annotation", reduce_zero_label=True)
    |random_resize_with_mask((2048, 512), (0.5, 2.0))
    |random_crop_with_mask(512, cat_max=0.75)
    |flip_with_mask
    |photometric_distortion
    |vgg_value_range
    |pad_to_shape((512, 512, 3))
    |pad_to_shape((512, 512), 255, key="labels")
    |keep("image", "labels")

To pad with black instead of the mean colour, pad before `vgg_value_range`. Of
the ops on one key, `central_crop` takes `labels`, and so do `resize`,
`resize_small` and `resize_long` with the only method for label maps, "nearest".

The random draws and the pixels of the image follow MMSegmentation 1.x. Differs
from it: resized `labels` take the pixel under each new pixel's centre; OpenCV's
"nearest", which MMSegmentation uses, takes the one under its top left corner,
so MMSegmentation's maps are shifted by half a pixel against the image.
"""

import io
from collections.abc import Mapping

import cv2
import numpy as np
from PIL import Image

from dpn.input_pipeline.pp import lazy_image, op, ops_image, pixels
from dpn.input_pipeline.pp import resize as resizing

_FORMATS = ("PNG", "BMP", "TIFF")  # where ids survive
# PNGs of 8 or 16 grey bits, and others of 16 bits.
_FOR_OPENCV = (b"\x08\x00", b"\x10\x00", b"\x10\x02", b"\x10\x04", b"\x10\x06")
_BOTH = ("image", "labels")
_NUM_IDS = 2**16
_CROPS = 10  # attempts at a crop that no single class dominates


@op.declare(writes=("labels",), lazy=True)
def decode_labels(
  num_classes: int,
  *,
  inkey: str = "label",
  label_map: Mapping[int, int] | None = None,
  reduce_zero_label: bool = False,
  ignore_label: int = 255,
):
  """Reads the label map `inkey` into `labels`: ids 0, …, num_classes - 1.

  The map is an encoded image, whose grey levels or palette indices are the ids,
  or an array of integers. `labels` has the image's shape (rows, cols) and dtype
  uint8, or int32 where ids do not fit.

  Args:
    num_classes: larger ids are an error; they would corrupt training silently.
    inkey: the key of the label map.
    label_map: {old id: new id}, for the ids that change.
    reduce_zero_label: 0 means "not labelled" and becomes `ignore_label`; other
      ids become one less.
    ignore_label: the id of pixels that are not labelled, kept as it is.
  """
  if 0 <= ignore_label < num_classes:
    raise ValueError(
      f"ignore_label {ignore_label} is one of the {num_classes} classes."
    )
  ids = np.arange(_NUM_IDS)
  for old, new in dict(label_map or {}).items():
    if not 0 <= old < _NUM_IDS:
      raise ValueError(f"label_map: {old} is not in [0, {_NUM_IDS}).")
    ids[old] = new
  if reduce_zero_label:
    reduced = np.where(ids == 0, ignore_label, ids - 1)
    ids = np.where(ids == ignore_label, ignore_label, reduced)
  known = (ids == ignore_label) | (ids >= 0) & (ids < num_classes)
  fits = 0 <= ignore_label < 256 and num_classes <= 256
  table = np.where(known, ids, 0).astype(np.uint8 if fits else np.int32)
  known = known.astype(np.uint8)

  def apply(example, _):
    raw = _read_ids(op.get(example, inkey))
    if not _lookup(raw, known).all():
      wrong = np.unique(raw[_lookup(raw, known) == 0])
      raise ValueError(
        f"{inkey} holds {', '.join(map(str, wrong[:5]))}"
        f"{', …' if len(wrong) > 5 else ''}, no id of {num_classes} classes or "
        f"ignore_label {ignore_label}: give num_classes, label_map or "
        "reduce_zero_label."
      )
    example["labels"] = _lookup(raw, table)
    _both(example)
    return example

  return apply


def _lookup(ids, table):
  if ids.dtype == np.uint8:
    return cv2.LUT(np.ascontiguousarray(ids), table[None, :256])
  return table.take(ids)


def _read_ids(value) -> np.ndarray:
  """Returns a label map as uint8 or uint16 of shape (rows, cols)."""
  ids = value
  is_png = isinstance(value, bytes) and value.startswith(ops_image.PNG)
  kind = value[24:26] if is_png else b""  # bits, and whether they are grey
  if kind in _FOR_OPENCV:
    # Three times as fast as Pillow, which cuts 16-bit colours to 8 bits; but
    # OpenCV replaces palette indices by their colours.
    ids = ops_image.imdecode(value, cv2.IMREAD_UNCHANGED)
  elif isinstance(value, bytes):
    try:
      ids = np.asarray(Image.open(io.BytesIO(value), formats=_FORMATS))
      if kind in (b"\x02\x00", b"\x04\x00"):
        ids = ids // (255 // (2 ** kind[0] - 1))  # Pillow spreads the levels.
    except OSError as error:
      raise ValueError(
        f"no whole label map in {', '.join(_FORMATS)} ({len(value)} bytes that "
        f"start with {value[:8]!r}): {error}. JPEG and GIF change ids."
      ) from error
  colours = ids[..., : 1 if ids.shape[2:] == (2,) else 3]  # no alpha
  if ids.ndim == 3 and (colours == ids[..., :1]).all():
    ids = ids[..., 0]
  if ids.ndim != 2:
    raise ValueError(
      f"a label map of shape {ids.shape} whose channels differ holds colours, "
      "no ids: save it in grey levels or with a palette, an id per pixel."
    )
  if ids.dtype == np.uint8:
    return ids
  if ids.dtype.kind not in "biu" or ids.min() < 0 or ids.max() >= _NUM_IDS:
    raise ValueError(
      f"expected ids in [0, {_NUM_IDS}), got {ids.dtype} in [{ids.min()}, "
      f"{ids.max()}]."
    )
  return ids.astype(np.uint8 if ids.dtype == bool else np.uint16)


def _both(example: op.Example):
  """Returns image and labels, which must be of one size."""
  image, labels = op.get(example, "image"), op.get(example, "labels")
  if image.shape[:2] != labels.shape:
    raise ValueError(
      f"the image has {image.shape[:2]} rows and cols, its label map "
      f"{labels.shape}: resize or crop both, or see whether they belong "
      "together."
    )
  return image, labels


@op.declare(writes=_BOTH, kind="rescale", lazy=True, random=True)
def random_resize_with_mask(
  scale: tuple[int, int], ratio_range: tuple[float, float] = (0.5, 2.0)
):
  """Resizes to fit into a random multiple of `scale`, keeping the aspect ratio.

  The factor is uniform in `ratio_range`: the longer side may not exceed
  max(scale) times the factor, nor the shorter side min(scale) times the factor.
  """
  scale = op.pair(scale)
  low, high = ratio_range
  if not 0 < low <= high:
    raise ValueError(f"expected 0 < low <= high, got {ratio_range!r}.")

  def apply(example, rng):
    image, labels = _both(example)
    ratio = rng.random() * (high - low) + low
    long_px, short_px = (int(f(scale) * ratio) for f in (max, min))
    rows, cols = image.shape[:2]
    factor = min(long_px / max(rows, cols), short_px / min(rows, cols))
    size = tuple(max(int(side * factor + 0.5), 1) for side in (rows, cols))
    example["image"] = resizing.resize(image, size)
    example["labels"] = resizing.resize(labels, size, "nearest")
    return example

  return apply


@op.declare(writes=_BOTH, kind="rescale", lazy=True, random=True)
def random_crop_with_mask(
  size: int | tuple[int, int], cat_max: float = 1.0, ignore_label: int = 255
):
  """Crops a random box; images smaller than `size` are not padded.

  If one class fills `cat_max` of the box's labelled pixels or more, another box
  is drawn, up to ten times.
  """
  height, width = op.pair(size)

  def apply(example, rng):
    image, labels = _both(example)
    rows, cols = labels.shape
    for attempt in range(_CROPS + 1):
      top = int(rng.integers(max(rows - height, 0) + 1))
      left = int(rng.integers(max(cols - width, 0) + 1))
      box = top, left, min(height, rows), min(width, cols)
      crop = lazy_image.cut(labels, *box)
      enough = cat_max >= 1 or attempt == _CROPS
      if enough or _largest_share(crop, ignore_label) < cat_max:
        break
    example["labels"] = np.ascontiguousarray(crop)
    example["image"] = np.ascontiguousarray(lazy_image.cut(image, *box))
    return example

  return apply


def _largest_share(labels, ignore_label):
  """Returns the share of the most frequent class; 1 if nothing is labelled."""
  if labels.dtype == np.uint8:
    counts = cv2.calcHist([labels], [0], None, [256], [0, 256])[:, 0]
    counts = counts[np.arange(256) != ignore_label]
  else:
    counts = np.unique(labels[labels != ignore_label], return_counts=True)[1]
  return counts.max(initial=0) / counts.sum() if counts.any() else 1


@op.declare(writes=_BOTH, random=True)
def flip_with_mask():
  """Mirrors left and right, half the time."""

  def apply(example, rng):
    image, labels = _both(example)
    if rng.random() < 0.5:
      example["image"] = cv2.flip(image, 1).reshape(image.shape)
      example["labels"] = cv2.flip(labels, 1)
    return example

  return apply


@op.on_key_random(channels=(3,))
def photometric_distortion(
  brightness_delta: float = 32,
  contrast_range: tuple[float, float] = (0.5, 1.5),
  saturation_range: tuple[float, float] = (0.5, 1.5),
  hue_delta: int = 18,
):
  """Changes brightness, contrast, saturation and hue, each half the time.

  The order is as listed, or with contrast last, equally likely. Levels are
  rounded down after each. SSD's augmentation (arXiv 1512.02325), as
  MMSegmentation has it; the range of hues is 180.
  """

  def linear(times, plus, levels):
    changed = np.float32(levels) * np.float32(times) + np.float32(plus)
    return np.clip(changed, 0, 255).astype(np.uint8)

  def contrast(levels, rng):
    if not rng.integers(2):
      return levels
    return linear(rng.uniform(*contrast_range), 0, levels)

  def apply(image, rng):
    levels = pixels.LEVELS
    if rng.integers(2):
      delta = rng.uniform(-brightness_delta, brightness_delta)
      levels = linear(1, delta, levels)
    if contrast_first := rng.integers(2):
      levels = contrast(levels, rng)
    if levels is not pixels.LEVELS:
      image = pixels.lookup(image, levels)
    if rng.integers(2):
      saturation = linear(rng.uniform(*saturation_range), 0, pixels.LEVELS)
      image = _in_hsv(image, 1, saturation)
    if rng.integers(2) and hue_delta:
      hue = (pixels.LEVELS + rng.integers(-hue_delta, hue_delta)) % 180
      image = _in_hsv(image, 0, hue)
    if contrast_first:
      return image
    levels = contrast(pixels.LEVELS, rng)
    return image if levels is pixels.LEVELS else pixels.lookup(image, levels)

  return apply


def _in_hsv(image, channel, table):
  """Maps the hue (0) or the saturation (1) through a table of levels."""
  tables = np.tile(pixels.LEVELS[:, None], 3)
  tables[:, channel] = table
  hsv = pixels.lookup(cv2.cvtColor(image, cv2.COLOR_RGB2HSV), tables)
  return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
