"""Sources against the files they read, TFDS and scikit-learn."""

import json
import os
import pathlib
import pickle
from concurrent import futures

import numpy as np
import pytest
import tensorflow_datasets as tfds
from sklearn import datasets as sklearn_datasets

from dpn import damage
from dpn.input_pipeline import conftest as testing
from dpn.input_pipeline import sources


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """A TFDS directory with 23 + 5 examples in three files per split."""
  path = str(tmp_path_factory.mktemp("tfds"))
  rng = np.random.default_rng(0)
  examples = {
    split: [
      {"id": f"{split}{i}", "image": testing.jpeg(rng, 8, 9), "label": i % 7}
      for i in range(size)
    ]
    for split, size in (("train", 23), ("test", 5))
  }
  features = {"id": "text", "image": "jpeg", "label": 7}
  for version in ("1.0.0", "1.10.0"):
    testing.write_tfds(
      path, "tiny", examples, features, version=version, num_shards=3
    )
  return path


def _open(name, split="train", **kw):
  return sources.make({"name": name, "split": split, **kw})


def _all(source):
  return source.read(range(len(source)))


def _ids(source):
  return [example["id"] for example in _all(source)]


@pytest.mark.parametrize(
  "split",
  [
    "train",
    "train[:50%]",
    "train[-5%:]",
    "train[3:-4]",
    "train[:37%]",
    "test+train[20:]",
    "train[:10%]+train[90%:]",
  ],
)
def test_tfds_splits_mean_what_tfds_says(data_dir, split):
  builder = tfds.builder_from_directory(os.path.join(data_dir, "tiny/1.10.0"))
  expected = builder.as_data_source(
    split=split, decoders={"image": tfds.decode.SkipDecoding()}
  )
  source = _open("tiny", split, data_dir=data_dir)
  assert [source[i] for i in range(len(source))] == list(expected)
  assert _all(source) == list(expected)


def test_more_files_than_the_soft_limit_allows(data_dir):
  resource = pytest.importorskip("resource", reason="not on Windows")
  allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
  try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, allowed[1]))
    _open("tiny", data_dir=data_dir)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 512
  finally:
    resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
  no_more = RuntimeError("open() failed: Too many open files")
  with pytest.raises(OSError, match="x: open"), damage.reading("x"):
    raise no_more  # as array_record has it; the data are not damaged


def test_tfds_features_without_shortcut_are_parsed_by_tfds(tmp_path):
  example = {"image": b"0", "label": 3, "score": 7}
  features = {"image": "png", "label": 4, "score": "int"}
  testing.write_tfds(str(tmp_path), "odd", {"train": [example]}, features)
  source = _open("odd", data_dir=str(tmp_path))
  assert source[0] == example
  assert source.num_classes("score") is None
  assert source.num_classes("label") == 4


def test_fractions_drawn_by_seed(data_dir):
  def draw(split, **kw):
    source = _open("tiny", split, data_dir=data_dir, **kw)
    return source.name, _ids(source)

  stored = draw("train")[1]
  assert draw("train[:4]") == ("tiny/1.10.0:train[0:4]", stored[:4])
  drawn = {}
  for seed in (0, 1):
    order = np.random.default_rng(seed).permutation(len(stored))
    name, drawn[seed] = draw("train[:25%]", subset_seed=seed)
    assert name.endswith("[0:6] at random")
    assert drawn[seed] == [stored[i] for i in order[:6]]
    # Fractions are nested, and what is left over is the rest.
    assert draw("train[:50%]", subset_seed=seed)[1][:6] == drawn[seed]
    rest = draw("train[25%:]", subset_seed=seed)[1]
    assert sorted(drawn[seed] + rest) == sorted(stored)
  assert set(drawn[0]) != set(drawn[1])


