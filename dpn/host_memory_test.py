"""Programs that ask for huge pages."""

import os
import subprocess
import sys

import pytest

from dpn import host_memory

PROGRAM = """
import os, sys
from dpn import host_memory
print("begins", flush=True)
host_memory.use_huge_pages()
print(os.environ["GLIBC_TUNABLES"], *sys.argv[1:])
"""


@pytest.mark.parametrize(
  ("before", "after", "starts"),
  [
    ("", "glibc.malloc.hugetlb=1", 2),
    ("glibc.malloc.arena_max=2", "{}:glibc.malloc.hugetlb=1", 2),
    ("glibc.malloc.hugetlb=0", "{}", 1),
  ],
)
def test_a_program_starts_anew_once(before, after, starts):
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM, "--flag", "two words"],
    env=os.environ | {"GLIBC_TUNABLES": before},
    capture_output=True,
    text=True,
    check=True,
  )
  *begins, last = done.stdout.splitlines()
  assert begins == ["begins"] * starts
  assert last == f"{after.format(before)} --flag two words"


def test_not_without_glibc(monkeypatch):
  started = []
  monkeypatch.setenv("GLIBC_TUNABLES", "")
  monkeypatch.setattr(os, "execv", lambda *args: started.append(args))
  monkeypatch.setattr(os, "confstr", lambda name: "musl 1.2")
  host_memory.use_huge_pages()
  assert not started
