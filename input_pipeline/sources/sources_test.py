"""Sources against the files they read, TFDS and scikit-learn."""

import json
import os
import pathlib
import pickle
from concurrent import futures

import cv2
import numpy as np
import pytest
import tensorflow_datasets as tfds
from sklearn import datasets as sklearn_datasets

from dpn.input_pipeline import conftest as testing
from dpn.input_pipeline import pipeline, sources


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


def _tiny(data_dir, split, name="tiny"):
  return sources.make({"name": name, "split": split, "data_dir": data_dir})


def _ids(source):
  return [example["id"] for example in source.read(range(len(source)))]


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
  source = _tiny(data_dir, split)
  assert len(source) == len(expected)
  assert [source[i] for i in range(len(source))] == list(expected)
  assert _ids(source) == [e["id"] for e in expected]


def test_tfds_features_without_shortcut_are_parsed_by_tfds(tmp_path):
  testing.write_tfds(
    str(tmp_path),
    "odd",
    {"train": [{"image": b"0", "label": 3, "score": 7}]},
    {"image": "png", "label": 4, "score": "int"},
  )
  source = sources.make(
    {"name": "odd", "split": "train", "data_dir": str(tmp_path)}
  )
  assert source[0] == {"image": b"0", "label": 3, "score": 7}
  assert source.num_classes("score") is None
  assert source.num_classes("label") == 4


@pytest.mark.parametrize(
  ("name", "split", "key"),
  [
    ("scene_parse150", "test", "annotation"),
    ("camvid", "val", "label"),
  ],
)
def test_tfds_label_maps(tmp_path, name, split, key):
  """Their features as TFDS, or as what prepared CamVid, has them."""
  ids = np.uint8([[0, 1, 150], [9, 11, 10]])
  png = cv2.imencode(".png", ids)[1].tobytes()
  examples = {split: [{"image": png, key: png}]}
  features = {"image": "jpeg", key: "png"}
  testing.write_tfds(str(tmp_path), name, examples, features)
  data = {"name": name, "split": split, "data_dir": str(tmp_path)}
  spec = f'decode|decode_labels(151, inkey="{key}")|keep("image", "labels")'
  (batch,) = pipeline.evaluation(data, spec, 1)
  assert batch["labels"].tolist() == [ids.tolist()]


def test_fractions_drawn_by_seed(data_dir):
  def draw(split, **kw):
    data = {"name": "tiny", "split": split, "data_dir": data_dir, **kw}
    source = sources.make(data)
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


def test_tfds_names_versions_and_description(data_dir):
  for name, version in (
    ("tiny", "1.10.0"),
    ("tfds:tiny", "1.10.0"),
    ("tiny:1.0.0", "1.0.0"),
    ("tfds:tiny:1.0.0", "1.0.0"),
  ):
    source = _tiny(data_dir, "train[5:]", name)
    assert source.describe(2) == f"tiny/{version}:train, example 7"
    assert source.num_classes("label") == 7
    assert source.num_classes("id") is None


def test_tfds_directory_from_the_environment(data_dir, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", data_dir)
  assert len(sources.make({"name": "tiny", "split": "test"})) == 5


def test_sources_pickle_and_serve_threads(data_dir):
  source = _tiny(data_dir, "train[1:]+test")
  expected = _ids(source)
  copy = pickle.loads(pickle.dumps(source))
  assert _ids(copy) == expected
  with futures.ThreadPoolExecutor(8) as pool:
    indices = list(range(len(copy))) * 20
    found = list(pool.map(lambda i: copy[i]["id"], indices))
  assert found == expected * 20


def test_tfds_errors(data_dir, tmp_path, monkeypatch):
  for data, message in (
    ({"name": "tiy"}, "Unknown data set 'tiy'. Did you mean 'tiny'"),
    ({"name": "tiny:2.0.0"}, "Unknown version '2.0.0'.*1.0.0, 1.10.0"),
    ({"split": "trian"}, "Unknown split 'trian'. Did you mean 'train'"),
    ({"split": "train[:24]"}, "beyond the 23 examples"),
    ({"data_dir": "/no/such"}, "no TFDS directory /no/such.*TFDS_DATA_DIR"),
    ({"data_dir": "gs://bucket"}, "TFDS directory gs://bucket.*mount a bucket"),
    ({"name": "foldr:/x"}, "Unknown kind of data source 'foldr'.*'folder'"),
    ({"name": "/x/y"}, r"'/x/y' does not say what kind.*as in 'folder:/x/y'"),
    ({"shuffle": 1}, "Unknown key of data 'shuffle'"),
  ):
    base = {"name": "tiny", "split": "train", "data_dir": data_dir}
    with pytest.raises(ValueError, match=message):
      sources.make({**base, **data})
  monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
  monkeypatch.setenv("HOME", str(tmp_path))
  with pytest.raises(ValueError, match=f"{tmp_path}/tensorflow_datasets"):
    sources.make({"name": "tiny", "split": "train"})
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
    ("features.json", "null", "cannot be read as a data set of TFDS: TypeErr"),
  ],
)
def test_tfds_damaged(tmp_path, file, text, message):
  example = {"label": 1}
  where = testing.write_tfds(tmp_path, "x", {"y": [example]}, {"label": 7})
  data = {"name": "x", "split": "y", "data_dir": str(tmp_path)}
  assert sources.make(data)[0] == example
  pathlib.Path(where, file).write_text(text)
  with pytest.raises(ValueError, match=message):
    sources.make(data)


