"""Letters and symbols, drawn from the DejaVu fonts that matplotlib ships.

The caption of a glyph is its Unicode name: "latin small letter a with grave".
Names are made of words, so an unseen one can be understood. Every eighth name
is held out if its words occur in others; so are two fonts. Splits:

- `train`: the other names in the other ten fonts.
- `new_names`: held-out names, in the fonts of `train`.
- `new_fonts`: names of `train`, each once, in a held-out font.

`label` numbers the split's names, which `train` and `new_fonts` share. The
licence of DejaVu permits rendering and embedding.
"""

import collections
import functools
import itertools
import os
import unicodedata
import zlib

import matplotlib
import numpy as np
from matplotlib import ft2font
from PIL import Image, ImageDraw, ImageFont

SIDE = 32  # pixels
FONTS = tuple(
  f"DejaVu{family}{style}"
  for family, styles in {
    "Sans": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "SansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "Serif": ("", "-Bold", "-Italic", "-BoldItalic"),
  }.items()
  for style in styles
)
NEW_FONTS = ("DejaVuSansMono-Oblique", "DejaVuSerif-Italic")
SPLITS = ("train", "new_names", "new_fonts")
_SIZE = 22  # points; larger glyphs are cut off
_MIN_NAMES = 4  # in which a word must occur
_HOLD_OUT = 8  # one name in eight


def split(name: str) -> tuple[dict[str, np.ndarray], list[str]]:
  """Returns the columns image, text and label, and the names of the labels."""
  kept, held_out = _names()
  names = sorted(held_out if name == "new_names" else kept)
  by_name = held_out if name == "new_names" else kept
  seen = [font for font in FONTS if font not in NEW_FONTS]
  columns = collections.defaultdict(list)
  for label, text in enumerate(names):
    fonts = seen
    if name == "new_fonts":  # the two in turn
      fonts = [NEW_FONTS[label % 2]]
    for font in fonts:
      columns["image"].append(_draw(font, by_name[text]))
      columns["text"].append(text)
      columns["label"].append(label)
  return {key: np.array(values) for key, values in columns.items()}, names


@functools.cache
def _names() -> tuple[dict[str, str], dict[str, str]]:
  """Returns the characters by name, to train on and held out."""
  common = set.intersection(*(_characters(font) for font in FONTS))
  names = {
    unicodedata.name(character).lower(): character
    for character in sorted(common)
    if unicodedata.category(character)[0] in "LSNP"
  }
  words = lambda names: collections.Counter(
    itertools.chain(*(set(name.split()) for name in names))
  )
  frequent = words(names)
  names = {
    name: character
    for name, character in names.items()
    if min(frequent[word] for word in name.split()) >= _MIN_NAMES
  }
  chosen = {n for n in names if zlib.crc32(n.encode()) % _HOLD_OUT == 0}
  known = words(names.keys() - chosen)
  held_out = {n for n in chosen if all(known[word] for word in n.split())}
  return tuple(
    {name: names[name] for name in group}
    for group in (names.keys() - held_out, held_out)
  )


def _path(font):
  folder = os.path.join(matplotlib.get_data_path(), "fonts", "ttf")
  return os.path.join(folder, f"{font}.ttf")


def _characters(font):
  return set(map(chr, ft2font.FT2Font(_path(font)).get_charmap()))


@functools.cache
def _font(name):
  layout = ImageFont.Layout.BASIC  # the other is not installed everywhere
  return ImageFont.truetype(_path(name), _SIZE, layout_engine=layout)


def _draw(font: str, character: str) -> np.ndarray:
  """Returns a glyph, white on black, (rows, cols, 1) uint8."""
  image = Image.new("L", (SIDE, SIDE))
  middle = (SIDE // 2, SIDE // 2)
  ImageDraw.Draw(image).text(
    middle, character, 255, font=_font(font), anchor="mm"
  )
  return np.asarray(image)[..., None]
