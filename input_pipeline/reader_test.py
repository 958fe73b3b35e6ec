"""Which example stands where, and what happens to those that do not fit."""

import numpy as np
import pytest

from input_pipeline import pp, reader, sources


def _examples(spec="", **columns):
  return reader.Examples(
    sources.ArraySource("here", columns, {}), pp.make(spec), seed=3
  )


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_every_epoch_is_a_fresh_permutation(size):
  order = np.reshape(reader.shuffled(5, size, 0, 4 * size), (4, size))
  for epoch in order:
    assert sorted(epoch.tolist()) == list(range(size))
  if size == 1000:
    # Two random permutations agree in one place on average.
    for a in range(4):
      for b in range(a):
        assert (order[a] == order[b]).sum() < 10
    other_seed = reader.shuffled(6, size, 0, size)
    assert (order[0] == other_seed).sum() < 10


def test_order_at_any_position():
  whole = reader.shuffled(5, 7, 0, 100)
  for first in (0, 3, 7, 20, 55):
    for last in (first + 1, first + 7, first + 30):
      assert reader.shuffled(5, 7, first, last) == whole[first:last]
  far = 10**13 + 5
  assert len(reader.shuffled(5, 10**4, far, far + 50)) == 50


def test_stacks_and_pads_with_zeros():
  examples = _examples(
    image=np.arange(8, dtype=np.uint8).reshape(4, 2),
    label=np.array([5, 6, 7, 8]),
    score=np.array([0.5, 1, 2, 3]),
  )
  batch = examples.stack([3, 1], [0, 1], 3)
  assert batch["image"].tolist() == [[6, 7], [2, 3], [0, 0]]
  assert batch["label"].tolist() == [8, 6, 0]
  dtypes = {key: value.dtype for key, value in batch.items()}
  assert dtypes == {"image": np.uint8, "label": np.int32, "score": np.float32}


def test_augmentation_depends_on_seed_and_position_only():
  image = np.arange(10000, dtype=np.int32).reshape(1, 100, 100, 1)
  examples = _examples("random_crop(1)", image=np.repeat(image, 2, 0))
  values = examples.stack([0, 0, 1, 0], [4, 5, 4, 4], 4)["image"].ravel()
  assert values[0] == values[2] == values[3] != values[1]
  key = np.array([3, 4], np.uint64)
  rng = np.random.Generator(np.random.Philox(key=key))
  assert values[0] == rng.integers(100) * 100 + rng.integers(100)


def test_values_that_no_array_holds():
  message = r"here: the values of 'id' \(str_\) do not stack.*keep\(\.\.\.\)"
  with pytest.raises(ValueError, match=message):
    _examples(image=np.zeros(2), id=np.array(["a", "b"]))


def test_values_that_do_not_fit_the_first():
  examples = _examples(image=np.array([1, 2**31 - 1, 2**31]))
  assert examples.stack([1], [0], 1)["image"][0] == 2**31 - 1
  message = "here, example 2: 'image' is 2147483648, which does not fit int32"
  with pytest.raises(ValueError, match=message):
    examples.stack([1, 2], [0, 1], 2)


class _Uneven(sources.Source):
  """The examples it is given."""

  name = "uneven"

  def __init__(self, *rows):
    self._rows = rows

  def __len__(self):
    return len(self._rows)

  def __getitem__(self, index):
    if self._rows[index] is None:
      raise OSError("disk on fire")
    return dict(self._rows[index])


@pytest.mark.parametrize(
  ("second", "message"),
  [
    ({"x": np.zeros(3)}, r"uneven, example 1: 'x' is float64 of shape \(3,\), "
     r"in the first example float32 of \(2,\).*resize, crop or pad"),
    ({"x": np.zeros(2, int)}, r"'x' is int64 of shape \(2,\), in the first"),
    ({"y": np.zeros(2)}, r"example 1 has the keys \['y'\], the first example"),
    (None, "Cannot read from uneven, one of the examples .1.: disk on fire"),
  ],
)  # fmt: skip
def test_examples_that_differ(second, message):
  source = _Uneven({"x": np.zeros(2)}, second)
  examples = reader.Examples(source, pp.make(""), seed=0)
  with pytest.raises(ValueError, match=message):
    examples.stack([1], [0], 1)
