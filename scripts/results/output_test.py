"""What cannot be written is said in one line."""

import subprocess
import sys

import pytest

from dpn.scripts.results import output
from dpn.trainers import cli


def test_writes_into_new_folders(tmp_path):
  output.write(str(tmp_path / "a" / "b.txt"), "ä\udcff")  # no UTF-8
  assert (tmp_path / "a" / "b.txt").read_text("utf-8") == "ä\\udcff"


def test_says_what_is_in_the_way(tmp_path):
  (tmp_path / "file").touch()
  with pytest.raises(OSError, match=r"Cannot write .*file: File exists"):
    output.write(str(tmp_path / "file" / "x.md"), "")
  with pytest.raises(OSError, match=r"Cannot write .*: Is a directory"):
    output.write(str(tmp_path), "")


def test_control_characters_do_not_reach_the_terminal(capsys):
  output.say("a\x1b[2Jb\tc\rä\u202e\udcff\n")
  assert capsys.readouterr().out == "a\\x1b[2Jb\\tc\\rä\\u202e\\udcff\n\n"
  message = pytest.raises(SystemExit, match=r"^Error: \\x07$")
  with message, output.errors_in_a_line():
    raise ValueError("\a")
  with pytest.raises(SystemExit, match=r"^Error: x+ … x{4000}$"):
    cli.fail("x" * 10**6)


def test_a_reader_that_goes_away_is_no_error(tmp_path):
  code = f"""
from dpn.scripts.results import output
with output.errors_in_a_line(), output.ensure_folder({str(tmp_path)!r}):
  for _ in range(10_000):
    output.say("x" * 100)
"""
  command = [sys.executable, "-c", code]
  kw = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
  with subprocess.Popen(command, **kw) as process:
    process.stdout.close()
    assert process.stderr.read() == b""
  assert process.returncode == 1
