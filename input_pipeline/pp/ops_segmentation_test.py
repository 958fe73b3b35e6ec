"""Ops on label maps: by hand, and against MMSegmentation's recorded results.

`testdata/mmseg.npz` holds what the transforms of MMSegmentation 1.2.2 (with
mmcv's of January 2026) make of a small image and its label map, and the random
numbers that they drew.
"""

import pathlib
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from dpn.input_pipeline import pp
from dpn.input_pipeline.conftest import encode

_GOLDEN = np.load(pathlib.Path(__file__).parent / "testdata" / "mmseg.npz")
_MEAN = "vgg_value_range((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))"


class _Replay:
  """A generator that returns recorded numbers."""

  def __init__(self, name):
    self._draws = list(_GOLDEN[f"{name}/draws"])
    self.random = self.uniform = lambda *unused: self._draws.pop(0)
    self.integers = lambda *unused: int(self._draws.pop(0))

  def used_up(self):
    return not self._draws


def _apply(spec, seed=0, **example):
  rng = np.random.default_rng(seed) if isinstance(seed, int) else seed
  return pp.make(spec)(example, rng)


def _replay(spec, name):
  """Checks the image; returns the labels."""
  rng = _Replay(name)
  image, labels = _GOLDEN["image"], _GOLDEN["labels"]
  result = _apply(spec, rng, image=image, labels=labels)
  assert rng.used_up()
  np.testing.assert_array_equal(result["image"], _GOLDEN[f"{name}/image"])
  return result["labels"]


_IDS = np.array([[0, 1, 2], [10, 11, 255]], np.uint8)


def _palette(ids):
  image = Image.fromarray(ids, "P")
  # Colours that are no grey, or an encoder might save it as grey.
  image.putpalette([x for i in range(256) for x in (255 - i, i, 7)])
  return image


def _small_png(ids, bits):
  """Returns a PNG of two grey levels a row; those of 16 bits have alpha."""
  rows, cols = ids.shape
  kind = 4 if bits == 16 else 0
  few = lambda x: bytes([(x[0] << 8 - bits) + (x[1] << 8 - 2 * bits)])
  row = (lambda x: struct.pack(">4H", x[0], 9, x[1], 9)) if kind else few
  pack = lambda value: struct.pack(">I", value)
  chunk = lambda kind, data: (
    pack(len(data)) + kind + data + pack(zlib.crc32(kind + data))
  )
  header = pack(cols) + pack(rows) + bytes([bits, kind, 0, 0, 0])
  data = zlib.compress(b"".join(b"\0" + row(x) for x in ids.tolist()))
  chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
  return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*c) for c in chunks)


@pytest.mark.parametrize(("bits", "step"), [(2, 1), (4, 5), (16, 256)])
def test_label_maps_of_other_bits(bits, step):
  ids = np.array([[0, 1], [2, 3]]) * step
  image, label = np.zeros((2, 2, 3), np.uint8), _small_png(ids, bits)
  ops = "decode_labels(999, ignore_label=999)"
  found = _apply(ops, image=image, label=label)
  np.testing.assert_array_equal(found["labels"], ids)


def test_label_maps_of_16_bit_colours():
  grey = np.full((2, 3, 3), 7, np.uint16)
  png = lambda x: cv2.imencode(".png", x)[1].tobytes()
  image = np.zeros((2, 3, 3), np.uint8)
  found = _apply("decode_labels(16)", image=image, label=png(grey))
  np.testing.assert_array_equal(found["labels"], grey[..., 0])
  colours = png(grey * np.uint16([1, 2, 3]))
  with pytest.raises(ValueError, match="holds colours"):
    _apply("decode_labels(16)", image=image, label=colours)


@pytest.mark.parametrize(
  "label",
  [
    _IDS,
    _IDS[..., None],
    _IDS.astype(np.int64),
    encode(_IDS),
    encode(_palette(_IDS)),
    encode(_IDS.astype(np.uint16)),
    encode(np.repeat(_IDS[..., None], 3, -1)),
    encode(_IDS, "TIFF"),
  ],
  ids=str.split("array channel int64 png palette 16bits rgb tiff"),
)
def test_decode_labels(label):
  image = np.zeros((2, 3, 3), np.uint8)
  spec = 'decode_labels(11, label_map={11: 255}, inkey="annotation")'
  labels = _apply(spec, image=image, annotation=label)["labels"]
  assert labels.dtype == np.uint8
  assert labels.tolist() == [[0, 1, 2], [10, 255, 255]]
  spec = 'decode_labels(11, inkey="annotation", reduce_zero_label=True)'
  labels = _apply(spec, image=image, annotation=label)["labels"]
  assert labels.tolist() == [[255, 0, 1], [9, 10, 255]]


