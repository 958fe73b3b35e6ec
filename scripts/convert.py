"""Writes a checkpoint in the layout of another library.

  python -m scripts.convert runs/dpn dpn.safetensors --to timm

SRC is a run's folder, one of its checkpoints (…/checkpoints/1000), or a
parameter file of this code base, big_vision, timm or Hugging Face: .npz,
.safetensors, or a folder with config.json and model.safetensors. What it is, is
recognized.

DST is an .npz file for big_vision, else a .safetensors file; for timm and hf a
name without suffix makes a folder with a config.json as well. It must not exist
yet.

Names, and what no library but this has a place for: docs/checkpoints.md.
"""

import argparse
import ast
import contextlib
import sys
from collections.abc import Mapping, Sequence

from dpn import errors
from dpn.models import vit
from dpn.weights import edit, export, vit_params


def convert(
  source: str,
  target: str,
  to: str,
  *,
  resolution: int | None = None,
  patch_size: int | None = None,
  fold_pixels: bool = False,
  no_embed_class: bool = False,
  options: Mapping[str, object] | None = None,
) -> list[str]:
  """Writes `target` and returns what a person should know about it.

  Args:
    source: see the module.
    target: likewise.
    to: key of `export.SUFFIXES`.
    resolution: pixels of a side of the images; position embeddings are resized.
    patch_size: pixels of a side of a patch; the embedding is resized.
    fold_pixels: change the embedding so that the model takes pixels in [-1, 1].
    no_embed_class: for timm, no position for the class token.
    options: of `vit.Model`, which win over what is found in the source.

  Raises:
    ValueError, OSError: it cannot be read, converted or written.
  """
  export.check_target(target, to)
  for name, px in (("resolution", resolution), ("patch_size", patch_size)):
    if px is not None and px < 1:
      raise ValueError(f"--{name} must be at least one pixel, got {px}.")
  model = vit_params.read(source, options or {})
  if fold_pixels:
    model = edit.fold_pixels(model)
  if patch_size or resolution:
    model = edit.resize(model, resolution, patch_size)
  exported = export.export(model, to, no_embed_class=no_embed_class)
  export.write(target, exported)
  return [*model.notes, *exported.notes, f"Wrote {target}."]


def parse_options(items: Sequence[str]) -> dict[str, object]:
  """Returns {"gelu": "exact", …} of "gelu=exact", "norm_kw.eps=1e-5" and such.

  Raises:
    ValueError: on an unknown option.
  """
  options = {}
  known = vit.options(vit.Model())
  for item in items:
    key, equals, value = item.partition("=")
    if not equals:
      raise ValueError(f"--set: expected OPTION=VALUE, got {item!r}.")
    key, dot, inner = key.partition(".")
    if key not in known:
      raise ValueError("--set: " + errors.unknown("model option", key, known))
    with contextlib.suppress(ValueError, SyntaxError):  # else it is text
      value = ast.literal_eval(value)
    if dot:
      options.setdefault(key, {})[inner] = value
    else:
      options[key] = value
  return options


def main(argv: Sequence[str] | None = None):
  """Runs the command line; see the module."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add, px = parser.add_argument, {"type": int, "metavar": "PX"}
  add("source", metavar="SRC")
  add("target", metavar="DST")
  add("--to", required=True, choices=list(export.SUFFIXES))
  add("--resolution", **px, help="resize position embeddings for such images")
  add("--patch_size", **px, help="resize the patch embedding (2212.08013)")
  help_ = "fold mean and std of the pixels into the patch embedding"
  add("--fold_pixels", action="store_true", help=help_)
  help_ = "timm: no position for the class token (its no_embed_class=True)"
  add("--no_embed_class", action="store_true", help=help_)
  help_ = "model options that the source does not tell: num_heads=3"
  add("--set", action="append", default=[], metavar="OPTION=VALUE", help=help_)
  args = vars(parser.parse_args(argv))
  try:
    options = parse_options(args.pop("set"))
    notes = convert(**args, options=options)
  except (ValueError, OSError) as error:
    sys.exit(f"Error: {error}")
  print("\n".join(notes))


if __name__ == "__main__":
  main()
