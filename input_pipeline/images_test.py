"""Images from anywhere, against Pillow."""

import numpy as np
import PIL.Image
import pytest

from dpn.input_pipeline import images
from dpn.input_pipeline.conftest import encode
from dpn.weights import hf_vit, preprocessing, timm_vit
from dpn.weights.preprocessing import Preprocess

RANGE = "value_range(0, 255)"  # levels, in float32
RNG = np.random.RandomState(0)
# Smooth enough for interpolation to matter little, rows and columns apart.
ROWS, COLS = 60, 40
PHOTO = np.uint8(
  255
  * np.linspace([0, 0.2, 0.9], [1, 0.8, 0.1], ROWS)[:, None]
  * np.linspace(0.3, 1, COLS)[:, None]
)


def test_every_kind_of_image(tmp_path):
  pillow = PIL.Image.fromarray(PHOTO)
  (tmp_path / "photo.png").write_bytes(encode(pillow))
  path = tmp_path / "photo.png"
  kinds = [str(path), path, encode(pillow), pillow, PHOTO]
  for pp in (f"decode|{RANGE}", RANGE, f" decode(channels=3) | {RANGE}"):
    got = images.prepare(kinds, Preprocess(pp, (None, None, 3), None))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, [PHOTO] * 5)


def test_pillow_images_of_more_than_eight_bits():
  """As from their files; those without a known range are refused."""
  deep = np.arange(ROWS * COLS, dtype=np.uint16).reshape(ROWS, COLS) * 50
  pillow = PIL.Image.fromarray(deep)
  preprocess = Preprocess(RANGE, (ROWS, COLS, 3), None)
  got = images.prepare([pillow, encode(pillow)], preprocess)
  np.testing.assert_array_equal(got, [np.stack([deep >> 8] * 3, -1)] * 2)
  with pytest.raises(ValueError, match="mode 'F', whose range is not known"):
    images.prepare([pillow.convert("F")], preprocess)


def test_channels():
  grey = PHOTO[..., 0]
  luma = np.asarray(PIL.Image.fromarray(PHOTO).convert("L"))
  one = Preprocess(RANGE, (ROWS, COLS, 1), None)
  three = Preprocess(RANGE, (ROWS, COLS, 3), None)
  kinds = [grey, grey[..., None], PIL.Image.fromarray(grey)]
  np.testing.assert_array_equal(
    images.prepare(kinds, one), [grey[..., None]] * 3
  )
  np.testing.assert_array_equal(
    images.prepare(kinds, three), [np.stack([grey] * 3, -1)] * 3
  )
  pillow = PIL.Image.fromarray(PHOTO)
  alpha = np.concatenate([PHOTO, grey[..., None]], -1)
  clear = PIL.Image.fromarray(alpha)
  kinds = [pillow, encode(pillow), PHOTO, alpha, clear, encode(clear)]
  got = images.prepare(kinds, one)
  np.testing.assert_allclose(got, [luma[..., None]] * 6, atol=1)
  kinds = [alpha[::-1, ::-1], PHOTO[::-1, ::-1]]
  got = images.prepare([*kinds, clear, encode(clear)], three)
  np.testing.assert_array_equal(got[:2, ::-1, ::-1], [PHOTO] * 2)
  np.testing.assert_array_equal(got[2:], [PHOTO] * 2)
  palette = pillow.quantize(16)
  np.testing.assert_array_equal(
    images.prepare([palette, encode(palette)], three),
    [np.asarray(palette.convert("RGB"))] * 2,
  )


def _close_to_pillow(pp, want, photo=PHOTO):
  got = images.prepare([photo], Preprocess(f"{pp}", (24, 24, 3), None))[0]
  want = np.asarray(want, np.float32) / 127.5 - 1
  # One level, for the rounding between Pillow's two passes.
  np.testing.assert_allclose(got, want, atol=1.01 / 127.5)


HALF = [0.5] * 3