def test_palettes_of_few_colours_and_many_classes():
  ids = np.array([[0, 1, 2, 3]], np.uint8)
  image = np.zeros((1, 4, 3), np.uint8)
  for bits in (2, 4, 8):
    label = encode(_palette(ids), bits=bits)
    assert label[24] == bits  # of IHDR
    labels = _apply("decode_labels(4)", image=image, label=label)["labels"]
    assert labels.tolist() == ids.tolist()
  binary = Image.fromarray(ids % 2 == 1)
  labels = _apply("decode_labels(2)", image=image, label=encode(binary))
  assert labels["labels"].tolist() == [[0, 1, 0, 1]]
  label = encode(np.array([[0, 299, 999, 4000]], np.uint16))
  spec = "decode_labels(1000, label_map={4000: -1}, ignore_label=-1)"
  labels = _apply(spec, image=image, label=label)["labels"]
  assert labels.dtype == np.int32
  assert labels.tolist() == [[0, 299, 999, -1]]


@pytest.mark.parametrize(
  ("spec", "label", "message"),
  [
    ("decode_labels(11)", _IDS,
     "label holds 11, no id of 11 classes or ignore_label 255: give"),
    ("decode_labels(2)", np.arange(12).reshape(2, 6)[:, 3:],
     "holds 3, 4, 5, 9, 10, …, no id of 2"),
    ("decode_labels(11)", encode(np.eye(3, dtype=np.uint8)),
     r"image has \(2, 3\) rows and cols, its label map \(3, 3\)"),
    ("decode_labels(11)", encode(_palette(_IDS).convert("RGB")),
     r"of shape \(2, 3, 3\) whose channels differ holds colours, no ids"),
    ("decode_labels(11)", encode(_IDS, "JPEG"),
     r"no whole label map in PNG, .*JPEG and GIF change ids"),
    ("decode_labels(11)", encode(np.eye(99, dtype=np.uint8))[:60],
     r"not a whole image"),
    ("decode_labels(11)", encode(_palette(_IDS))[:-30],
     r"no whole label map .*truncated"),
    ("decode_labels(11)", b"", "no whole label map"),
    ("decode_labels(11)", _IDS.astype(np.int32) - 1,
     r"ids in \[0, 65536\), got int32 in \[-1, 254\]"),
    ("decode_labels(11)", np.float32(_IDS), "got float32"),
    ('decode_labels(3, inkey="mask")', _IDS, "Unknown key 'mask'.*label"),
    ("decode_labels(3, label_map={-1: 2})", _IDS, r"-1 is not in \[0, 65536\)"),
    ("decode_labels(300)", _IDS, "255 is one of the 300 classes"),
  ],
)  # fmt: skip
def test_wrong_label_maps(spec, label, message):
  with pytest.raises(ValueError, match=message):
    _apply(spec, image=np.zeros((2, 3, 3), np.uint8), label=label)


def test_image_and_labels_must_belong_together():
  image, labels = np.zeros((2, 3, 3), np.uint8), np.zeros((3, 2), np.uint8)
  for op, args in (
    ("flip", ""),
    ("random_crop", "(1)"),
    ("random_resize", "((9, 9))"),
  ):
    with pytest.raises(ValueError, match=r"image has \(2, 3\).*map \(3, 2\)"):
      _apply(f"{op}_with_mask{args}", image=image, labels=labels)


def test_labels_are_never_interpolated():
  labels = np.array([[0, 9], [200, 255]], np.uint8)
  larger = _apply('resize((4, 3), "nearest", key="labels")', labels=labels)
  # Under the middle of three lies the border of two; it counts as the second.
  assert larger["labels"].tolist() == 2 * [[0, 9, 9]] + 2 * [[200, 255, 255]]
  with pytest.raises(ValueError, match=r"got \(2, 2\) and 'bilinear'"):
    _apply('resize(4, key="labels")', labels=labels)


@pytest.mark.parametrize("case", range(5))
def test_random_resize_as_mmseg(case):
  scale = "(19, 40)" if case == 3 else "(40, 19)"
  spec = f"random_resize_with_mask({scale}, (0.5, 2))"
  if case == 4:  # twice the size: OpenCV's nearest is the true one
    spec = "random_resize_with_mask((40, 30), (1, 1))"
  labels = _replay(spec, f"resize{case}")
  old, recorded = _GOLDEN["labels"], _GOLDEN[f"resize{case}/labels"]
  rows, cols = (
    [int((x + 0.5) * o / n) for x in range(n)]
    for o, n in zip(old.shape, recorded.shape, strict=True)
  )
  np.testing.assert_array_equal(labels, old[np.ix_(rows, cols)])
  different = (labels != recorded).mean()
  assert different == 0 if case == 4 else different < 0.1


