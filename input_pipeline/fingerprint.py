"""Records what decides the pixels that a model sees, to compare it later.

Loaders that do the same on paper decode, crop and resize differently, and that
changes accuracy. The extras `fast` and `restart` change no pixel, so they are
not recorded.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import cv2

from dpn import trees
from dpn.input_pipeline import pp
from dpn.input_pipeline.pp import parser

# How `ops_image.decode_image` decodes.
_COLOUR = "RGB, interpolated chroma, accurate DCT, EXIF orientation ignored"
_SEEN = (
  "Others saw accuracy change by 1 to 1.5 points with the kernel that resizes "
  "(github.com/NVIDIA/DALI/issues/1111), by 2 between resizing in OpenCV and "
  "in DALI (issues/5260 there) and by 2 between FFCV's loader and PyTorch's "
  "(github.com/libffcv/ffcv/issues/352)."
)


def of_config(config: Mapping[str, Any]) -> dict[str, str | list[str]]:
  """Returns how a config's images are read, as JSON can hold it.

  `train` and `eval` list the ops that decode, crop, resize or pad, in full.
  """
  sections = {"train": config.get("input"), "eval": config.get("evals")}
  found = {"decoder": decoder(), "colour": _COLOUR}
  for key, section in sections.items():
    geometries = {pp.make(spec).geometry for spec in _specs(section or {})}
    found[key] = sorted(geometries - {""})
  return found


def decoder() -> str:
  """Returns the library that decodes, and the JPEG library inside it."""
  found = re.search(r"^ *JPEG: *(.*)$", cv2.getBuildInformation(), re.MULTILINE)
  inside = found[1].rpartition("/")[2].strip() if found else "unknown JPEGs"
  return f"OpenCV {cv2.__version__}, {inside}"


def _specs(section: Mapping[str, Any]) -> Iterator[str]:
  """Yields the preprocessing strings under pp, pp_fn, …, at any depth."""
  for key, value in section.items():
    if hasattr(value, "items"):  # a ConfigDict is not a Mapping
      yield from _specs(value)
    elif re.fullmatch("pp(_.*)?", key):
      yield from [value] if isinstance(value, str) else value or ()


def differences(
  recorded: Mapping[str, Any], here: Mapping[str, Any]
) -> list[str]:
  """Returns where evaluation differs from what was recorded, in words.

  Cropping and resizing are compared with the recorded evaluation, if there was
  any, and not with training, which crops at random.
  """
  found = [
    f"{key}: {recorded[key]} there, {here[key]} here"
    for key in ("decoder", "colour")
    if key in recorded and recorded[key] != here[key]
  ]
  there = [_written_out(spec) for spec in recorded.get("eval") or ()]
  other = [spec for spec in here["eval"] if there and spec not in there]
  return found + [f"eval: {' or '.join(there)} there, {x} here" for x in other]


def _written_out(spec: str) -> str:
  """Returns a recorded string with the arguments its ops have gained since."""
  try:
    return "|".join(map(str, parser.parse(spec, pp.OPS)))
  except ValueError:  # an op of another version, or of a module not here
    return spec


def compare(where: str, recorded: Mapping[str, Any], here: Mapping[str, Any]):
  """Warns where evaluation differs from the record, once per message."""
  if found := differences(recorded, here):
    lines = [f"The loader of {where} was another one:", *found]
    trees.warn_once("\n  ".join(lines) + f"\n{_SEEN}")
