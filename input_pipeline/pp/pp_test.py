"""The string language: what it accepts, and where its errors point."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from dpn.input_pipeline import pp


def _rng():
  return np.random.default_rng(0)


def _image():
  return np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)


def test_applies_ops_in_order_and_spares_its_input():
  fn = pp.make(
    'central_crop(4)|copy("image", "raw")|value_range(0, 1)|'
    'onehot(3, key="label", key_result="labels")|drop("label")'
  )
  example = {"image": _image(), "label": 2}
  result = fn(example, _rng())
  assert sorted(example) == ["image", "label"]
  assert example["image"].shape == (6, 8, 3)
  assert sorted(result) == ["image", "labels", "raw"]
  np.testing.assert_array_equal(result["raw"], _image()[1:5, 2:6])
  np.testing.assert_allclose(
    result["image"], _image()[1:5, 2:6] / 255, atol=1e-7
  )
  assert result["labels"].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
  "spec",
  [
    None,
    "",
    "  ",
    "|",
    "||",
    "flip_lr||keep('image')",
    "|flip_lr|",
    "flip_lr()|",
    "\n  flip_lr |\n  | keep(\n 'image') \n",
    "\tcopy('image', 'a|b||')",
  ],
)
def test_empty_ops_and_layout(spec):
  result = pp.make(spec)({"image": _image()}, _rng())
  expected = {"image", "a|b||"} if "a|b" in (spec or "") else {"image"}
  assert set(result) == expected


@pytest.mark.parametrize("form", ["key='x'", "inkey='x', outkey='x'"])
def test_keys(form):
  fn = pp.make(f"resize(2, {form})|resize(3, inkey='x', outkey='y')")
  result = fn({"image": _image(), "x": _image()}, _rng())
  shapes = {key: value.shape for key, value in result.items()}
  assert shapes == {"image": (6, 8, 3), "x": (2, 2, 3), "y": (3, 3, 3)}


@pytest.mark.parametrize(
  ("spec", "message", "column"),
  [
    ("decode|flip_rl", "Unknown op 'flip_rl'. Did you mean 'flip_lr'", 7),
    ("|flip_lr||flop", "Unknown op 'flop'", 10),
    ("resize(8, metod='a')", "argument of resize 'metod'.*'method'", 10),
    ("flip_lr|resize()", "missing.*'size'.*Signature: resize.size: int", 8),
    ("resize(8, 'area', 1, 2)", "too many positional.*Signature", 0),
    ("resize(8, method='bilin')", "Did you mean 'bilinear'", 0),
    ("resize(0)", "Expected a size in pixels.*got 0", 0),
    ("resize_small((8, 4))", "one side in pixels, got .8, 4.: for both", 0),
    ("resize_long([8, 4])", "resize_long: expected one side in pixels", 0),
    ("inception_crop(8, area_min=101)", "0 < area_min <= area_max", 0),
    ("inception_crop(8, 0.08, 1.0)", "in percent and not as fractions", 0),
    ("random_erasing(1, 50, 20)", r"<= 100, in percent.*\(50, 20\)", 0),
    ("flip_lr|resize(2 * 4)", "must be literals.*2 \\* 4", 15),
    ("resize(open('f'))", "must be literals", 7),
    ("keep('é')|resize(x)", "must be literals.*got x", 17),
    ("decode|3", "Expected an op", 7),
    ("a.b(3)", "Expected an op", 0),
    ("decode(|flip_lr", "Syntax error: .* never closed", 6),
    ("decode|resize(8", "Syntax error", 13),
    ("flip_lr resize(8)", "Syntax error", 8),
    ("flip_lr, resize(8)", "Expected an op", 0),
    ("flip_lr|keep('é'|", "Syntax error", 12),
  ],
)
def test_errors_point_at_the_column(spec, message, column):
  with pytest.raises(ValueError, match=message) as caught:
    pp.make(spec)
  *_, line, caret = str(caught.value).split("\n")
  assert line == f"  {spec}"
  assert caret == " " * (2 + column) + "^"


def test_failures_name_the_op_and_what_it_saw():
  fn = pp.make("flip_lr|random_crop(7)")
  message = (
    r"op random_crop\(7\) failed on {image: uint8\(6, 8, 3\), id: 4 bytes, "
    r"label: int}: cannot crop 7 x 7 pixels from an image of 6 x 8"
  )
  with pytest.raises(ValueError, match=message):
    fn({"image": _image(), "id": b"1234", "label": 3}, _rng())
  with pytest.raises(ValueError, match=r"Unknown key 'imag'.*'image'"):
    pp.make("flip_lr(key='imag')")({"image": _image()}, _rng())


@pytest.mark.parametrize("spec", ["flip_lr", "resize(4)", "value_range"])
def test_an_image_left_encoded_is_called_that(spec):
  with pytest.raises(ValueError, match="still encoded: put decode first"):
    pp.make(spec)({"image": b"1234"}, _rng())


_INVERT = """
import cv2
from dpn.input_pipeline.pp import op

