"""Random strings and random bytes: only the documented errors come out."""

import contextlib

import cv2
import numpy as np
import pytest

from dpn.input_pipeline import pp
from dpn.input_pipeline.conftest import encode
from dpn.input_pipeline.pp import ops_image

_PIECES = [
  *pp.OPS,
  *"|()[]{},=.'\"\\#:;*-+_@!~%&^<>?/ \n\t\r\0",
  *("224", "-1", "1e400", "0x", "9" * 50, "None", "True", "size", "key"),
  *("lambda", "import os", "f'{1}'", "b'", "'''", "é", "\u2028", "\ud800"),
  *("(" * 50, "[" * 300, "x=", "**", "=='a'", ":=1", "if", "in"),
]


def _random_string(rng):
  return "".join(rng.choice(_PIECES) for _ in range(rng.integers(1, 12)))


def _mutated(rng):
  """A sound string with a few characters changed."""
  chars = list(
    "decode_jpeg_and_inception_crop(224)|flip_lr|randaug(2, 10)|value_range(-1,"
    ' 1)|onehot(1000, key="label", key_result="labels")|keep("image", "labels")'
  )
  for _ in range(rng.integers(1, 4)):
    chars[rng.integers(len(chars))] = rng.choice(_PIECES)
  return "".join(chars)


# NumPy warns of infinities and of numbers that float32 does not hold.
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered in")
@pytest.mark.parametrize("make", [_random_string, _mutated])
def test_strings(make):
  rng = np.random.default_rng(0)
  accepted = 0
  for _ in range(3000):
    spec = make(rng)
    with contextlib.suppress(ValueError):
      accepted += isinstance(pp.make(spec), pp.Preprocess)
  assert accepted > 5


def test_deep_and_long_strings():
  deep = ("(" * 5000, "-" * 100_000 + "1", "flip_lr(" * 2000, "9" * 10_000)
  for spec in deep:
    with pytest.raises(ValueError, match=r"."):
      pp.make(spec)
  assert len(pp.make("flip_lr|" * 1000)._ops) == 1000


def _seeds():
  image = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
  for file_format in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"):
    yield encode(image, file_format)


@pytest.mark.parametrize("data", [*_seeds()], ids=lambda data: repr(data[:4]))
def test_damaged_images(data):
  rng = np.random.default_rng(0)
  for _ in range(300):
    damaged = bytearray(data)
    for _ in range(rng.integers(1, 6)):
      place = rng.integers(min(len(damaged), rng.choice([40, len(damaged)])))
      damaged[place] = rng.integers(256)
    _decodes_or_says_why(bytes(damaged[: rng.integers(1, len(damaged) * 2)]))


def test_random_bytes():
  rng = np.random.default_rng(0)
  heads = [b"", b"\xff\xd8\xff\xe0", ops_image.PNG, b"RIFF", b"BM", b"II*"]
  for _ in range(1000):
    body = rng.bytes(rng.integers(0, 200))
    _decodes_or_says_why(heads[rng.integers(len(heads))] + body)


def _decodes_or_says_why(data):
  try:
    image = ops_image.decode_image(data)
  except ValueError as error:
    reason = str(error)
  else:
    reason = "not a whole image"
    assert (image.dtype, *image.shape[2:]) == (np.uint8, 3)
  assert "not a whole image" in reason


def test_images_that_claim_to_be_huge():
  """A header alone must not take gigabytes."""
  png = cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
  huge = (2**31 - 1).to_bytes(4, "big")
  size, chunk = png[:16] + huge * 2 + png[24:], png[:33] + huge + png[37:]
  for data in (size, chunk):
    with pytest.raises(ValueError, match="not a whole image"):
      ops_image.decode_image(data)
