"""Lines of source in each folder, against the budget in CONTRIBUTING.md."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
SUFFIXES = {".css", ".html", ".j2", ".py", ".sh"}


def _budget() -> dict[str, int]:
  text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
  rows = re.findall(r"^\| ([\w/]+) \| (\d+) \|$", text, re.MULTILINE)
  return {folder: int(lines) for folder, lines in rows}


def _lines(folders) -> dict[str, int]:
  """Returns the lines in each folder; a file counts in the deepest alone."""
  count = dict.fromkeys(folders, 0)
  tops = sorted({folder.partition("/")[0] for folder in folders} - {"tests"})
  for path in (p for top in tops for p in (ROOT / top).rglob("*")):
    name = path.relative_to(ROOT).as_posix()
    if path.suffix not in SUFFIXES or name.startswith("configs/studies/"):
      continue
    folder = max((f for f in folders if name.startswith(f"{f}/")), key=len)
    if path.stem == "conftest" or path.stem.endswith("_test"):
      folder = "tests"
    count[folder] += len(path.read_text("utf-8").splitlines())
  return count


def test_no_folder_is_above_its_budget(capfd):
  budget = _budget()
  assert {"configs", "dpn", "dpn/models", "tests", "trainers"} <= set(budget)
  lines = _lines(budget)
  with capfd.disabled():
    rows = [f"{f} {n:,} of {budget[f]:,}" for f, n in lines.items()]
    print("\nlines:", " · ".join(rows), file=sys.stderr)
  above = {f: n for f, n in lines.items() if n > budget[f]}
  assert above == {}, "Make them smaller, or raise the budget and say why."
