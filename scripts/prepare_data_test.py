"""Preparing: what comes out is what went in, also after an interruption."""

import json
import os
import struct
import types

import numpy as np
import pytest
import tensorflow_datasets as tfds
from array_record.python import array_record_module
from tensorboardX import record_writer

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


def _run(photos, *more, data_dir="tfds"):
  args = [f"--source=folder:{photos}/photos", "--splits=train,val"]
  args += ["--name=photos", f"--data_dir={photos}/{data_dir}"]
  prepare_data.main([*args, "--shard_size=10", *more])
  return photos / data_dir / "photos" / "1.0.0"


def _open(photos, split):
  """Returns a split of the folders, and of what was made of them."""
  was = {"name": f"folder:{photos}/photos", "split": split}
  now = {"name": "photos", "split": split, "data_dir": f"{photos}/tfds"}
  return sources.make(was), sources.make(now)


def _rows(source):
  rows = source.read(range(len(source)))
  for row in rows:
    row["id"] = getattr(row["id"], "decode", lambda row=row: row["id"])()
  return sorted(rows, key=lambda row: row["id"])


def test_round_trip(photos, capsys):
  (photos / "photos/val/class1").rename(photos / "photos/val/class7")
  directory = _run(photos, "--verify")
  assert "Verified 28 examples in 4 files." in capsys.readouterr().out
  classes = ["class0", "class1", "class2", "class7"]
  for split in ("train", "val", "train[:30%]", "train[30%:]", "val[2:]"):
    was, now = _open(photos, split)
    assert _rows(now) == _rows(was)
    assert now.class_names("label") == classes
  # Shuffled: a slice is no single class.
  assert len({_open(photos, "train")[1][i]["label"] for i in range(3)}) > 1
  builder = tfds.builder_from_directory(directory)
  assert builder.info.splits["train"].num_examples == 23
  assert builder.info.features["label"].names == classes
  saved = json.loads((directory / "checksums.json").read_text())
  assert saved["origin"]["sizes"] == {"train": 23, "val": 5}
  assert [shard[0] for shard in saved["shards"].values()] == [8, 8, 7, 5]


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
  args = ["--verify", "--name=photos", f"--data_dir={photos}/tfds"]
  with pytest.raises(SystemExit, match=r"preparing was not finished"):
    prepare_data.main(args)
  with pytest.raises(OSError, match=r"No such file.*dataset_info.json"):
    _open(photos, "train")
  directory = _run(photos, "--verify")
  # Two were done, the third is tried again, one more is of `val`.
  assert len(calls) == 3 + 2
  assert calls[3] == calls[2]
  _run(photos)
  assert len(calls) == 5
  other = _run(photos, data_dir="other")
  for file in directory.iterdir():
    assert file.read_bytes() == (other / file.name).read_bytes()


def test_verify_finds_damage(photos):
  directory = _run(photos)
  path, first = (
    directory / tfds_writer.shard_path("photos", "train", i, 3) for i in (1, 0)
  )
  assert prepare_data.verify(directory) == (28, 4)
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  other = r"00001-of-00003 has 8 records with checksum"
  for new, message in ((content, path.name), (first.read_bytes(), other)):
    path.write_bytes(new)
    with pytest.raises(ValueError, match=message):
      prepare_data.verify(directory)
  path.unlink()
  with pytest.raises(ValueError, match="cannot be read"):
    prepare_data.verify(directory)
  os.mkfifo(path)  # which would wait for a writer for ever
  with pytest.raises(ValueError, match="a pipe"):
    prepare_data.verify(directory)
  saved = json.loads((directory / "checksums.json").read_text())
  saved["shards"].popitem()
  (directory / "checksums.json").write_text(json.dumps(saved))
  with pytest.raises(ValueError, match="not of the same files and numbers"):
    prepare_data.verify(directory)


def test_folders_of_classes_alone_are_train_and_a_first_write_may_end(photos):
  directory = photos / "tfds/photos/1.0.0"
  directory.mkdir(parents=True)
  (directory / "checksums.json.partial").touch()
  _run(photos, f"--source=folder:{photos}/photos/val", "--splits=all")
  _, now = _open(photos, "train[1:]")
  assert {row["label"] for row in now.read(range(4))} == {0, 1, 2}


def test_refuses_another_data_set(photos):
  directory = _run(photos)
  message = r"holds another.*'shard_size': 10.*give another"
  with pytest.raises(SystemExit, match=message):
    _run(photos, "--shard_size=7")
  (photos / "photos/val/class1").rename(photos / "photos/val/class7")
  with pytest.raises(SystemExit, match=r"holds another.*'checksum': \d+.*give"):
    _run(photos)  # with the labels of before
  (directory / "checksums.json").unlink()
  with pytest.raises(SystemExit, match=r"holds another data set"):
    _run(photos)