@pytest.mark.parametrize(
  ("name", "version"),
  [
    ("tiny", "1.10.0"),
    ("tfds:tiny", "1.10.0"),
    ("tiny:1.0.0", "1.0.0"),
    ("tfds:tiny:1.0.0", "1.0.0"),
  ],
)
def test_tfds_names_and_versions(data_dir, name, version, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", data_dir)
  source = _open(name, "train[5:]")
  assert source.describe(2) == f"tiny/{version}:train, example 7"
  assert source.num_classes("label") == 7
  assert source.num_classes("id") is None


def test_sources_pickle_and_serve_threads(data_dir):
  source = _open("tiny", "train[1:]+test", data_dir=data_dir)
  expected = _ids(source)
  copy = pickle.loads(pickle.dumps(source))
  with futures.ThreadPoolExecutor(8) as pool:
    indices = list(range(len(copy))) * 20
    found = list(pool.map(lambda i: copy[i]["id"], indices))
  assert found == expected * 20


@pytest.mark.parametrize(
  ("data", "message"),
  [
    ({"name": "tiy"}, "Unknown data set 'tiy'. Did you mean 'tiny'"),
    ({"name": "tiny:2.0.0"}, "Unknown version '2.0.0'.*1.0.0, 1.10.0"),
    ({"split": "trian"}, "Unknown split 'trian'. Did you mean 'train'"),
    ({"split": "train[:24]"}, "beyond the 23 examples"),
    ({"data_dir": "/no/such"}, "no TFDS directory /no/such.*TFDS_DATA_DIR"),
    ({"data_dir": "gs://bucket"}, "TFDS directory gs://bucket.*mount it"),
    ({"data_dir": None}, "/tensorflow_datasets"),
    ({"name": "foldr:/x"}, "Unknown kind of data source 'foldr'.*'folder'"),
    ({"name": "folder:"}, "'folder:' has nothing behind its colon"),
    ({"name": "/x/y"}, r"'/x/y' does not say what kind.*as in 'folder:/x/y'"),
    ({"shuffle": 1}, "Unknown key of data 'shuffle'"),
    ({"name": 3}, "data: name must be of type str"),
  ],
)
def test_wrong_data(data_dir, tmp_path, monkeypatch, data, message):
  monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
  monkeypatch.setenv("HOME", str(tmp_path))
  base = {"name": "tiny", "split": "train", "data_dir": data_dir}
  with pytest.raises(ValueError, match=message):
    sources.make({**base, **data})


def test_a_split_is_needed():
  with pytest.raises(ValueError, match=r"needs a name and a split"):
    sources.make({"name": "tiny"})


@pytest.mark.parametrize(
  ("file", "text", "message"),
  [
    ("dataset_info.json", "", "dataset_info.json is damaged, expected JSON"),
    ("dataset_info.json", "[]", r"must be of type dict, got \[\]"),
    (
      "dataset_info.json",
      '{"name": "x", "splits": [3]}',
      "splits.0 must be of type dict, got 3",
    ),
    (
      "dataset_info.json",
      '{"name": "x", "splits": [{"name": "y", "shardLengths": ["-1"]}]}',
      r"shardLengths of 'y' must be numbers of examples, got \['-1'\]",
    ),
    (
      "dataset_info.json",
      '{"name": "x", "splits": []}',  # TFRecord, as no format is given
      r"scripts.prepare_data --source tfrecord:.*/x/1.0.0 --data_dir",
    ),
    ("features.json", "null", "it must be of type dict, got None"),
  ],
)
def test_tfds_damaged(tmp_path, file, text, message):
  where = testing.write_tfds(tmp_path, "x", {"y": [{"label": 1}]}, {"label": 7})
  pathlib.Path(where, file).write_text(text)
  with pytest.raises(ValueError, match=message):
    _open("x", "y", data_dir=str(tmp_path))


def test_tfds_unfinished(tmp_path):
  (tmp_path / "old" / "1.0.0").mkdir(parents=True)
  with pytest.raises(OSError, match=r"No such file.*dataset_info.json"):
    _open("old", data_dir=str(tmp_path))
  (tmp_path / "new" / "config").mkdir(parents=True)
  with pytest.raises(ValueError, match="For a data set with configs"):
    _open("new", data_dir=str(tmp_path))


def test_slices_of_embedded_folders_are_shuffled(tmp_path):
  testing.class_folders(tmp_path / "photos" / "train", 2, 2)
  data = {"name": f"folder:{tmp_path}/photos"}
  (tmp_path / "source.json").write_text(json.dumps(data))
  np.save(tmp_path / "train.npy", np.arange(8, dtype=np.float32).reshape(4, 2))
  for split in ("train[:50%]", "train[50%:]"):
    want, got = (
      _open(x, split) for x in (data["name"], f"embedded:{tmp_path}")
    )
    assert _ids(want) == _ids(got)
    assert [got.describe(i) for i in (0, 1)] == [
      want.describe(0),
      want.describe(1),
    ]
    assert got.class_names("label") == ["class0", "class1"]
    places = (
      sources.shuffled(4)[:2] if ":50" in split else sources.shuffled(4)[2:]
    )
    found = [x["image"].tolist() for x in _all(got)]
    assert found == [[2 * i, 2 * i + 1] for i in places]


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("{", "source.json is damaged, expected JSON"),
    ("{}", "source.json: name is missing"),
    ('{"name": "x", "data_dir": 1}', "data_dir must be of type str or None"),
    (
      '{"name": "os:abort"}',
      "'os:abort' is a class of your own.*one of arrays",
    ),
  ],
)
def test_embedded_damaged(tmp_path, text, message):
  (tmp_path / "source.json").write_text(text)
  np.save(tmp_path / "train.npy", np.zeros((4, 2), np.float32))
  with pytest.raises(ValueError, match=message):
    _open(f"embedded:{tmp_path}")
  (tmp_path / "source.json").write_text('{"name": "arrays:digits"}')
  with pytest.raises(ValueError, match=r"npy has .*shape \(4, 2\).*again"):
    _open(f"embedded:{tmp_path}")
  with open(tmp_path / "train.npy", "wb") as file:
    np.savez(file, np.zeros((4, 2)))
  with pytest.raises(ValueError, match="npy: the magic string is not correct"):
    _open(f"embedded:{tmp_path}")


