"""Files are there as a whole, or as they were before."""

import json

import pytest

from dpn import atomic


def test_files_are_replaced_whole(tmp_path, monkeypatch):
  path = tmp_path / "done.json"
  (tmp_path / "done.json.partial").symlink_to(tmp_path / "elsewhere")
  atomic.write_json(str(path), {"a": [1]})  # not there: only `path` is in it
  assert json.loads(path.read_text()) == {"a": [1]}
  assert path.read_text().endswith("\n")

  def fail(*_):
    raise OSError("No space left on device")

  monkeypatch.setattr(atomic.os, "fsync", fail)
  with pytest.raises(OSError, match=r"done.json: No space left .*Free some"):
    atomic.write_json(str(path), {"b": [2]})
  assert json.loads(path.read_text()) == {"a": [1]}
  assert [*tmp_path.iterdir()] == [path]