@pytest.mark.parametrize("name", [3, ["tiny"], None])
def test_names_are_text(name):
  with pytest.raises(ValueError, match="data: name must be of type str"):
    sources.make({"name": name, "split": "train"})


def test_slices_of_embedded_folders_are_shuffled(tmp_path):
  for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
    path = tmp_path / "photos" / "train" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
  data = {"name": f"folder:{tmp_path}/photos"}
  (tmp_path / "source.json").write_text(json.dumps(data))
  np.save(tmp_path / "train.npy", np.zeros((4, 2), np.float32))
  embedded = {"name": f"embedded:{tmp_path}"}
  for split in ("train[:50%]", "train[50%:]"):
    want, got = (sources.make({**d, "split": split}) for d in (data, embedded))
    labels = [[s.read([i])[0]["label"] for i in range(2)] for s in (want, got)]
    assert labels[0] == labels[1]


def test_embedded_damaged(tmp_path):
  data = {"name": f"embedded:{tmp_path}", "split": "train"}
  for text, message in (
    ("{", "source.json is damaged, expected JSON"),
    ("{}", "source.json: name is missing"),
    ('{"name": "x", "data_dir": 1}', "data_dir must be of type str or None"),
  ):
    (tmp_path / "source.json").write_text(text)
    with pytest.raises(ValueError, match=message):
      sources.make(data)


def test_tfds_prepared_as_tfrecord(tmp_path):
  path = tmp_path / "old" / "1.0.0"
  path.mkdir(parents=True)
  data = {"name": "old", "split": "train", "data_dir": str(tmp_path)}
  with pytest.raises(OSError, match=r"dataset_info.json is not there"):
    sources.make(data)
  (path / "dataset_info.json").write_text('{"name": "old", "splits": []}')
  with pytest.raises(
    ValueError,
    match=r"scripts.prepare_data --source tfrecord:.*/old/1.0.0 --da",
  ):
    sources.make(data)
  (tmp_path / "new" / "config").mkdir(parents=True)
  with pytest.raises(
    ValueError, match=r"but: config. For a data set with conf"
  ):
    sources.make({**data, "name": "new"})


def test_folder(tmp_path):
  for name, content in (
    ("train/dog/b.PNG", b"1"),
    ("train/dog/a.jpg", b"2"),
    ("train/cat/c.webp", b"3"),
    ("train/cat/notes.txt", b"4"),
    ("train/.git/x.jpg", b"5"),
  ):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
  (tmp_path / "val").mkdir()
  data = {"name": f"folder:{tmp_path}", "split": "train"}
  source = pickle.loads(pickle.dumps(sources.make(data)))
  assert source.read(range(3)) == [
    {"image": b"3", "label": 0, "id": "cat/c.webp"},
    {"image": b"2", "label": 1, "id": "dog/a.jpg"},
    {"image": b"1", "label": 1, "id": "dog/b.PNG"},
  ]
  assert source.num_classes("label") == 2
  part = sources.make({**data, "split": "train[-1:]"})
  last = ("cat/c.webp", "dog/a.jpg", "dog/b.PNG")[sources.shuffled(3)[-1]]
  assert part[0]["id"] == last
  assert part.describe(0) == str(tmp_path / "train" / last)
  for change, message in (
    ({"split": "test"}, "Unknown split 'test'. Known: train, val"),
    ({"split": "val"}, "No image in"),
    ({"data_dir": "/x"}, "data_dir is for TFDS"),
  ):
    with pytest.raises(ValueError, match=message):
      sources.make({**data, **change})
  with pytest.raises(OSError, match="/no/such"):
    sources.make({**data, "name": "folder:/no/such"})


def test_digits():
  digits = sklearn_datasets.load_digits()
  train, test = (
    sources.make({"name": "arrays:digits", "split": split})
    for split in ("train", "test")
  )
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
    sources.make({"name": "arrays:digits", "split": "val"})