def test_digits():
  digits = sklearn_datasets.load_digits()
  train, test = (_open("arrays:digits", split) for split in ("train", "test"))
  assert (len(train), len(test)) == (1438, 359)
  assert train.num_classes("label") == 10
  # Row 9 is the second test example; row 5 the fifth training example.
  for example, row in ((test[1], 9), (train[4], 5), (train[1437], 1796)):
    expected = [[round(v * 255 / 16) for v in r] for r in digits.images[row]]
    assert example["image"].dtype == np.uint8
    assert example["image"].shape == (8, 8, 1)
    assert example["image"][..., 0].tolist() == expected
    assert example["label"] == digits.target[row]
  with pytest.raises(ValueError, match=r"Unknown split 'val'"):
    _open("arrays:digits", "val")


def test_npz(tmp_path):
  path = f"{tmp_path}/file.npz"
  arrays = {
    "train/image": np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1),
    "train/label": np.array([0, 1, 1]),
    "test/image": np.zeros((1, 2, 2, 1), np.uint8),
    "test/label": np.array([4]),
  }
  np.savez(path, **arrays)
  source = _open(f"arrays:{path}", "train[1:]")
  assert len(source) == 2
  # It may be sorted by class, so that slices are drawn.
  drawn = np.random.default_rng(0).permutation(3)[1:]
  for got, row in zip((source[0], source[1]), drawn, strict=True):
    assert got["image"].tolist() == arrays["train/image"][row].tolist()
  assert source.num_classes("label") == 5
  assert source.class_names("label") is None
  with pytest.raises(ValueError, match=r"Unknown split 'val'. Known: test, tr"):
    _open(f"arrays:{path}", "val")


_GREY = np.zeros((4, 6, 6, 1), np.uint8)


@pytest.mark.parametrize(
  ("arrays", "message"),
  [
    ({"train/label": np.eye(4)}, r"train/label is float64 of shape \(4, 4\)"),
    ({"train/label": np.eye(4, dtype=int)}, "argmax"),
    ({"train/label": np.array([*"abcd"])}, "train/label is <U1 of shape"),
    ({"train/label": np.float32([0, 1, 2, 1])}, "Expected integers from 0"),
    ({"train/label": np.array([True] * 4)}, "train/label is bool"),
    ({"train/x": _GREY, "test/label": np.eye(4)}, "test/label is float64"),
    ({"train/image": _GREY.astype(np.uint16)}, "image is uint16.*Expected uin"),
    ({"train/image": _GREY > 0}, "image is bool.*Expected uint8"),
    ({"train/image": np.moveaxis(_GREY, 3, 1)}, r"\(4, 1, 6, 6\).*moveaxis"),
    ({"train/image": _GREY[:0]}, "'train' selects no example: 'train' has 0"),
    ({"train/image": np.array([{}])}, "file.npz: .*allow_pickle.*numbers"),
    (
      {"train/image": _GREY, "train/label": np.zeros(2, int)},
      "differ in length or have none: {'image': 4, 'label': 2}",
    ),
    ({"train/image": np.uint8(1)}, "or have none: {'image': -1}"),
    ({"train/image": _GREY * 1j}, "image is complex128.*Expected uint8"),
    ({"train/label": np.uint64([2**64 - 1])}, r"Expected .* below 2\^31"),
    ({"x_train": _GREY}, "holds the arrays x_train. Expected.*train/image"),
  ],
)
def test_npz_that_would_train_on_something_else(tmp_path, arrays, message):
  np.savez(tmp_path / "file.npz", **arrays)
  with pytest.raises(ValueError, match=message):
    _open(f"arrays:{tmp_path}/file.npz")


