"""What is drawn, and what is held out."""

import numpy as np

from dpn.input_pipeline import sources
from dpn.input_pipeline.sources import glyphs


def _open(split):
  return sources.make({"name": "arrays:glyphs", "split": split})


def test_names_and_fonts_are_held_out():
  train, names, fonts = map(_open, glyphs.SPLITS)
  old, new = train.class_names("label"), names.class_names("label")
  assert len(train) == 10 * len(old) > 10_000
  assert len(names) == 10 * len(new) > 1000
  assert len(fonts) == len(old)
  assert fonts.class_names("label") == old
  assert not set(old) & set(new)
  known = {word for name in old for word in name.split()}
  assert all(word in known for name in new for word in name.split())
  assert "greek capital letter sigma" in [*old, *new]


def test_examples():
  train, fonts = _open("train"), _open("new_fonts")
  label = train.class_names("label").index("latin capital letter l")
  shown = [train[10 * label + i] for i in range(10)]
  assert {x["text"] for x in shown} == {"latin capital letter l"}
  assert {int(x["label"]) for x in shown} == {label}
  plain = shown[0]["image"][..., 0]
  assert plain.shape == (32, 32)
  assert plain.dtype == np.uint8
  ink = plain > 128
  # An L: a long stem on the left, a foot as wide as the letter below.
  rows, cols = np.nonzero(ink)
  assert ink[:, cols.min() + 1].sum() > 12
  assert ink[rows.max()].sum() > 7
  assert ink[rows.min() : rows.max() - 3, cols.max()].sum() == 0
  images = {x["image"].tobytes() for x in [*shown, fonts[label]]}
  assert len(images) == 11
