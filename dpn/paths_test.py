"""Names in files stay within a folder."""

import os

import pytest

from dpn import paths


def test_names_stay_within():
  assert paths.join("a", "b", "c/d") == "a/b/c/d"
  for name in ("", "..", "../b", "b/../../c", "/b", "b//c", ".", "b\0"):
    with pytest.raises(ValueError, match="leads out of a, or is no name"):
      paths.join("a", name)


def test_devices_are_refused(tmp_path):
  assert paths.check_regular(str(tmp_path)) == str(tmp_path)
  with pytest.raises(ValueError, match="/dev/null is neither a file nor a fo"):
    paths.open_regular("/dev/null")


def test_sparse_files_are_not_read(tmp_path):
  (tmp_path / "x").write_bytes(b"ab")
  assert paths.read(tmp_path / "x") == b"ab"
  os.truncate(tmp_path / "x", 2**40)
  with pytest.raises(ValueError, match="x has 1,099,511,627,776 bytes, exp"):
    paths.read(tmp_path / "x")