@pytest.mark.parametrize(
  ("image", "label"),
  [
    (_GREY, np.int8([0, 1, -1, 2])),
    (np.zeros((4, 6, 6, 9), np.float16), np.array([[0, 2], [1, -1]] * 2)),
    (np.eye(4) * 2, np.zeros((4, 6, 6), bool)),  # embeddings; label maps
  ],
)
def test_npz_of_other_kinds(tmp_path, image, label):
  arrays = {"train/image": image, "train/label": label}
  empty = {"test/image": image[:0], "test/label": label[:0]}
  np.savez(tmp_path / "file.npz", **arrays, **empty)
  assert len(_open(f"arrays:{tmp_path}/file.npz")) == 4


def test_npz_of_floats_up_to_one(tmp_path, caplog):
  for most, warned in ((255, False), (1, True)):
    images = np.linspace(0, most, 8, dtype=np.float32).reshape(2, 2, 2, 1)
    np.savez(tmp_path / "file.npz", **{"train/image": images})
    _open(f"arrays:{tmp_path}/file.npz")
    assert ("write value_range(-1, 1, 0, 1)" in caplog.text) == warned


_SHAPES = """
from dpn.input_pipeline import sources

class Squares(sources.Source):
  def __init__(self, split):
    {"train": "squares"}[split]

  def __len__(self):
    return 100

  def __getitem__(self, index):
    return {"label": index % 10}

class Broken(Squares):
  def __init__(self, split):
    {}["train.csv"]
"""


def test_a_source_of_ones_own(tmp_path, monkeypatch):
  (tmp_path / "shapes.py").write_text(_SHAPES)
  monkeypatch.syspath_prepend(tmp_path)
  source = _open("shapes:Squares", "train[:10]")
  assert len(source) == 10
  assert source[7] == {"label": 7}
  assert source.num_classes("label") is None
  assert source.describe(3) == "shapes:Squares:train, example 3"
  for name, message in (
    ("shaps:Squares", "there is no module 'shaps'. Install it, or start Pyth"),
    ("shapes:Square", "Unknown attribute 'Square'. Did you mean 'Squares'"),
    ("shapes:np.sum", "Unknown kind of data source 'shapes'.*package.module"),
    ("os:abort", "'os:abort' is not a subclass of .*Source"),
  ):
    with pytest.raises(ValueError, match=message):
      _open(name)
  with pytest.raises(ValueError, match="'shapes:Squares' has no split 'trian'"):
    _open("shapes:Squares", "trian")
  with pytest.raises(KeyError, match=r"train\.csv"):
    _open("shapes:Broken")


def test_splits_of_other_classes():
  class Two(sources.Source):
    name, __len__ = "two", lambda self: 2

    def __init__(self, *names):
      self.classes = {"label": names}

    def __getitem__(self, index):
      return {"label": index}

  parts = Two("cat", "dog"), Two("dog", "cat")
  assert sources.join([(parts[0], 0, 1)] * 2).class_names("label")[0] == "cat"
  both = sources.join([(part, 0, 2) for part in parts])
  with pytest.raises(ValueError, match="the parts have other classes, so equa"):
    both.class_names("label")


def test_a_checksum_of_texts_is_of_their_letters():
  def checksum(*texts):
    column = np.empty((1, len(texts)), object)
    column[0] = texts
    return sources.checksum([{"text": column[0]}])

  one, same = ("".join(["a", x]) for x in "bb")  # two objects
  assert checksum(one, "c") == checksum(same, "c")
  assert checksum(one, "c") != checksum(one, "d")
