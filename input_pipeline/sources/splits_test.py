"""Split arithmetic, by hand; sources_test compares it with TFDS itself."""

import pytest

from dpn.input_pipeline.sources import splits


def _bounds(spec, size):
  (part,) = splits.parse(spec)
  return part.bounds(size)


@pytest.mark.parametrize(
  ("spec", "size", "expected"),
  [
    ("train", 50, (0, 50)),
    ("train[:99%]", 1281167, (0, 1268355)),  # 1268355.33
    ("train[99%:]", 1281167, (1268355, 1281167)),
    ("train[:800]", 1000, (0, 800)),
    ("train[800:1_000]", 2000, (800, 1000)),
    ("train[-5%:]", 50, (48, 50)),  # round(-2.5) = -2
    ("train[:50%]", 3, (0, 2)),  # round(1.5) = 2
    ("train[12.5%:-10%]", 80, (10, 72)),
    ("train[-7:]", 10, (3, 10)),
  ],
)
def test_bounds(spec, size, expected):
  assert _bounds(spec, size) == expected


def test_percent_slices_partition_any_size():
  for size in range(200, 320):
    edges = [0]
    for low in range(0, 100, 5):
      start, stop = _bounds(f"s[{low}%:{low + 5}%]", size)
      assert start == edges[-1]
      edges.append(stop)
    assert edges[-1] == size


def test_several_parts():
  assert splits.parse("train[:800] + val-id[:20%]") == [
    splits.Slice("train", None, "800"),
    splits.Slice("val-id", None, "20%"),
  ]


MALFORMED = (
  *("", "train[", "train[5]", "train[a:b]", "train[:2shard]", "train[:]"),
  *("train[10%:500]", "train[:1.5]", "train[:1__0]", "a++b", "train[1:2:3]"),
)


@pytest.mark.parametrize("spec", MALFORMED)
def test_malformed(spec):
  with pytest.raises(ValueError, match=r"Cannot read"):
    splits.parse(spec)


@pytest.mark.parametrize(
  ("spec", "message"),
  [
    ("train[:11]", r"'train\[:11\]'.*boundary 11 is beyond the 10"),
    ("train[-11:]", "boundary -11 is beyond the 10"),
    ("train[:101%]", r"'train\[:101%\]'.*boundary 101% is beyond"),
    ("train[5:5]", "selects no example"),
    ("train[-1%:]", r"slice is \[10:10\]"),  # of 10 none, not all
    ("train[80%:20%]", r"slice is \[8:2\]"),
  ],
)
def test_out_of_range(spec, message):
  with pytest.raises(ValueError, match=message):
    _bounds(spec, 10)
