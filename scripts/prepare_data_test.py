"""Preparing: what comes out is what went in, also after an interruption."""

import json
import os
import struct

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python import array_record_module

from dpn.input_pipeline import conftest as testing
from dpn.input_pipeline import pipeline, sources
from dpn.input_pipeline.pp import jpeg, ops_image
from dpn.input_pipeline.sources import tfds_writer
from dpn.scripts import prepare_data


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


def test_classes_and_slices_are_those_of_the_folders(photos):
  (photos / "photos/val/class1").rename(photos / "photos/val/class7")
  _run(photos)
  for split in ("train[:30%]", "train[30%:]", "val[2:]"):
    was = sources.make({"name": f"folder:{photos}/photos", "split": split})
    now = sources.make(
      {"name": "photos", "split": split, "data_dir": f"{photos}/tfds"}
    )
    assert _rows(now) == _rows(was)
    assert now.class_names("label") == ["class0", "class1", "class2", "class7"]


def test_goes_on_where_it_was(photos, monkeypatch):
  write, calls = tfds_writer.write_shard, []

  def fail_at_third(path, records):
    calls.append(os.path.basename(path))
    if len(calls) == 3:
      raise OSError("disk full")
    return write(path, records)

  monkeypatch.setattr(tfds_writer, "write_shard", fail_at_third)
  with pytest.raises(SystemExit, match="Error: disk full"):
    _run(photos)
  with pytest.raises(SystemExit, match=r"preparing was not finished"):
    prepare_data.main(
      ["--verify", "--name=photos", f"--data_dir={photos}/tfds"]
    )
  with pytest.raises(OSError, match=r"No such file.*dataset_info.json"):
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
    f"folder:{photos}/photos",
    other,
    splits=["train", "val"],
    name="photos",
    shard_size=10,
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
  with pytest.raises(
    SystemExit, match=r"holds another.*'shard_size': 10.*give another"
  ):
    _run(photos, "--shard_size=7")
  (directory / "checksums.json").unlink()
  with pytest.raises(SystemExit, match=r"holds another data set"):
    _run(photos)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ('{"shards"', "checksums.json is damaged, expected JSON"),
    ('{"origin": null}', "checksums.json: shards is missing"),
    (
      '{"origin": null, "shards": {"a": [1, "2", "3"]}}',
      "shards.a.1 must be of type int, got '2'",
    ),
  ],
)
def test_damaged_checksums(photos, text, message):
  directory = photos / "tfds/photos/1.0.0"
  directory.mkdir(parents=True)
  (directory / "checksums.json").write_text(text)
  (directory / "dataset_info.json").write_text("{}")
  with pytest.raises(SystemExit, match=message):
    _run(photos)
  with pytest.raises(ValueError, match=message):
    prepare_data.verify(directory)


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


def _as_tfrecord(directory):
  """Turns a data set's files into TFRecord; checksums are left empty."""
  for entry in list(os.scandir(directory)):
    if ".array_record-" in entry.name:
      reader = array_record_module.ArrayRecordReader(entry.path)
      with open(entry.path.replace("array_record", "tfrecord"), "wb") as file:
        for record in reader.read_all():
          file.write(struct.pack("<Q4x", len(record)) + record + bytes(4))
      os.remove(entry.path)
  path = os.path.join(directory, "dataset_info.json")
  with open(path) as file:
    info = json.load(file)
  with open(path, "w") as file:
    json.dump({**info, "fileFormat": "tfrecord"}, file)


@pytest.fixture
def old(tmp_path):
  testing.imagenet2012(str(tmp_path / "old"), train=7, validation=3)
  return tmp_path / "old" / "imagenet2012" / "5.1.0"


def _examples(data_dir, split):
  source = sources.make(
    {"name": "imagenet2012", "split": split, "data_dir": str(data_dir)}
  )
  return source.read(range(len(source)))


def test_tfrecord_is_copied(old, tmp_path, capsys):
  expected = {
    s: _examples(tmp_path / "old", s) for s in ("train", "validation")
  }
  _as_tfrecord(old)
  with pytest.raises(ValueError, match=f"source tfrecord:{old} --data_dir"):
    _examples(tmp_path / "old", "train")
  args = [
    f"--source=tfrecord:{old}",
    "--verify",
    "--data_dir",
    str(tmp_path / "new"),
  ]
  prepare_data.main(args)
  copy = tmp_path / "new" / "imagenet2012" / "5.1.0"
  printed = capsys.readouterr().out
  assert printed == f"Prepared {copy}.\nVerified 10 examples in 4 files.\n"
  for split, rows in expected.items():
    assert _examples(tmp_path / "new", split) == rows
  # Again: nothing is left to write.
  times = {f: f.stat().st_mtime_ns for f in copy.glob("*array_record*")}
  assert len(times) == 4
  prepare_data.main(args)
  assert {f: f.stat().st_mtime_ns for f in times} == times


