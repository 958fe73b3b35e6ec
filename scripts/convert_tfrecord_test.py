"""Converting: the same records in the same order."""

import json
import os
import struct

import pytest
from array_record.python import array_record_module

from input_pipeline import sources, testing
from scripts import convert_tfrecord


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


def _rows(data_dir, split):
  source = sources.make(
    {"name": "imagenet2012", "split": split, "data_dir": str(data_dir)}
  )
  return source.read(range(len(source)))


def test_same_records(old, tmp_path, capsys):
  expected = {s: _rows(tmp_path / "old", s) for s in ("train", "validation")}
  _as_tfrecord(old)
  with pytest.raises(ValueError, match=f"convert_tfrecord {old} --data_dir"):
    _rows(tmp_path / "old", "train")
  args = [str(old), "--data_dir", str(tmp_path / "new")]
  convert_tfrecord.main(args)
  copy = tmp_path / "new" / "imagenet2012" / "5.1.0"
  assert f"Wrote {copy}" in capsys.readouterr().out
  for split, rows in expected.items():
    assert _rows(tmp_path / "new", split) == rows
  # Again: nothing is left to write.
  times = {f: f.stat().st_mtime_ns for f in copy.glob("*array_record*")}
  assert len(times) == 4
  convert_tfrecord.main(args)
  assert {f: f.stat().st_mtime_ns for f in times} == times


def test_errors(old, tmp_path):
  run = lambda *args: convert_tfrecord.main([str(a) for a in args])
  with pytest.raises(SystemExit, match="is array_record, not tfrecord"):
    run(old, "--data_dir", tmp_path / "new")
  _as_tfrecord(old)
  with pytest.raises(SystemExit, match="must be another one"):
    run(old, "--data_dir", tmp_path / "old")
  with pytest.raises(SystemExit, match=r"no dataset_info.json. Expected the"):
    run(tmp_path, "--data_dir", tmp_path / "new")
  path = next(old.glob("*train.tfrecord-00001*"))
  content = path.read_bytes()
  for length in (7, 40, len(content) - 3):
    path.write_bytes(content[:length])
    with pytest.raises(SystemExit, match="is cut off"):
      run(old, "--data_dir", tmp_path / "new")
  size = struct.unpack("<Q", content[:8])[0] + 16
  path.write_bytes(content[:size])
  with pytest.raises(SystemExit, match=r"has 1 records, .* says 3"):
    run(old, "--data_dir", tmp_path / "new")
