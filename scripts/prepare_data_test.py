"""Preparing: what comes out is what went in, also after an interruption."""

import json
import os

import numpy as np
import pytest
import tensorflow_datasets as tfds

from input_pipeline import sources, testing
from input_pipeline.sources import tfds_writer
from scripts import prepare_data


@pytest.fixture
def photos(tmp_path):
  """Class folders with 23 + 5 JPEGs, the directory to prepare in beside it."""
  rng = np.random.default_rng(0)
  for split, size in (("train", 23), ("val", 5)):
    for i in range(size):
      folder = tmp_path / "photos" / split / f"class{i % 3}"
      folder.mkdir(parents=True, exist_ok=True)
      (folder / f"{i}.jpg").write_bytes(testing.jpeg(rng, 8, 9))
  return tmp_path


def _run(photos, *more):
  prepare_data.main(
    [
      f"--source=folder:{photos}/photos",
      "--splits=train,val",
      "--name=photos",
      f"--data_dir={photos}/tfds",
      "--shard_size=10",
      *more,
    ]
  )
  return photos / "tfds" / "photos" / "1.0.0"


def _rows(source):
  rows = source.read(range(len(source)))
  for row in rows:
    row["id"] = (
      row["id"].decode() if isinstance(row["id"], bytes) else row["id"]
    )
  return sorted(rows, key=lambda row: row["id"])


def test_round_trip(photos, capsys):
  directory = _run(photos, "--verify")
  assert "Verified 28 examples in 4 files." in capsys.readouterr().out
  for split in ("train", "val"):
    was = sources.make({"name": f"folder:{photos}/photos", "split": split})
    now = sources.make(
      {"name": "photos", "split": split, "data_dir": f"{photos}/tfds"}
    )
    assert _rows(now) == _rows(was)
    assert now.num_classes("label") == 3
    assert now.class_names("label") == ["class0", "class1", "class2"]
  # Shuffled: a slice is no single class.
  assert len({now[i]["label"] for i in range(3)}) > 1
  builder = tfds.builder_from_directory(directory)
  assert builder.info.splits["train"].num_examples == 23
  names = builder.info.features["label"].names
  assert names == ["class0", "class1", "class2"]


def test_goes_on_where_it_was(photos, monkeypatch):
  write, calls = tfds_writer.write_shard, []

  def fail_at_third(path, examples):
    calls.append(os.path.basename(path))
    if len(calls) == 3:
      raise OSError("disk full")
    return write(path, examples)

  monkeypatch.setattr(tfds_writer, "write_shard", fail_at_third)
  with pytest.raises(SystemExit, match="Error: disk full"):
    _run(photos)
  with pytest.raises(SystemExit, match=r"preparation was not finished"):
    prepare_data.main(
      ["--verify", "--name=photos", f"--data_dir={photos}/tfds"]
    )
  with pytest.raises(ValueError, match=r"no dataset_info.json"):
    sources.make(
      {"name": "photos", "split": "train", "data_dir": f"{photos}/tfds"}
    )
  _run(photos, "--verify")
  # Two were done, the third is tried again, one more is of `val`.
  assert len(calls) == 3 + 2
  assert calls[3] == calls[2]
  _run(photos)
  assert len(calls) == 5
  other = photos / "other"
  prepare_data.prepare(
    f"folder:{photos}/photos", ["train", "val"], "photos", other, shard_size=10
  )
  for file in os.listdir(photos / "tfds/photos/1.0.0"):
    first, second = (
      (root / "photos/1.0.0" / file).read_bytes()
      for root in (photos / "tfds", other)
    )
    assert first == second


def test_verify_finds_damage(photos):
  directory = _run(photos)
  path = directory / tfds_writer.shard_path("photos", "train", 1, 3)
  content = path.read_bytes()
  verify = lambda: prepare_data.verify(directory)
  assert verify() == (28, 4)
  middle = len(content) // 2
  path.write_bytes(
    content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
  )
  with pytest.raises(ValueError, match=path.name):
    verify()
  path.write_bytes(
    (directory / tfds_writer.shard_path("photos", "train", 0, 3)).read_bytes()
  )
  with pytest.raises(ValueError, match=r"00001-of-00003 has 8 records with ch"):
    verify()
  path.unlink()
  with pytest.raises(ValueError, match="cannot be read"):
    verify()


def test_refuses_another_data_set(photos):
  directory = _run(photos)
  with pytest.raises(SystemExit, match=r"was begun with.*'shard_size': 10"):
    _run(photos, "--shard_size=7")
  (directory / "checksums.json").unlink()
  with pytest.raises(SystemExit, match=r"holds another data set"):
    _run(photos)


def test_features_by_value():
  class Odd(sources.Source):
    name = "odd"

    def __len__(self):
      return 1

    def __getitem__(self, index):
      return {
        "image": b"\x89PNG",
        "text": "x",
        "label": 3,
        "number": np.int64(5),
        "box": np.zeros(4),
      }

    def num_classes(self, label_key):
      return {"label": 7}.get(label_key)

  assert prepare_data._features(Odd()) == {
    "image": "png",
    "text": "text",
    "label": 7,
    "number": "int",
  }


def test_checksums_are_plain_json(photos):
  directory = _run(photos)
  saved = json.loads((directory / "checksums.json").read_text())
  assert saved["origin"]["sizes"] == {"train": 23, "val": 5}
  assert [shard[0] for shard in saved["shards"].values()] == [8, 8, 7, 5]