def test_restart_markers_are_added_to_a_copy(old, tmp_path):
  args = ["--restart", f"--data_dir={tmp_path / 'new'}", "--verify"]
  prepare_data.main([f"--source=array_record:{old}", *args])
  copy = tmp_path / "new" / "imagenet2012" / "5.1.0"
  info = json.loads((copy / "dataset_info.json").read_text())
  assert "'restart': True" in info["description"]
  was, now = (_examples(tmp_path / x, "train") for x in ("old", "new"))
  assert len(was) == 7
  for before, after in zip(was, now, strict=True):
    assert jpeg.Cutter.from_bytes(after["image"]) is not None
    before["image"], after["image"] = (
      ops_image.decode_image(x["image"]).tolist() for x in (before, after)
    )
    assert after == before
  with pytest.raises(SystemExit, match="holds another data set"):
    prepare_data.main([f"--source=array_record:{old}", args[1]])


def test_smaller_images(photos):
  directory = _run(photos, "--max_side=4", "--quality=90")
  saved = json.loads((directory / "checksums.json").read_text())
  assert saved["origin"]["images"] == {"max_side": 4, "quality": 90}
  source = sources.make(
    {"name": "photos", "split": "train", "data_dir": f"{photos}/tfds"}
  )
  shapes = {
    ops_image.decode_image(x["image"]).shape for x in source.read([0, 9])
  }
  assert shapes == {(4, 4, 3)}  # of 8 x 9
  with pytest.raises(SystemExit, match="quality must be 1 to 100"):
    _run(photos, "--max_side=4", "--quality=900")


def test_tfrecord_errors(old, tmp_path):
  run = lambda folder, data_dir: prepare_data.main(
    [f"--source=tfrecord:{folder}", f"--data_dir={tmp_path / data_dir}"]
  )
  with pytest.raises(SystemExit, match="is array_record, not tfrecord"):
    run(old, "new")
  _as_tfrecord(old)
  with pytest.raises(
    SystemExit, match=r"holds another data set.*give another --data_dir"
  ):
    run(old, "old")
  (tmp_path / "dataset_info.json").write_text("[]")
  with pytest.raises(SystemExit, match=r"info.json: it must be of type dict"):
    run(tmp_path, "new")
  (tmp_path / "dataset_info.json").unlink()
  with pytest.raises(SystemExit, match=r"No such file.*/dataset_info.json"):
    run(tmp_path, "new")
  path = next(old.glob("*train.tfrecord-00001*"))
  content = path.read_bytes()
  for length in (7, 40, len(content) - 3):
    path.write_bytes(content[:length])
    with pytest.raises(SystemExit, match="is cut off"):
      run(old, "new")
  size = struct.unpack("<Q", content[:8])[0] + 16
  path.write_bytes(content[:size])
  with pytest.raises(SystemExit, match=r"has 1 records, .* says 3"):
    run(old, "new")


def test_captions_and_a_tokenizer_for_them(tmp_path, capsys):
  pytest.importorskip("sentencepiece")
  jpeg = testing.jpeg(np.random.default_rng(0), 8, 8)
  (tmp_path / "a.jpg").write_bytes(jpeg)
  words = ["Small latin letter", "latin sign", "capital letter with dot"]
  rows = [
    {"path": "a.jpg", "split": "train", "caption": words[i:] + words[:i]}
    for i in range(3)
  ]
  pairs = tmp_path / "pairs.jsonl"
  pairs.write_text("\n".join(map(json.dumps, rows)))
  data_dir = str(tmp_path / "tfds")
  args = ["--source", f"manifest:{pairs}", "--name", "pairs", "--vocab_size=40"]
  prepare_data.main([*args, "--data_dir", data_dir])
  assert "tokenizer.model" in capsys.readouterr().out
  data = {"name": "pairs", "split": "train", "data_dir": data_dir}
  source = sources.make(data)
  texts = {tuple(x.decode() for x in source[i]["text"]) for i in range(3)}
  assert texts == {tuple(row["caption"]) for row in rows}
  model = f"{data_dir}/pairs/1.0.0/tokenizer.model"
  batch = pipeline.evaluation(
    data,
    f'choice(key="text")|tokenize(40, model="{model}")|keep("text")',
    batch_size=3,
  )
  assert batch.vocabularies["text"].size <= 40
  assert len(batch.vocabularies["text"].sha256) == 64
  [rows] = batch
  assert rows["text"].shape == (3, 40)
  assert (rows["text"] > 1).any(axis=1).all()
  assert (rows["text"] == 1).sum() == 3  # one end for each
