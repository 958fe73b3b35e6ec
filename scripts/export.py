"""Writes a checkpoint as StableHLO, which needs none of this code to run.

  python -m scripts.export runs/dpn dpn.stablehlo
  python -m scripts.export timm/vit_base_patch16_224.augreg_in21k \
    b16.stablehlo --output pre_logits

SRC is any checkpoint, see scripts.convert. The program holds the parameters and
takes images, prepared as OUT.json tells, in batches of any size; it runs on
CPUs, NVIDIA GPUs and TPUs. To write and read it, jax.export needs flatbuffers
(pip install flatbuffers):

  jax.export.deserialize(open("dpn.stablehlo", "rb").read()).call(images)
"""

import dataclasses
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dpn import atomic, errors, trees
from dpn.models import vit
from dpn.scripts import convert
from dpn.scripts.results import output

PLATFORMS = ("cpu", "cuda", "tpu")
_KNOWN = (*PLATFORMS, "rocm")
_MOST_BYTES = 2**31  # that jax.export can serialize


def export(
  source: str,
  name: str = "logits",
  platforms: Sequence[str] = PLATFORMS,
  arch: str | None = None,
  options: Mapping[str, Any] | None = None,
) -> tuple[bytes, dict[str, Any]]:
  """Returns a program of images (batch, rows, cols, channels), and metadata.

  Args:
    source: any path that `vit.from_pretrained` takes.
    name: which of `vit.Model`'s intermediates the program returns.
    platforms: that the program can run on.
    arch: see `vit.from_pretrained`.
    options: of the model, likewise.

  Raises:
    ValueError, OSError: the checkpoint cannot be read; or no intermediate has
      this name; or a platform or the images' size is unknown.
  """
  for platform in platforms:
    errors.check_known("platform", platform, _KNOWN)
  if not importlib.util.find_spec("flatbuffers"):
    raise ValueError("jax.export writes with flatbuffers: pip install it.")
  options = dict(options or {})
  if options.setdefault("attn_impl", "xla") != "xla":
    raise ValueError("attn_impl: expected xla, which runs on every platform.")
  model, variables, preprocess = vit.from_pretrained(
    source, arch=arch, **options
  )
  size = sum(x.nbytes for x in jax.tree.leaves(variables))
  if size >= _MOST_BYTES:
    raise ValueError(
      f"{source!r} has {size / 2**30:.1f} GiB of parameters; a program with "
      "them inside can have 2. Export jax.jit(model.apply) with the parameters "
      "as an argument."
    )
  if None in preprocess.shape:
    raise ValueError(
      f"{source!r} does not tell the size of its images, {preprocess.shape}."
    )
  [batch] = jax.export.symbolic_shape("batch")
  image = jax.ShapeDtypeStruct((batch, *preprocess.shape), np.float32)

  def apply(image):
    return trees.flatten(model.apply(variables, image)[1])

  shapes = jax.eval_shape(apply, image)
  errors.check_known("output", name, shapes)
  exported = jax.export.export(
    jax.jit(lambda image: apply(image)[name]), platforms=platforms
  )(image)
  about = {
    "preprocessing": dataclasses.asdict(preprocess),
    "input": ["batch", *preprocess.shape],
    "output": {name: [str(n) for n in shapes[name].shape]},
    "platforms": list(platforms),
    "model": vit.options(model),
  }
  return bytes(exported.serialize()), about


def main(argv: Sequence[str] | None = None):
  """Runs the command line; see the module."""
  parser = output.parser(__doc__)
  add = parser.add_argument
  add("source", metavar="SRC")
  add("target", metavar="OUT")
  help_ = "what it returns: logits, pre_logits, encoded, encoder/block03/+mlp"
  add("--output", default="logits", metavar="NAME", help=help_)
  add("--platforms", default=",".join(PLATFORMS))
  help_ = "model options that the source does not tell: num_heads=3"
  add("--set", action="append", default=[], metavar="OPTION=VALUE", help=help_)
  help_ = "timm's name of the model, where the source does not tell it"
  add("--arch", metavar="NAME", help=help_)
  output.add_trust(parser)
  args = parser.parse_args(argv)
  with output.errors_in_a_line():
    options = convert.parse_options(args.set)
    platforms = args.platforms.split(",")
    program, about = export(
      args.source, args.output, platforms, args.arch, options
    )
    with output.ensure_folder(os.path.dirname(args.target)):
      atomic.write(args.target, program)
    output.write(f"{args.target}.json", json.dumps(about, indent=2) + "\n")
    output.say(f"Wrote {args.target}, {len(program):,} bytes.")


if __name__ == "__main__":
  main()