@pytest.mark.parametrize("method", ["bicubic", "bilinear"])
def test_as_timm_does(method):
  """Its transforms are Pillow's: the short side to 24 / 0.75, the centre."""
  config = {
    **{"input_size": [3, 24, 24], "crop_pct": 0.75, "interpolation": method},
    **{"mean": HALF, "std": HALF},
  }
  pillow = PIL.Image.fromarray(PHOTO)
  resample = getattr(PIL.Image.Resampling, method.upper())
  want = pillow.resize((32, 48), resample).crop((4, 12, 28, 36))
  _close_to_pillow(timm_vit.describe(config, None).pp, want)
  squashed = pillow.resize((32, 32), resample).crop((4, 4, 28, 28))
  # 43 × 64: torchvision's Resize has int(32 · 64 / 43) = 47, not 48, and its
  # CenterCrop begins at round(11.5) = 12.
  odd = pillow.resize((43, 64))
  want = odd.resize((32, 47), resample).crop((4, 12, 28, 36))
  pp = timm_vit.describe(config, None).pp
  _close_to_pillow(pp, want, np.asarray(odd))
  config["crop_mode"] = "squash"
  _close_to_pillow(timm_vit.describe(config, None).pp, squashed)


def test_bicubic_edges_between_black_and_white():
  """Pillow clips after each pass; the bound is that of docs/library.md."""
  noise = 255 * np.random.default_rng(0).integers(0, 2, (120, 90, 3), np.uint8)
  spec = "resize(224, 'bicubic', True)|value_range(0, 255)"
  [got] = images.prepare([noise], Preprocess(spec, (224, 224, 3), None))
  want = PIL.Image.fromarray(noise).resize((224, 224), 3)
  assert 20 < np.abs(got - np.asarray(want)).max() <= 30


@pytest.mark.parametrize("resample", [2, 3])
def test_as_hugging_face_does(resample):
  image = {
    **{"size": {"height": 24, "width": 24}, "resample": resample},
    **{"image_mean": HALF, "image_std": HALF},
  }
  want = PIL.Image.fromarray(PHOTO).resize((24, 24), resample)
  _close_to_pillow(hf_vit.describe({}, image).pp, want)
  # transformers, too, has 47; its center_crop begins at 23 // 2 = 11.
  image["size"], image["crop_size"] = {"shortest_edge": 32}, image["size"]
  odd = PIL.Image.fromarray(PHOTO).resize((43, 64))
  want = odd.resize((32, 47), resample).crop((4, 11, 28, 35))
  pp = hf_vit.describe({}, image | {"do_center_crop": True}).pp
  _close_to_pillow(pp, want, np.asarray(odd))


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ("photo.png", "Expected a list of images, got str"),
    (PHOTO, r"Expected a list of images, got ndarray \(60, 40, 3\)"),
    (PIL.Image.fromarray(PHOTO), "Expected a list of images, got Image"),
    ([], "Expected a list of images, got list"),
    ([PHOTO / 255], r"Image 0: got float64\(60, 40, 3\); expected uint8"),
    ([PHOTO, PHOTO[..., :2]], r"Image 1: got uint8\(60, 40, 2\)"),
    ([b"GIF89"], "Image 0: not a whole image"),
    ([PHOTO[:8]], r"becomes \(8, 40, 3\) .* expected \(60, 40, 3\)"),
  ],
)
def test_what_is_no_image(given, message):
  with pytest.raises(ValueError, match=message):
    images.prepare(given, Preprocess(RANGE, (ROWS, COLS, 3), None))
  with pytest.raises(FileNotFoundError):
    images.prepare(["nowhere.png"], Preprocess(RANGE, (None, None, 3), None))


@pytest.mark.parametrize(
  ("tail", "message"),
  [("(-1, 1", "Syntax error"), ("(-1, in_mx=9)", "Unknown argument.*in_mx")],
)
def test_an_op_that_cannot_be_parsed_is_not_left_out(tail, message):
  preprocess = Preprocess(
    f"decode(3)\n|value_range{tail}", (ROWS, COLS, 3), None
  )
  with pytest.raises(ValueError, match=message):
    images.prepare([PHOTO], preprocess)


def test_images_of_different_sizes_make_no_batch():
  preprocess = preprocessing.Preprocess(RANGE, (None, None, 3), None)
  with pytest.raises(ValueError, match=r"Image 1 becomes \(59, 40, 3\)"):
    images.prepare([PHOTO, PHOTO[1:]], preprocess)