def test_npz(tmp_path):
  path = str(tmp_path / "file.npz")
  arrays = {
    "train/image": np.arange(12, dtype=np.uint8).reshape(3, 2, 2, 1),
    "train/label": np.array([0, 1, 1]),
    "test/image": np.zeros((1, 2, 2, 1), np.uint8),
    "test/label": np.array([4]),
  }
  np.savez(path, **arrays)
  data = {"name": f"arrays:{path}", "split": "train[1:]"}
  source = sources.make(data)
  assert len(source) == 2
  assert source[1]["image"].tolist() == [[[8], [9]], [[10], [11]]]
  assert source.num_classes("label") == 5
  with pytest.raises(ValueError, match=r"Unknown split 'val'. Known: test, tr"):
    sources.make({**data, "split": "val"})
  np.savez(path, **{**arrays, "train/label": np.zeros(2, int)})
  with pytest.raises(ValueError, match=r"differ in length: {'image': 3, 'lab"):
    sources.make(data)
  np.savez(path, **{"train/image": np.array([{}])})
  with pytest.raises(ValueError, match=r"file.npz: .*allow_pickle.*numbers"):
    sources.make(data)
  with pytest.raises(OSError, match=r"/no.npz"):
    sources.make({**data, "name": "arrays:/no.npz"})


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
    ({"x_train": _GREY}, "holds the arrays x_train. Expected.*train/image"),
  ],
)
def test_npz_that_would_train_on_something_else(tmp_path, arrays, message):
  np.savez(tmp_path / "file.npz", **arrays)
  with pytest.raises(ValueError, match=message):
    sources.make({"name": f"arrays:{tmp_path}/file.npz", "split": "train"})


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
  data = {"name": f"arrays:{tmp_path}/file.npz", "split": "train"}
  assert len(sources.make(data)) == 4


def test_npz_of_floats_up_to_one(tmp_path, caplog):
  data = {"name": f"arrays:{tmp_path}/file.npz", "split": "train"}
  for most, warned in ((255, False), (1, True)):
    images = np.linspace(0, most, 8, dtype=np.float32).reshape(2, 2, 2, 1)
    np.savez(tmp_path / "file.npz", **{"train/image": images})
    sources.make(data)
    assert ("write value_range(-1, 1, 0, 1)" in caplog.text) == warned


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("tar:{}/file", "file is a file, expected a folder"),
    ("parquet:{}/file", "file is a file, expected a folder"),
    ("folder:{}/file", "file is a file, expected a folder"),
    ("manifest:{}", "is a folder, expected a file"),
    ("arrays:{}", "is a folder, expected a file"),
  ],
)
def test_files_for_folders(tmp_path, name, message):
  (tmp_path / "file").write_bytes(b"")
  with pytest.raises(OSError, match=message):
    sources.make({"name": name.format(tmp_path), "split": "train"})


def test_fake_imagenet(tmp_path):
  testing.imagenet2012(str(tmp_path), train=5, validation=3)
  data = {"name": "imagenet2012", "data_dir": str(tmp_path)}
  train = sources.make({**data, "split": "train"})
  assert (len(train), train.num_classes("label")) == (5, 1000)
  assert train[4]["file_name"] == b"train_00000004.JPEG"
  assert len(sources.make({**data, "split": "validation"})) == 3


_SHAPES = """
from dpn.input_pipeline import sources

class Squares(sources.Source):
  def __init__(self, split):
    self.name = {"train": "squares"}[split]

  def __len__(self):
    return 100

  def __getitem__(self, index):
    return {"label": index % 10}

class Nameless(Squares):
  def __init__(self, split):
    pass

class Broken(Squares):
  def __init__(self, split):
    {}["train.csv"]
"""


def test_a_source_of_ones_own(tmp_path, monkeypatch):
  (tmp_path / "shapes.py").write_text(_SHAPES)
  monkeypatch.syspath_prepend(tmp_path)
  data = {"name": "shapes:Squares", "split": "train[:10]"}
  source = sources.make(data)
  assert len(source) == 10
  assert source[7] == {"label": 7}
  assert source.num_classes("label") is None
  for name, message in (
    ("shaps:Squares", "there is no module 'shaps'. Install it, or start Pyth"),
    ("shapes:Square", "Unknown attribute 'Square'. Did you mean 'Squares'"),
    ("shapes:np.sum", "Unknown kind of data source 'shapes'.*package.module"),
    ("builtins:str", "gave str, expected a subclass"),
    ("shapes:Nameless", "Nameless must set self.name"),
  ):
    with pytest.raises(ValueError, match=message):
      sources.make({**data, "name": name})
  with pytest.raises(ValueError, match="'shapes:Squares' has no split 'trian'"):
    sources.make({**data, "split": "trian"})
  with pytest.raises(KeyError, match=r"train\.csv"):
    sources.make({**data, "name": "shapes:Broken"})