def test_damaged_checksums(photos):
  text = '{"origin": null, "shards": {"a": [1, "2", "3"]}}'
  message = "checksums.json: shards.a.1 must be of type int, got '2'"
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
    classes = {"label": 7}  # noqa: RUF012, not changed

    def __len__(self):
      return 1

    def __getitem__(self, index):
      row = {"image": b"\x89PNG", "text": "x", "label": 3}
      return {**row, "number": np.int64(5), "box": np.zeros(4)}

  features = {"image": "png", "text": "text", "label": 7, "number": "int"}
  assert prepare_data._features(Odd()) == features
  several = types.SimpleNamespace(
    name="x", describe=str, read=lambda _: [{"text": "a"}, {"text": ["a", "b"]}]
  )
  records = prepare_data._records(several, np.arange(2), {"text": "text"})
  with pytest.raises(ValueError, match="as 'text', the first example has 't"):
    list(records)


@pytest.mark.parametrize(
  ("key", "args", "message"),
  [
    ("caption", ["--splits=train,val"], "'texts'}, where the first of --spl"),
    ("mask", ["--splits=train,val", "--max_side=4"], "shrinks no label maps"),
  ],
)
def test_splits_that_do_not_fit(tmp_path, key, args, message):
  values = {"caption": ["a", ["a"]], "mask": ["x.png", "x.png"]}[key]
  rows = [
    {"path": "x.jpg", "split": split, key: value}
    for split, value in zip(("train", "val"), values, strict=True)
  ]
  (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
  for name in ("x.jpg", "x.png"):
    jpeg_or_png = ops_image.PNG if name == "x.png" else b"\xff\xd8"
    (tmp_path / name).write_bytes(jpeg_or_png)
  args = ["--name=x", f"--data_dir={tmp_path}", *args]
  with pytest.raises(SystemExit, match=message):
    prepare_data.main([f"--source=manifest:{tmp_path}/x.jsonl", *args])


def _as_tfrecord(directory):
  """Turns a data set's files into TFRecord."""
  for path in directory.glob("*.array_record-*"):
    new = path.name.replace("array_record", "tfrecord")
    writer = record_writer.RecordWriter(str(path.with_name(new)))
    for x in array_record_module.ArrayRecordReader(str(path)).read_all():
      writer.write(x)
    writer.close()
    path.unlink()
  path = directory / "dataset_info.json"
  info = json.loads(path.read_text())
  path.write_text(json.dumps({**info, "fileFormat": "tfrecord"}))


@pytest.fixture
def old(tmp_path):
  testing.imagenet2012(str(tmp_path / "old"), train=7, validation=3)
  return tmp_path / "old" / "imagenet2012" / "5.1.0"


def _examples(data_dir, split):
  data = {"name": "imagenet2012", "split": split, "data_dir": str(data_dir)}
  source = sources.make(data)
  return source.read(range(len(source)))


def test_tfrecord_is_copied(old, tmp_path, capsys):
  splits = ("train", "validation")
  expected = [_examples(tmp_path / "old", split) for split in splits]
  _as_tfrecord(old)
  with pytest.raises(ValueError, match=f"source tfrecord:{old} --data_dir"):
    _examples(tmp_path / "old", "train")
  new = tmp_path / "new"
  args = [f"--source=tfrecord:{old}", "--verify", f"--data_dir={new}"]
  prepare_data.main(args)
  copy = new / "imagenet2012" / "5.1.0"
  printed = capsys.readouterr().out
  assert printed == f"Prepared {copy}.\nVerified 10 examples in 4 files.\n"
  assert [_examples(new, split) for split in splits] == expected
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
  rows = _open(photos, "train")[1].read([0, 9])
  shapes = {ops_image.decode_image(x["image"]).shape for x in rows}
  assert shapes == {(4, 4, 3)}  # of 8 x 9
  with pytest.raises(SystemExit, match="quality must be 1 to 100"):
    _run(photos, "--max_side=4", "--quality=900")
  (photos / "photos/train/class0/0.jpg").write_bytes(b"\xff\xd8\xff")
  with pytest.raises(SystemExit, match=r"class0/0.jpg'\]: not a whole image"):
    _run(photos, "--max_side=4", data_dir="damaged")
  (photos / "photos/train/class0").rename(photos / "photos/train/a\nb")
  with pytest.raises(SystemExit, match=r"name 'a\\nb'. TFDS .* rename it"):
    _run(photos, data_dir="lines")
  args = ["--source=arrays:digits", "--name=x", f"--data_dir={photos}"]
  with pytest.raises(
    SystemExit, match="'image' is ndarray, expected the bytes"
  ):
    prepare_data.main(args)


@pytest.mark.parametrize(
  ("args", "message"),
  [
    (["--splits=train[:9]", "--name=x"], "expected names such as train,val"),
    (
      ["--source=array_record:x", "--version=2.0.0"],
      "--version: array_record:x",
    ),
    (["--name=x", "--shard_size=0"], "--shard_size: expected 1 or more"),
    (["--name=a/b"], "--name=a/b: expected one word"),
    (["--name=x", "--splits=all,train"], "`all` would be written as a second"),
    (["--name=x", "--version=1.0"], "--version=1.0: expected three numbers"),
  ],
)
def test_arguments_that_would_be_lost(args, message, capsys):
  with pytest.raises(SystemExit):
    prepare_data.main(["--source=folder:x", *args])
  assert message in capsys.readouterr().err


def test_tfrecord_errors(old, tmp_path):
  def check_fails(folder, message, data_dir="new"):
    source, out = f"--source=tfrecord:{folder}", tmp_path / data_dir
    with pytest.raises(SystemExit, match=message):
      prepare_data.main([source, f"--data_dir={out}", "--verify"])

  check_fails(old, "is array_record, not tfrecord")
  _as_tfrecord(old)
  check_fails(old, r"holds another data set.*give another --data_dir", "old")
  (tmp_path / "dataset_info.json").write_text("[]")
  check_fails(tmp_path, r"info.json: it must be of type dict")
  (tmp_path / "dataset_info.json").unlink()
  check_fails(tmp_path, r"No such file.*/dataset_info.json")
  path = next(old.glob("*train.tfrecord-00001*"))
  content = path.read_bytes()
  for length in (7, 40, len(content) - 3):
    path.write_bytes(content[:length])
    check_fails(old, "damaged, cut off")
  flipped = bytearray(content)
  for place, message in ((3, "damaged, cut off"), (40, "record 0, from 0, is")):
    flipped[place] ^= 4
    path.write_bytes(flipped)
    check_fails(old, message)
    flipped[place] ^= 4
  path.write_bytes(content[: struct.unpack("<Q", content[:8])[0] + 16])
  check_fails(old, r"tfrecord:.*00001-of.* has 1 records, not 3 as its descri")


def test_captions_and_a_tokenizer_for_them(tmp_path, capsys):
  pytest.importorskip("sentencepiece")
  jpeg = testing.jpeg(np.random.default_rng(0), 8, 8)
  (tmp_path / "a.jpg").write_bytes(jpeg)
  words = ["Small latin letter", "latin sign", "capital letter with dot"]
  captions = [words[i:] + words[:i] for i in range(3)]
  rows = [{"path": "a.jpg", "split": "train", "caption": x} for x in captions]
  pairs = tmp_path / "pairs.jsonl"
  pairs.write_text("\n".join(map(json.dumps, rows)))
  data_dir = str(tmp_path / "tfds")
  args = ["--source", f"manifest:{pairs}", "--name", "pairs", "--vocab_size=40"]
  with pytest.raises(SystemExit, match="nknown text_key 'title'"):
    prepare_data.main([*args, "--data_dir", data_dir, "--text_key=title"])
  assert not os.path.exists(data_dir)
  with pytest.raises(SystemExit, match=r"vocab_size=5 does not work: .*5 vs"):
    prepare_data.main([*args, "--data_dir", data_dir, "--vocab_size=5"])
  prepare_data.main([*args, "--data_dir", data_dir])
  assert "tokenizer.model" in capsys.readouterr().out
  data = {"name": "pairs", "split": "train", "data_dir": data_dir}
  source = sources.make(data)
  texts = [[x.decode() for x in source[i]["text"]] for i in range(3)]
  assert sorted(texts) == sorted(captions)
  model = f"{data_dir}/pairs/1.0.0/tokenizer.model"
  spec = f'choice(key="text")|tokenize(40, model="{model}")|keep("text")'
  batch = pipeline.evaluation(data, spec, batch_size=3)
  assert batch.vocabularies["text"].size <= 40
  assert len(batch.vocabularies["text"].sha256) == 64
  [rows] = batch
  assert rows["text"].shape == (3, 40)
  assert (rows["text"] > 1).any(axis=1).all()
  assert (rows["text"] == 1).sum() == 3  # one end for each
