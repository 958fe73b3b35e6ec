"""Restart markers: libjpeg writes the same, and crops have the same pixels."""

import io

import numpy as np
import pytest
from PIL import Image
from sklearn import datasets

from dpn.input_pipeline import conftest as testing
from dpn.input_pipeline.pp import jpeg, ops_image
from dpn.input_pipeline.sources import restart_markers

PHOTO = Image.fromarray(datasets.load_sample_image("china.jpg"))
SIZES = [(75, 100), (53, 37), (16, 16), (9, 100), (100, 9), (1, 1), (61, 130)]
KINDS = {
  "4:4:4": {"subsampling": "4:4:4"},
  "4:2:2": {"subsampling": "4:2:2"},
  "4:2:0": {"subsampling": "4:2:0"},
  "grey": {},
}


def encode(kind, rows, cols, **kw):
  image = PHOTO.resize((cols, rows)).convert("L" if kind == "grey" else "RGB")
  return testing.encode(image, "JPEG", quality=90, **KINDS[kind], **kw)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "cols"), SIZES)
def test_as_libjpeg_writes_them(kind, rows, cols):
  marked = restart_markers.add(encode(kind, rows, cols))
  header = jpeg.read_header(marked)
  assert header.mcus[1] % header.interval == 0
  same = encode(kind, rows, cols, restart_marker_blocks=header.interval)
  scan = jpeg.read_header(same).scan
  assert marked[header.scan :] == same[scan:]
  assert restart_markers.add(marked) == marked


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimize", [False, True])
def test_crops_have_the_pixels_of_the_whole(kind, optimize):
  rng = np.random.default_rng(0)
  for rows, cols in SIZES:
    data = encode(kind, rows, cols, optimize=optimize)
    whole = ops_image.decode_image(data)
    lazy = jpeg.lazy(restart_markers.add(data), ops_image.decode_image)
    assert lazy.shape == whole.shape
    for _ in range(20):
      height, width = rng.integers(1, rows + 1), rng.integers(1, cols + 1)
      top = int(rng.integers(rows - height + 1))
      left = int(rng.integers(cols - width + 1))
      np.testing.assert_array_equal(
        lazy.cut(top, left, height, width),
        whole[top : top + height, left : left + width],
      )


@pytest.mark.parametrize("kind", KINDS)
def test_crops_at_the_right_edge(kind):
  for cols in range(65, 81):
    data = encode(kind, 24, cols, restart_marker_blocks=1)
    whole = ops_image.decode_image(data)
    lazy = jpeg.lazy(data, ops_image.decode_image)
    for width in range(1, 20):
      got = lazy.cut(3, cols - width, 20, width)
      np.testing.assert_array_equal(got, whole[3:23, -width:])


def test_metadata_stay_but_not_in_cuts():
  exif = Image.Exif()
  exif[0x8298] = "somebody's copyright"
  data = restart_markers.add(encode("4:2:0", 64, 96, exif=exif.tobytes()))
  assert Image.open(io.BytesIO(data)).getexif()[0x8298] == exif[0x8298]
  cut, *_ = jpeg.Cutter.from_bytes(data).cut(0, 0, 8, 8)
  assert b"copyright" in data
  assert b"copyright" not in cut


def test_without_numba_the_whole_is_decoded(monkeypatch):
  data = restart_markers.add(encode("4:2:0", 61, 130))
  assert jpeg.lazy(data, ops_image.decode_image) is not None
  monkeypatch.setattr(jpeg.fused, "compiled", lambda function: None)
  monkeypatch.setattr(jpeg, "_codec", lambda: None)
  assert jpeg.lazy(data, ops_image.decode_image) is None


def test_a_cut_holds_little_more_than_the_box():
  cutter = jpeg.Cutter.from_bytes(
    encode("4:2:0", 160, 160, restart_marker_blocks=1)
  )
  data, top, left = cutter.cut(32, 49, 16, 15)
  # The box fills one MCU but for its first column; rows need a neighbour each.
  assert (top, left) == (16, 1)
  assert ops_image.decode_image(data).shape == (48, 32, 3)


def test_other_intervals_become_short_ones():
  rows, cols = 64, 256
  plain = encode("4:2:0", rows, cols)
  for blocks in (16, 32, 5):  # one row, two rows, none that divides a row
    data = encode("4:2:0", rows, cols, restart_marker_blocks=blocks)
    assert restart_markers.add(data) == restart_markers.add(plain)
  data = encode("4:2:0", rows, cols, restart_marker_blocks=2)
  assert restart_markers.add(data) == data


def _others():
  yield "progressive", encode("4:2:0", 60, 80, progressive=True)
  image = PHOTO.resize((80, 60))
  for name, mode in (("PNG", "RGB"), ("JPEG", "CMYK")):
    yield f"{name} {mode}", testing.encode(image.convert(mode), name)
  data = encode("4:2:0", 60, 80)
  yield "cut off", data[:-40]
  yield "cut off, with an end", data[:-40] + jpeg.EOI
  yield "header only", data[:200]
  table = data.index(b"\xff\xc4") + 5  # the number of codes, by length
  yield "more codes than symbols", data[:table] + b"\x09" + data[table + 1 :]
  yield "nothing", b""


@pytest.mark.parametrize("data", [pytest.param(d, id=n) for n, d in _others()])
def test_what_is_left_as_it_is(data):
  assert restart_markers.add(data) == data


def test_damaged_markers_are_not_trusted():
  data = restart_markers.add(encode("4:2:0", 64, 256))
  header = jpeg.read_header(data)
  marker = data.index(b"\xff\xd1", header.scan)
  for damaged in (
    data[:marker] + b"\xff\xd2" + data[marker + 2 :],
    data[:marker] + data[marker + 2 :],
    data[:marker] + b"\xff\xd1" + data[marker:],
    data[:marker] + b"\xff\xda" + data[marker + 2 :],
    data[: marker + 1] + jpeg.EOI,
  ):
    assert jpeg.Cutter.from_bytes(data) is not None
    assert jpeg.Cutter.from_bytes(damaged) is None


def test_random_damage_is_noticed_or_harmless():
  rng = np.random.default_rng(0)
  plain = encode("4:2:0", 48, 64)
  marked = restart_markers.add(plain)
  for data in (plain, marked):
    for _ in range(300):
      damaged = bytearray(data)
      for place in rng.integers(2, len(data), rng.integers(1, 4)):
        damaged[place] = rng.integers(256)
      damaged = bytes(damaged[: rng.integers(len(data) // 2, len(data) + 1)])
      # Whatever OpenCV decodes has the same pixels afterwards.
      result = restart_markers.add(damaged)
      if result != damaged:
        np.testing.assert_array_equal(
          ops_image.decode_image(result), ops_image.decode_image(damaged)
        )
      if (cutter := jpeg.Cutter.from_bytes(damaged)) is not None:
        rows, cols = cutter.size
        cutter.cut(rows // 3, cols // 3, 1, 1)
