"""Image ops: decoding against Pillow, crops against what they promise."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from dpn.input_pipeline import pp
from dpn.input_pipeline.conftest import encode, jpeg
from dpn.input_pipeline.pp import lazy_image, ops_image, resize


def _apply(spec, image, seed=0):
  return pp.make(spec)({"image": image}, np.random.default_rng(seed))["image"]


def _smooth(rows=40, cols=48):
  coarse = np.random.default_rng(0).integers(0, 256, (4, 4, 3), np.uint8)
  return cv2.resize(coarse, (cols, rows))


def _index_image(rows, cols):
  """Every pixel holds its own (row, col)."""
  image = np.zeros((rows, cols, 3), np.uint8)
  image[..., 0] = np.arange(rows)[:, None]
  image[..., 1] = np.arange(cols)
  return image


_COLOUR = Image.fromarray(_smooth())
_PALETTE = _COLOUR.quantize(16)
_ALPHA = np.dstack([_smooth(), np.full((40, 48), 9, np.uint8)])
_DEEP = np.random.default_rng(0).integers(0, 2**16, (5, 6), np.uint16)
_LABELS = np.arange(240, dtype=np.uint8).reshape(12, 20)


@pytest.mark.parametrize(
  ("image", "file_format", "options", "expected"),
  [
    *((_COLOUR, name, {}, _smooth()) for name in ("PNG", "BMP", "TIFF")),
    (_COLOUR, "WEBP", {"lossless": True}, _smooth()),
    # None: what Pillow decodes.
    (_COLOUR, "JPEG", {"quality": 90}, None),
    (_COLOUR.convert("L"), "JPEG", {}, None),
    (_COLOUR.convert("CMYK"), "JPEG", {}, None),
    (_PALETTE, "GIF", {}, None),
    (_PALETTE, "PNG", {}, np.asarray(_PALETTE.convert("RGB"))),
    (_ALPHA, "PNG", {}, _smooth()),
    (_ALPHA, "TIFF", {}, _smooth()),
    (_ALPHA, "AVIF", {"quality": 100, "subsampling": "4:4:4"}, None),
    (_DEEP, "PNG", {}, np.repeat(_DEEP[..., None] >> 8, 3, -1)),
    (_DEEP, "PNG", {}, _DEEP >> 8),
    (_LABELS, "PNG", {}, _LABELS),
  ],
)
def test_decode(image, file_format, options, expected):
  data = encode(image, file_format, **options)
  tolerance = 0 if expected is not None else 1
  if expected is None:
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
  channels = 3 if expected.ndim == 3 else 1
  image = _apply(f"decode({channels})", data)
  assert image.dtype == np.uint8
  assert image.flags.c_contiguous
  assert image.shape == (*expected.shape[:2], channels)
  off = np.abs(image.astype(int) - np.reshape(expected, image.shape))
  assert off.max() <= tolerance


def test_decode_ignores_exif_orientation():
  exif = Image.Exif()
  exif[0x0112] = 6  # "Rotate by 90 degrees to view."
  turned = encode(_smooth(), "JPEG", exif=exif.tobytes(), quality=95)
  plain = encode(_smooth(), "JPEG", quality=95)
  np.testing.assert_array_equal(*(_apply("decode", x) for x in (turned, plain)))


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.98])
def test_decode_truncated(file_format, share):
  noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)
  data = encode(noise, file_format)
  with pytest.raises(ValueError, match="not a whole image"):
    ops_image.decode_image(data[: int(len(data) * share)])


def test_decode_errors():
  for data in (b"", b"no image"):
    with pytest.raises(ValueError, match=rf"\({len(data)} bytes that start"):
      ops_image.decode_image(data)
  many = encode(_smooth(), "JPEG", progressive=True)
  last = many.rfind(b"\xff\xda")
  many = many[:-2] + many[last:-2] * 100 + many[-2:]  # scans of all pixels
  for data in (many, many[:2] + b"\xff\xff" + many[2:]):
    with pytest.raises(ValueError, match="not a whole image"):
      ops_image.decode_image(data)
  with pytest.raises(ValueError, match=r"got ndarray \(40, 48, 3\): leave dec"):
    ops_image.decode_image(_smooth())
  with pytest.raises(ValueError, match="channels must be 1 or 3, got 2"):
    pp.make("decode(2)")


@pytest.mark.parametrize("shape", [(50, 80), (80, 50), (17, 200), (3, 3)])
@pytest.mark.parametrize("area", [(0.05, 1.0), (0.3, 0.4), (1.0, 1.0)])
def test_sampled_crops_stay_inside_and_in_range(shape, area):
  rng = np.random.default_rng(0)
  rows, cols = shape
  for _ in range(300):
    top, left, height, width = ops_image.sample_crop(rows, cols, rng, area=area)
    assert min(top, left) >= 0
    assert top + height <= rows
    assert left + width <= cols
    if (height, width) == shape:
      continue  # The fallback, or the one crop of full area.
    assert area[0] * rows * cols <= height * width <= area[1] * rows * cols
    assert (width - 0.5) / height <= 1.33
    assert (width + 0.5) / height >= 0.75


def test_sampled_crops_follow_tensorflows_distribution():
  """Given the aspect ratio, the height is uniform and so is the position."""
  rng = np.random.default_rng(0)
  draw = lambda: ops_image.sample_crop(1000, 1000, rng, ratio=(1.0, 1.0))
  top, left, height, width = np.array([draw() for _ in range(4000)]).T
  assert (height == width).all()
  low = np.sqrt(0.05) * 1000
  # Means and deviation of the uniform distribution, within four sigma.
  sigma = (1000 - low) / np.sqrt(12)
  assert abs(height.mean() - (1000 + low) / 2) < 4 * sigma / np.sqrt(4000)
  assert abs(height.std() - sigma) < 0.03 * sigma
  inner = height < 900
  for begin in (top, left):
    share = begin[inner] / (1000 - height[inner])
    assert abs(share.mean() - 0.5) < 4 / np.sqrt(12 * inner.sum())
    assert (share.min(), share.max()) < (0.01, 1.01)
    assert share.max() > 0.99


def test_crop_that_cannot_be_found_is_the_whole_image():
  rng = np.random.default_rng(0)
  box = ops_image.sample_crop(10, 1000, rng, area=(0.9, 1.0))
  assert box == (0, 0, 10, 1000)


def test_inception_crop_is_a_resized_crop():
  image = _index_image(60, 90)
  crop = _apply("inception_crop(area_max=50)", image, seed=3)
  top, left, height, width = ops_image.sample_crop(
    60, 90, np.random.default_rng(3), area=(0.05, 0.5)
  )
  np.testing.assert_array_equal(
    crop, image[top : top + height, left : left + width]
  )
  resized = _apply("inception_crop(20, area_max=50)", image, seed=3)
  np.testing.assert_array_equal(resized, _apply("resize(20)", crop))


def test_decode_jpeg_and_inception_crop():
  data = jpeg(np.random.default_rng(0), 50, 70)
  for args in ("(16)", "(16, 30, 60, method='area')", "((9, 8), ratio_min=1)"):
    one = _apply(f"decode_jpeg_and_inception_crop{args}", data, seed=1)
    two = _apply(f"decode|inception_crop{args}", data, seed=1)
    np.testing.assert_array_equal(one, two)
  fn = pp.make("decode_jpeg_and_inception_crop(8, inkey='a', outkey='b')")
  result = fn({"a": data}, np.random.default_rng(0))
  assert result["a"] is data
  assert result["b"].shape == (8, 8, 3)


@pytest.mark.parametrize(
  ("spec", "expected"),
  [
    ("resize_small(256)", (256, 341)),  # 500 * 256 / 375 = 341.33
    ("resize_small(418)", (418, 557)),  # 557.33
    ("resize_long(256)", (192, 256)),
  ],
)
def test_sizes(spec, expected):
  assert _apply(spec, _index_image(375, 500)).shape == (*expected, 3)


def test_defaults_of_the_resizing_ops():
  image = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
  for spec, same in (
    ("resize(12)", "resize(12, 'bilinear', False)"),
    ("resize_small(12)", "resize((12, 16), 'area')"),
    ("resize_long(12)", "resize((9, 12), 'area')"),
    (
      "inception_crop(12)",
      "inception_crop(12, 5, 100, 'bilinear', False, .75, 1.33)",
    ),
  ):
    np.testing.assert_array_equal(_apply(spec, image), _apply(same, image))


def test_central_crop():
  image = _index_image(7, 10)
  # (7 - 4) // 2 = 1, (10 - 3) // 2 = 3.
  crop = _apply("central_crop((4, 3))", image)
  np.testing.assert_array_equal(crop, image[1:5, 3:6])
  np.testing.assert_array_equal(_apply("central_crop", image), image[:, 1:8])
  with pytest.raises(ValueError, match=r"cannot crop 8 x 8 pixels.*7 x 10"):
    _apply("central_crop(8)", image)


def test_random_crop_reaches_every_position():
  image = _index_image(5, 6)
  seen = set()
  for seed in range(300):
    crop = _apply("random_crop((4, 3))", image, seed)
    assert crop.shape == (4, 3, 3)
    top, left = crop[0, 0, :2].tolist()
    np.testing.assert_array_equal(crop, image[top : top + 4, left : left + 3])
    seen.add((top, left))
  assert seen == {(top, left) for top in range(2) for left in range(4)}


def test_flip_lr_flips_half_the_time():
  image = _index_image(2, 5)
  flipped = 0
  for seed in range(400):
    result = _apply("flip_lr", image, seed)
    assert result.flags.c_contiguous
    mirrored = result[0, 0, 1] == 4
    flipped += mirrored
    expected = image[:, ::-1] if mirrored else image
    np.testing.assert_array_equal(result, expected)
  assert 160 < flipped < 240  # Four sigma.


def test_vgg_value_range():
  image = np.array([[[0, 128, 255]]], np.uint8)
  result = _apply("vgg_value_range", image)
  assert result.dtype == np.float32
  expected = [-0.485 / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
  np.testing.assert_allclose(result[0, 0], expected, rtol=1e-5)
  with pytest.raises(ValueError, match="expected deviations above 0"):
    _apply("vgg_value_range(std=(1, 0, 1))", image)


def _jpegs():
  """JPEGs of every kind, by name."""
  colour = Image.fromarray(_smooth(83, 101))
  for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
    for progressive in (False, True):
      kind = {"subsampling": subsampling, "progressive": progressive}
      yield f"{kind}", encode(colour, "JPEG", **kind)
  yield "restarts", encode(colour, "JPEG", restart_marker_blocks=1)
  yield "grey", encode(colour.convert("L"), "JPEG")
  yield "cmyk", encode(colour.convert("CMYK"), "JPEG")
  exif = Image.Exif()
  exif[0x0112] = 6
  yield "exif", encode(colour, "JPEG", exif=exif.tobytes())


@pytest.mark.parametrize("data", [pytest.param(d, id=n) for n, d in _jpegs()])
def test_a_part_of_a_jpeg_is_that_part_of_the_whole(data):
  """With nvImageCodec or without it: whichever is installed."""
  whole = ops_image.decode_image(data)
  rng = np.random.default_rng(0)
  for seed in range(15):
    top, left = (int(rng.integers(n)) for n in (83, 101))
    height = int(rng.integers(1, 84 - top))
    width = int(rng.integers(1, 102 - left))
    image = ops_image.decode()({"image": data}, None)["image"]
    part = lazy_image.cut(image, top, left, height, width)
    box = whole[top : top + height, left : left + width]
    np.testing.assert_array_equal(part, box)
    cropped = _apply("decode|random_crop((20, 30))", data, seed)
    expected = _apply("random_crop((20, 30))", whole, seed)
    np.testing.assert_array_equal(cropped, expected)


@pytest.mark.parametrize("shape", [(375, 500), (90, 61), (30, 300)])
def test_cropping_what_was_resized_computes_the_same_pixels(shape):
  data = encode(_smooth(*shape), "JPEG", quality=95)
  size = _apply("resize_small(64)", np.zeros((*shape, 3))).shape[:2]
  whole = lazy_image.materialize(
    resize.resize(ops_image.decode_image(data), size, "area")
  )
  rows, cols = whole.shape[:2]
  top, left = (rows - 48) // 2, (cols - 56) // 2
  np.testing.assert_array_equal(
    _apply("decode|resize_small(64)|central_crop((48, 56))", data),
    whole[top : top + 48, left : left + 56],
  )
  np.testing.assert_array_equal(_apply("decode|resize_small(64)", data), whole)


def test_damaged_jpegs_are_named_by_the_op_that_decodes():
  data = encode(_smooth(), "JPEG")[:500]
  with pytest.raises(ValueError, match=r"op decode failed on .image: 500 by"):
    _apply("decode|central_crop(8)|flip_lr", data)
