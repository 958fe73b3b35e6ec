"""A Vision Transformer with its parameters, ready to use, from any checkpoint.

Call it as `dpn.models.vit.from_pretrained`.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from absl import logging

from dpn import damage, errors, schema, stems
from dpn.models import stem, vit
from dpn.weights import (
  big_vision,
  files,
  positions,
  preprocessing,
  resolution,
  vit_params,
)

# Options that may differ from the file's: they do not change the function that
# its parameters compute, or only add and remove parameters.
CHANGEABLE = (
  *("num_classes", "rep_size", "stem_ln"),
  *vit.Config.TRAINING_ONLY,
)
# Parameters that fit only one size of images.
_POSITIONS = r"(^|/)pos_embedding$|/rel_posemb/table$"


class Pretrained(NamedTuple):
  """What `vit.from_pretrained` returns.

  Attributes:
    model: `model.apply(variables, images)` → `(logits, out)`, see `vit.Model`.
    variables: on the default device, {"params": …} and, for norms with running
      statistics, {"batch_stats": …}.
    preprocess: what to do to images first.
  """

  model: nn.Module
  variables: dict[str, Any]
  preprocess: preprocessing.Preprocess


def load(path: str, arch: str | None, options: Mapping[str, Any]) -> Pretrained:
  """Returns the model at a path; see `vit.from_pretrained`."""
  hints = {"num_classes": int | None, **vit.HINTS}
  for name, value in options.items():
    errors.check_known("model option", name, hints)
    schema.check("from_pretrained", name, value, hints[name])
  with damage.reading(path):
    return _load(path, arch, options)


def _load(path, arch, options):
  told = {k: v for k, v in options.items() if k not in CHANGEABLE}
  file = vit_params.read(path, told, arch)
  model = vit.Model(**{**file.options, **stems.spelled(options)})
  _check_stem(path, file, model.config)
  size = _size(file)
  preprocess = preprocessing.make(file.pp, file.pixels, size, file.patch)
  preprocess = _of_whole_patches(path, file, preprocess)
  if size and None not in preprocess.shape:
    file = _fit_positions(file, preprocess)
  if file.assumed:
    logging.warning(
      "%r does not say everything about its model. Assumed: %s. State it: "
      "from_pretrained(path, gelu=…), or, of timm's models, arch=….",
      *(path, ", ".join(file.assumed)),
    )
  if preprocess.assumed:
    logging.warning(
      "%r does not say how images are prepared. Assumed: %s.",
      *(path, ", ".join(preprocess.assumed)),
    )
  variables = files.unflatten(_fitted(path, file, model))
  return Pretrained(model, jax.device_put(variables), preprocess)


def _check_stem(path, file, config):
  """Raises ValueError if the file's norms or kernels would act differently."""
  name, kind = file.options["stem_ln"], file.options["stem"]
  old, new = stem.get_ln(name), stem.get_ln(config.stem_ln)
  starts_equal = "standardize", "layernorm"
  pairs = (old.ln0, new.ln0), (old.ln1, new.ln1)
  alike = kind == config.stem or {kind, config.stem} <= {*stem.EMBEDS_PATCHES}
  alike &= new.whiten or not old.whiten or new.ln0 is None
  alike &= all(
    a == b or None in (a, b) or (a, b) == starts_equal for a, b in pairs
  )
  alike &= old.ln1_after_posemb == new.ln1_after_posemb or None in pairs[1]
  if not alike:
    raise ValueError(
      f"{path!r} is of stem_ln={name!r} with stem={kind!r}, whose parameters "
      f"do not fit stem_ln={config.stem_ln!r} with stem={config.stem!r}. Leave "
      "stem_ln out."
    )


def _of_whole_patches(path, file, preprocess):
  """Returns it, cropping the pixels that other libraries' convolutions skip."""
  *size, channels = preprocess.shape
  if file.options["stem"] not in stem.EMBEDS_PATCHES or None in size:
    return preprocess
  whole = tuple(x - x % p for x, p in zip(size, file.patch, strict=False))
  if whole == tuple(size) or not all(whole):
    return preprocess
  pp = f"{preprocess.pp}|top_left_crop({whole})"
  logging.warning("Only %d × %d pixels fit the patches of %r.", *whole, path)
  return dataclasses.replace(preprocess, pp=pp, shape=(*whole, channels))


def _fit_positions(file, preprocess):
  """Returns a model with positions for images of its own preprocessing."""
  if file.options["stem"] not in stem.STEMS and not file.grid:
    return file
  grid = lambda shape: positions.in_patches(
    shape[-3:-1], file.patch[:2], file.options["stem"]
  )
  new, old = grid(preprocess.shape), file.grid or grid(file.image_shape)
  if new == old or (not file.grid and math.prod(new) == math.prod(old)):
    return file
  file = resolution.at_resolution(file, preprocess.shape[:2])
  logging.warning(
    "%r is for images of %d × %d pixels. %s",
    *(preprocess.pp, *preprocess.shape[:2], file.notes[-1]),
  )
  return file


def _size(file):
  """Returns (rows, cols) of images in pixels, see `preprocessing.make`."""
  if not any(re.search(_POSITIONS, name) for name in file.arrays):
    return None
  rows, cols = file.image_shape[1:3]  # of relative positions
  if file.grid:
    rows, cols = np.multiply(file.grid, file.patch[:2]).tolist()
  elif rows * file.patch[1] != cols * file.patch[0]:
    return None, None
  return rows, cols


def _fitted(path, file, model):
  """Returns the file's arrays that the model has, others as initialized."""
  image = np.zeros(file.image_shape, np.float32)
  init = lambda: files.flatten(model.init(jax.random.key(0), image))
  shapes = jax.eval_shape(init)
  arrays = big_vision.match_scan(file.arrays, shapes)
  fits = lambda k: k in arrays and arrays[k].shape == shapes[k].shape
  layer = lambda k: k.removeprefix(f"{files.STATISTICS}/").rpartition("/")[0]
  # If a kernel is new, all of its layer is, also what weight_norm adds to it.
  missing = {name for name in shapes if not fits(name)}
  layers = {layer(name) for name in missing if name.endswith("/kernel")}
  new = missing | {name for name in shapes if layer(name) in layers}
  lost = {name for name in missing if layer(name) not in layers}
  if any(name.startswith(files.STATISTICS) for name in lost):
    raise ValueError(
      f"stem_ln={model.config.stem_ln!r} whitens patches by the statistics of "
      f"training images, which {path!r} does not have. Train it instead: a run "
      f"with config.model_init={path!r} gathers them."
    )
  if new:
    logging.info("Newly initialized: %s.", ", ".join(sorted(new)))
  # Only these are computed.
  fresh = jax.jit(lambda: {k: x for k, x in init().items() if k in new})()
  return {k: fresh[k] if k in fresh else arrays[k] for k in shapes}