@pytest.mark.parametrize("case", range(6))
def test_random_crop_as_mmseg(case):
  size = "(30, 10)" if case == 5 else "(6, 8)"  # (30, 10) exceeds the image
  labels = _replay(
    f"random_crop_with_mask({size}, cat_max=0.75)", f"crop{case}"
  )
  np.testing.assert_array_equal(labels, _GOLDEN[f"crop{case}/labels"])


def test_flip_as_mmseg():
  for random in (0.4, 0.6):
    rng = _Replay("flip")
    rng.random = lambda random=random: random
    example = {"image": _GOLDEN["image"], "labels": _GOLDEN["labels"]}
    result = _apply("flip_with_mask", rng, **example)
    for key, value in example.items():
      expected = _GOLDEN[f"flip/{key}"] if random < 0.5 else value
      np.testing.assert_array_equal(result[key], expected)


@pytest.mark.parametrize("case", range(16))
def test_photometric_distortion_as_mmseg(case):
  _replay("photometric_distortion", f"photo{case}")


def test_photometric_distortion_of_nothing():
  image = np.arange(30, dtype=np.uint8).reshape(5, 6, 1).repeat(3, 2)
  spec = "photometric_distortion(0, (1, 1), (0.5, 1.5), 0)"  # grey has no hue
  for seed in range(20):
    found = _apply(spec, seed, image=image)["image"]
    np.testing.assert_array_equal(found, image)


def test_normalization_and_padding_as_mmseg():
  spec = (
    f"{_MEAN}|pad_to_shape((18, 24, 3))|"
    'pad_to_shape((18, 24), 255, key="labels")'
  )
  result = _apply(spec, image=_GOLDEN["image"], labels=_GOLDEN["labels"])
  expected = _GOLDEN["pad/image"]  # computed in float32
  np.testing.assert_allclose(result["image"], expected, atol=1e-6)
  np.testing.assert_array_equal(result["labels"], _GOLDEN["pad/labels"])


_ADE20K = (
  'decode|decode_labels(150, inkey="annotation", reduce_zero_label=True)|'
  "random_resize_with_mask((96, 48), (0.5, 2.0))|"
  "random_crop_with_mask(32, cat_max=0.75)|flip_with_mask"
)


def test_image_and_labels_stay_together():
  """Every pixel of the image holds its label as a grey level."""
  coarse = np.random.default_rng(0).integers(0, 20, (3, 4), np.uint8)
  ids = coarse.repeat(16, 0).repeat(16, 1)
  image = encode(10 * np.repeat(ids[..., None], 3, -1))
  shapes = set()
  for seed in range(20):
    result = _apply(_ADE20K, seed, image=image, annotation=encode(ids))
    shapes.add(result["labels"].shape)
    # Not where the image is interpolated between two labels.
    labels = result["labels"]
    near = [f(labels, np.ones((5, 5))) for f in (cv2.erode, cv2.dilate)]
    inside = (near[0] == near[1])[2:-2, 2:-2]
    grey = result["image"][2:-2, 2:-2, 0][inside]
    expected = np.uint8(labels + 1)[2:-2, 2:-2][inside] * 10
    np.testing.assert_array_equal(grey, expected)
    assert inside.mean() > 0.2
  # Cut to at most 32 pixels; from half the size to twice.
  assert (32, 32) in shapes
  assert min(rows for rows, _ in shapes) < 32


def test_cat_max():
  """One labelled class cannot fill three quarters, if there is a choice."""
  labels = np.zeros((8, 64), np.uint8)
  labels[:, 56:] = 1
  image = np.zeros((8, 64, 3), np.uint8)

  def shares(cat_max, ignore_label=255, labels=labels):
    spec = f"random_crop_with_mask(8, {cat_max}, ignore_label={ignore_label})"
    return [
      (_apply(spec, seed, image=image, labels=labels)["labels"] == 0).mean()
      for seed in range(200)
    ]

  # Boxes start at 0, …, 56. Three hold 3, 4 or 5 columns of each class; the
  # eleventh is taken as it is, as one of the six of fewer than 6 columns of 0.
  ten = (54 / 57) ** 10
  for labels_ in (labels, labels.astype(np.int32)):  # for ids beyond 255
    few = np.less(shares(0.75, labels=labels_), 0.75)
    assert few.mean() == pytest.approx(1 - ten + ten * 6 / 57, abs=0.1)
  # What does not count is no second class: the eleventh box, always.
  for cat_max, ignore_label in ((1, 255), (0.75, 0)):
    few = np.less(shares(cat_max, ignore_label), 0.75)
    assert few.mean() == pytest.approx(6 / 57, abs=0.06)
