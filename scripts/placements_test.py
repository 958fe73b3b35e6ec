"""The drawings in docs/methods.md are those of the code."""

import pathlib

import pytest

from dpn.models import placement
from dpn.scripts import placements

DOCS = pathlib.Path(__file__).parents[1] / "docs/methods.md"


def test_docs_are_not_stale(tmp_path):
  copy = tmp_path / "methods.md"
  copy.write_text(DOCS.read_text("utf-8"), "utf-8")
  placements.main(["-o", str(copy)])
  assert copy.read_text("utf-8") == DOCS.read_text("utf-8"), (
    "python -m scripts.placements -o docs/methods.md"
  )


def test_a_page_without_the_marks(tmp_path):
  page = tmp_path / "page.md"
  page.write_text("<!-- placements -->\nhello")
  with pytest.raises(
    SystemExit, match="must hold '<!-- placements -->' and th"
  ):
    placements.main(["-o", str(page)])
  assert page.read_text() == "<!-- placements -->\nhello"
  with pytest.raises(SystemExit, match="No such file"):
    placements.main(["-o", str(tmp_path / "none.md")])


def test_drawings():
  draw = lambda **kw: placements.draw(placement.Placement(**kw))
  assert draw() == "N → SA → + x │ N → MLP → + x"
  post = draw(sa="post", mlp="post", post="stream", stream_gain=2.0)
  assert post == "SA → + 2 x → N │ MLP → + 2 x → N"
