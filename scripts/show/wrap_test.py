"""Lines that fit, measured by matplotlib."""

import itertools

import pytest
from matplotlib import textpath

from dpn.scripts.show import wrap

TEXTS = (
  "a photo of a very small and somewhat blurry dog in the grass by the lake",
  "Donaudampfschifffahrtsgesellschaftskapitaensmuetzenabzeichen",
  "WWWWWWWWW iiiiiiiiiiiiiiiiiiiiiiiiiiiii WWWWWWWWWWWWW " * 3,
)


@pytest.mark.parametrize("text", TEXTS)
def test_no_line_is_too_wide_and_none_too_short(text):
  lines = wrap.wrap(text, 1.0, 7, 99).split("\n")
  assert "".join(lines).replace(" ", "") == text.replace(" ", "")
  for line in lines:
    path = textpath.TextPath((0, 0), line, size=7)
    assert path.get_extents().width <= 72
  # No two could be one.
  for a, b in itertools.pairwise(lines):
    path = textpath.TextPath((0, 0), f"{a} {b}", size=7)
    assert path.get_extents().width > 70


def test_what_is_cut_off_and_what_cannot_be_drawn():
  assert wrap.wrap("one two", 9, 7, 1) == "one two"
  assert wrap.wrap("  a\n\tb ", 9, 7, 1) == "a b"
  assert wrap.wrap("", 9, 7, 3) == ""
  cut = wrap.wrap(TEXTS[0], 1.0, 7, 2)
  assert cut.count("\n") == 1
  assert cut.endswith("…")
  assert wrap.wrap("犬 dog", 9, 7, 1) == "\ufffd dog"
