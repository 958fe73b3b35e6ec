"""Stacking examples, and what happens to those that do not fit."""

import errno

import numpy as np
import pytest

from dpn.input_pipeline import batches, pp, sources
from dpn.input_pipeline.sources import arrays


def _examples(spec="", **columns):
  source = arrays.ArraySource("here", columns)
  part = batches.MixturePart(source, pp.make(spec))
  return batches.Examples([part], seed=3)


def _stack(examples, indices, positions, num_rows):
  batch = {
    key: np.zeros((num_rows, *field.shape), field.dtype)
    for key, field in examples.fields.items()
  }
  skipped = np.zeros(num_rows, np.int32)
  examples.write({**batch, batches.SKIPPED: skipped}, indices, positions)
  return batch, skipped.sum()


def test_stacks_and_pads_with_zeros():
  examples = _examples(
    image=np.arange(8, dtype=np.uint8).reshape(4, 2),
    label=np.array([5, 6, 7, 8]),
    score=np.array([0.5, 1, 2, 3]),
  )
  batch, skipped = _stack(examples, [3, 1], [0, 1], 3)
  assert skipped == 0
  assert batch["image"].tolist() == [[6, 7], [2, 3], [0, 0]]
  assert batch["label"].tolist() == [8, 6, 0]
  dtypes = {key: value.dtype for key, value in batch.items()}
  assert dtypes == {"image": np.uint8, "label": np.int32, "score": np.float32}


def test_augmentation_depends_on_seed_and_position_only():
  image = np.arange(10000, dtype=np.int32).reshape(1, 100, 100, 1)
  examples = _examples("random_crop(1)", image=np.repeat(image, 2, 0))
  values = _stack(examples, [0, 0, 1, 0], [4, 5, 4, 4], 4)[0]["image"].ravel()
  assert values[0] == values[2] == values[3] != values[1]
  key = np.array([3, 4], np.uint64)
  rng = np.random.Generator(np.random.Philox(key=key))
  assert values[0] == rng.integers(100) * 100 + rng.integers(100)


def test_values_that_do_not_fit_the_first():
  examples = _examples(image=np.array([1, 2**31 - 1, 2**31], ">i8"))
  batch = _stack(examples, [1], [0], 1)[0]["image"]
  assert (batch[0], batch.dtype.str) == (2**31 - 1, "<i4")
  message = "here, example 2: 'image' is 2147483648, which does not fit int32"
  with pytest.raises(ValueError, match=message):
    _stack(examples, [1, 2], [0, 1], 2)


class _Rows(sources.Source):
  """The examples it is given; None and errors cannot be read."""

  name = "rows"

  def __init__(self, rows):
    self._rows = rows

  def __len__(self):
    return len(self._rows)

  def __getitem__(self, index):
    row = self._rows[index] or OSError("disk on fire")
    if isinstance(row, Exception):
      raise row
    return dict(row)


def _uneven(*rows, **kw):
  part = batches.MixturePart(_Rows(rows), pp.make(""))
  return batches.Examples([part], seed=0, **kw)


@pytest.mark.parametrize(
  ("second", "message"),
  [
    (
      {"x": np.zeros(3)},
      r"rows, example 1: 'x' is float32 of shape \(3,\), in the first example "
      r"float32 of \(2,\).*resize, crop or pad",
    ),
    ({"x": np.zeros(2, int)}, r"'x' is int32 of shape \(2,\), in the first"),
    ({"y": np.zeros(2)}, r"1: it has the keys \['y'\], the first example"),
    (None, "rows, example 1: disk on fire"),
  ],
)
def test_examples_that_differ(second, message):
  examples = _uneven({"x": np.zeros(2)}, second)
  with pytest.raises(ValueError, match=message):
    _stack(examples, [1], [0], 1)


def test_shapes_may_differ_where_nothing_is_stacked():
  others = {"x": np.zeros((3, 5))}, {"x": np.zeros(2, np.int8)}, {"y": 1}
  examples = _uneven({"x": np.ones(2)}, *others, any_shape=True)
  assert examples[0]["x"].tolist() == [1, 1]
  assert examples[1]["x"].shape == (3, 5)
  assert examples[1]["x"].dtype == np.float32
  for i, message in ((2, "'x' is int8 of"), (3, r"has the keys \['y'\]")):
    with pytest.raises(ValueError, match=f"example {i}: .*{message}"):
      examples[i]


def test_the_next_example_stands_in_for_one_that_fails():
  good = [{"x": np.full(2, float(i))} for i in range(4)]
  rows = None, good[0], {"x": np.zeros(3)}, None, good[1], good[2]
  batch, skipped = _stack(_uneven(*rows, skip=True), [*range(5)], range(5), 5)
  # 0 becomes 1; 2, of another shape, and then 3 become 4.
  assert batch["x"][:, 0].tolist() == [0, 0, 1, 1, 1]
  assert skipped == 1 + 2 + 1
  # After the last comes the first.
  batch, skipped = _stack(_uneven(good[3], None, skip=True), [1], [0], 1)
  assert (batch["x"][0, 0], skipped) == (3, 1)
  # Of a mixture, that of its own part.
  own, other = (_uneven(*x, skip=True) for x in (rows[1::-1], good[2:]))
  parts = [*own._parts, *other._parts]
  batch, _ = _stack(batches.Examples(parts, 0, skip=True), [1], [0], 1)
  assert batch["x"][0, 0] == 0
  # A shortage is no damage: the run is to end, and go on later.
  shortage = ValueError("it is damaged")
  shortage.__cause__ = OSError(errno.EMFILE, "many")
  with pytest.raises(ValueError, match="it is damaged"):
    _stack(_uneven(good[0], shortage, skip=True), [1], [0], 1)


def test_too_many_failures_are_not_skipped():
  message = "101 examples in a row fail.*the last: rows, example 100: disk on"
  with pytest.raises(ValueError, match=message):
    _uneven(*[None] * 150, {"x": np.zeros(1)}, skip=True)