@op.on_key
def invert(top: int = 255):
  return lambda image: top - image

@op.on_key
def blacken():
  def apply(image):
    image[:] = 0
    return image
  return apply

@op.on_key
def draw():
  return lambda image: cv2.rectangle(image, (0, 0), (2, 2), (9, 9, 9))

@op.declare(writes=("label",))
def coarse():
  return lambda example, _: {**example, "label": example["label"] // 2}

@op.on_key(kind="crop", size="px")
def corner(px: int = 4):
  return lambda image: image[:px, :px]

@op.on_key(kind="normalize", pixels=lambda **_: (0.5, 2))
def halve(px: int):
  return lambda image: (image - 0.5) / 2

def undeclared():
  return lambda example, _: example

OPS = {
  "invert": invert, "blacken": blacken, "draw": draw, "coarse": coarse,
  "halve": halve, "undeclared": undeclared, "corner": corner,
}
"""


@pytest.fixture(name="my_ops")
def _my_ops(tmp_path, monkeypatch):
  """Makes modules of ops, and no op of theirs known to later tests."""
  (tmp_path / "my_ops.py").write_text(_INVERT)
  (tmp_path / "no_ops.py").write_text("")
  (tmp_path / "taken_ops.py").write_text("OPS = {'resize': None}")
  (tmp_path / "list_ops.py").write_text("OPS = ['invert']")
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.setattr(pp, "OPS", dict(pp.OPS))
  monkeypatch.setattr(pp, "_added", [])


@pytest.mark.parametrize("name", ["blacken", "draw"])
def test_ops_cannot_change_the_data_set(name, my_ops):
  image = _image()
  message = rf"(?s)op {name} failed on .*let the op change a copy"
  with pytest.raises(ValueError, match=message):
    pp.make(name, "my_ops")({"image": image}, _rng())
  np.testing.assert_array_equal(image, _image())
  image[:] = 0  # The array itself stays writable,
  own = pp.make(f"value_range|{name}")({"image": image}, _rng())["image"]
  assert own.max() == (0 if name == "blacken" else 9)  # and so do new ones.


def test_modules_of_ones_own(my_ops):
  # The ops of big_vision's modules are always known.
  fn = pp.make("invert(250)", modules=["ops_image", "my_ops"])
  image = fn({"image": _image()}, _rng())["image"]
  np.testing.assert_array_equal(image, 250 - _image())
  pp.make("flip_lr|invert")  # Evaluators' strings know it, too.
  for module, message in (
    ("my_op", "pp_modules='my_op:OPS': there is no module 'my_op'"),
    ("no_ops", "Unknown attribute 'OPS'"),
    ("taken_ops", "taken_ops defines resize, which exist already"),
    ("list_ops", "OPS of list_ops must be a dictionary.*got list"),
  ):
    with pytest.raises(ValueError, match=message):
      pp.make("", modules=[module])
  # A worker process, which has imported nothing yet, finds the op by itself.
  program = "import pickle, sys; print(pickle.load(sys.stdin.buffer).spec)"
  done = subprocess.run(
    [sys.executable, "-c", program],
    input=pickle.dumps(fn),
    env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()])},
    capture_output=True,
    check=True,
  )
  assert done.stdout.strip() == b"invert(250)"


@pytest.mark.parametrize(
  ("spec", "leaves"),
  [
    ("decode|resize(4)|flip_lr", True),
    ('resize(4)|keep("image", "label")', True),
    ('copy("coarse", "label")', False),
    ('onehot(3, key="label")', False),
  ],
)
def test_what_may_change_a_label(spec, leaves):
  assert pp.make(spec).leaves("label") == leaves


@pytest.mark.parametrize(
  ("spec", "left_out", "size"),
  [
    (
      "decode|resize_small(256)|central_crop(224)|value_range",
      '|onehot(10, key="label", key_result="labels")|keep("image", "labels")',
      (224, 224),
    ),
    ("decode|resize((8, 6))", '|clevr_count|keep("image")', (8, 6)),
    ("resize(9)", '|resize(8, "nearest", key="mask")', (9, 9)),
    ("decode|resize(9)|resize_small(8)", "", None),
    ('decode(key="image")|central_crop', "", None),
    ("resize(size=7)|mine(3)", "||", (7, 7)),
    ("decode_jpeg_and_inception_crop(5)|value_range", "", (5, 5)),
    ("value_range|pad_to_shape((4, 5, 3))", "", (4, 5)),
    ("pad_to_shape((None, 5, 3))", '|tokenize(model="a|b", max_len=3)', None),
    ("", "", None),
  ],
)
def test_what_a_string_does_to_images(spec, left_out, size):
  got = pp.describe(spec + left_out)
  assert (got["image_ops"], got["size"]) == (spec, size)


@pytest.mark.parametrize(
  ("spec", "ends"),
  [
    ("resize(8)|value_range(-1, 1)|flip_lr", (-1, 1)),
    ("value_range", (-1, 1)),
    ("value_range()|keep('image')", (-1, 1)),
    ("value_range(vmin=0, vmax=2)", (0, 2)),
    ("decode|vgg_value_range|x", (-0.485 / 0.229, (1 - 0.485) / 0.229)),
    # (255 x - 51) / 25.5
    ("vgg_value_range((51, 0, 0), (25.5, 1, 1))", (-2, 8)),
    ("vgg_value_range(51, std=25.5)|flip_lr", (-2, 8)),
    # 0 … 127.5 to -1 … 1, so 255 to 3.
    ("value_range(-1, 1, in_max=127.5)|keep('image')", (-1, 3)),
    ("value_range(0, 1, 51, 102)", (-1, 4)),
    ("value_range(-1, 1, 0, 255, True)", (-1, 1)),
    ('value_range(0, 1)|value_range(0, 9, key="depth")', (0, 1)),
    ("decode|flip_lr", None),
    ("value_range(0, x)", None),
    ("value_range(-1, 1)|value_range(0, 1)", None),
  ],
)
def test_pixels_of_preprocessing(spec, ends):
  pixels = pp.describe(spec)["pixels"]
  if pixels:
    mean, std = (np.ravel(x)[0] for x in pixels)
    pixels = [(x - mean) / std for x in (0, 1)]
  assert pixels == (ends and pytest.approx(ends, abs=1e-9))


def test_own_ops_say_what_they_do(my_ops):
  pp.add_modules("my_ops")
  spec = "decode|coarse|halve(32)|unknown|invert(key='mask')"
  got = pp.describe(spec)
  assert got["image_ops"] == "decode|halve(32)|unknown"
  assert got["size"] is None
  assert got["pixels"] == (0.5, 2)
  assert pp.make("coarse").leaves("image")
  assert not pp.make("coarse").leaves("label")
  assert pp.make("choice(key='label', outkey='image')").leaves("label")
  assert pp.make("corner|halve(3)|coarse").geometry == "corner(px=4)"
  assert not pp.make("undeclared").leaves("label")
