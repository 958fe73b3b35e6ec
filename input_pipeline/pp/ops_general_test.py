"""General ops against numbers worked out by hand."""

import itertools

import numpy as np
import pytest

from dpn.input_pipeline import pp
from dpn.input_pipeline.pp import fused


def _apply(spec, **example):
  return pp.make(spec)(example, np.random.default_rng(0))


def test_value_range():
  levels = np.array([[0, 51, 255]], np.uint8)
  image = _apply("value_range", image=levels)["image"]
  assert image.dtype == np.float32
  np.testing.assert_allclose(image, [[-1, -0.6, 1]], atol=1e-6)
  image = _apply("value_range(0, 10, 51, 102, True)", image=levels)["image"]
  np.testing.assert_allclose(image, [[0, 0, 10]], atol=1e-6)
  image = _apply(
    "value_range(0, 1, in_min=(0, 1, 5), in_max=[1, 52, 10])", image=levels
  )["image"]
  np.testing.assert_allclose(image, [[0, 50 / 51, 50]], rtol=1e-6)
  with pytest.raises(ValueError, match=r"in_min < in_max"):
    pp.make("value_range(in_min=255)")


@pytest.mark.parametrize("channels", [1, 4])
def test_a_range_per_channel_needs_as_many_channels(channels):
  image = np.zeros((4, 5, channels), np.uint8)
  with pytest.raises(
    ValueError, match=rf"expected 3 channels.*5, {channels}\)"
  ):
    _apply("vgg_value_range", image=image)


@pytest.mark.parametrize(
  ("op", "shape"),
  [
    *itertools.product(
      ("value_range", "value_range(in_max=(9, 99, 255))", "vgg_value_range"),
      ((5, 7, 3), (2, 5, 7, 3)),
    ),
    ("vgg_value_range((3,), (2,))", (5, 7)),
  ],
)
def test_ranges_without_numba_are_equal_to_the_last_bit(op, shape, monkeypatch):
  image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
  assert fused.compiled(fused._sum_rows)
  compiled = _apply(op, image=image)["image"]
  monkeypatch.setattr(fused, "compiled", lambda _: None)
  np.testing.assert_array_equal(_apply(op, image=image)["image"], compiled)


@pytest.mark.parametrize(
  ("args", "labels", "expected"),
  [
    ("4", 2, [0, 0, 1, 0]),
    ("4", [1, 3, 1], [0, 1, 0, 1]),
    ("4", [], [0, 0, 0, 0]),
    ("4", -1, [0, 0, 0, 0]),
    ("3, on=0.9, off=0.05", [0, -1], [0.9, 0.05, 0.05]),
    ("3, multi=False", 1, [0, 1, 0]),
    ("3, multi=False, on=2", [2, 0], [[0, 0, 2], [2, 0, 0]]),
  ],
)
def test_onehot(args, labels, expected):
  result = _apply(f'onehot({args}, key_result="hot")', labels=labels)
  np.testing.assert_array_equal(result["labels"], labels)
  assert result["hot"].dtype == np.float32
  np.testing.assert_allclose(result["hot"], expected)


@pytest.mark.parametrize("multi", [True, False])
@pytest.mark.parametrize(
  ("label", "message"),
  [
    (2, "label 2 does not fit 2 classes"),
    ("cat", r"as integers from 0, got 'cat'\."),
    (None, r"as integers from 0, got None\."),
    (np.float32([0, 1]), r"integers .* array\(\[0., 1.\], dtype=float32\)"),
  ],
)
def test_onehot_of_wrong_labels(label, message, multi):
  with pytest.raises(ValueError, match=message):
    _apply(f'onehot(2, key="label", multi={multi})', label=label)


def test_keep_drop_copy():
  values = {"a": 1, "b": 2, "c": 3}
  assert _apply('keep("c", "a")', **values) == {"c": 3, "a": 1}
  assert _apply('drop("a", "x")', **values) == {"b": 2, "c": 3}
  assert _apply('copy("a", "b")', **values) == {"a": 1, "b": 1, "c": 3}
  with pytest.raises(ValueError, match=r"Unknown key 'd'. Known: a, b, c"):
    _apply('keep("a", "d")', **values)


def test_pad_to_shape():
  x = np.array([[1, 2]], np.uint8)
  for where, expected in (
    ("after", [[1, 2, 7, 7, 7], [7] * 5]),
    ("before", [[7] * 5, [7, 7, 7, 1, 2]]),
    ("both", [[7, 1, 2, 7, 7], [7] * 5]),
  ):
    result = _apply(f'pad_to_shape((2, 5), 7, "{where}")', image=x)["image"]
    assert result.dtype == np.uint8
    assert result.tolist() == expected
  assert _apply("pad_to_shape((None, 3))", image=x)["image"].shape == (1, 3)
  for shape in ("(2, 1)", "(2, 2, 2)", "(1,)"):
    with pytest.raises(ValueError, match=r"cannot pad shape"):
      _apply(f"pad_to_shape({shape})", image=x)


def test_squeeze_last_dim_and_flatten():
  x = np.ones((2, 3, 1))
  assert _apply("squeeze_last_dim", image=x)["image"].shape == (2, 3)
  nested = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
  assert _apply("flatten", **nested) == {"a/b": 1, "a/c/d": 2, "e": 3}


def test_choice_takes_the_same_entries_of_all_keys():
  x = np.arange(5)
  seen = set()
  fn = pp.make('choice(2, ["x", "y"])|choice(inkey="z", outkey="one")')
  for seed in range(200):
    example = {"x": x, "y": 10 * x, "z": [b"u", b"v"]}
    result = fn(example, np.random.default_rng(seed))
    np.testing.assert_array_equal(result["y"], 10 * result["x"])
    seen.add((*result["x"].tolist(), result["one"]))
  pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
  assert seen == {(i, j, c) for i, j in pairs for c in (b"u", b"v")}
  few = _apply("choice(9, 'x', fewer_ok=True)", x=x)["x"]
  np.testing.assert_array_equal(few, x)
  alone = _apply("choice(inkey='x', outkey='text')", x="a dog")
  assert alone["text"] == "a dog"  # a manifest has one caption
  for spec, message in (
    ("choice(6, 'x')", "cannot choose 6 of {'x': 5}"),
    ("choice(1, ['x', 'y'])", "{'x': 5, 'y': 4}"),
    ("choice(key='q')", "Unknown key 'q'"),
    ("choice(inkey='x')", "expected key, or inkey and outkey"),
  ):
    with pytest.raises(ValueError, match=message):
      _apply(spec, x=x, y=x[:4])
