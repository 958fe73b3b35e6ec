"""A Vision Transformer for other pixels, another resolution or patch size."""

import dataclasses
import math

import numpy as np

from dpn.weights import resize as resizing
from dpn.weights import vit_params
from dpn.weights.vit_params import VitParams


def fold_pixels(model: VitParams) -> VitParams:
  """Returns the model that computes the same of pixels in [-1, 1].

  Raises:
    ValueError: the pixels are unknown, or a norm stands before the embedding.
  """
  if model.pixels is None:
    raise ValueError(
      "--fold_pixels: the source does not say which mean and std its pixels "
      "have; there is no config.json or preprocessor_config.json that does."
    )
  _check_embedding(model, "--fold_pixels")
  kernel = model.arrays["embedding/kernel"].astype(np.float64)
  mean, std = map(np.array, model.pixels.of(model.channels))
  # (x - mean) / std = z * scale + shift, for z = 2 x - 1.
  scale, shift = 0.5 / std, (0.5 - mean) / std
  bias = model.arrays["embedding/bias"] + np.einsum("pqcw,c->w", kernel, shift)
  arrays = {
    **model.arrays,
    "embedding/kernel": (kernel * scale[:, None]).astype(np.float32),
    "embedding/bias": bias.astype(np.float32),
  }
  note = f"Folded {model.pixels} into the embedding: pixels are in [-1, 1] now."
  return dataclasses.replace(
    model,
    arrays=arrays,
    pixels=vit_params.MINUS_ONE_TO_ONE,
    notes=(*model.notes, note),
  )


def resize(
  model: VitParams, resolution: int | None, patch_size: int | None
) -> VitParams:
  """Returns the model for images or patches of another size.

  Args:
    model: to be changed.
    resolution: pixels of a side of the images; None: as before.
    patch_size: pixels of a side of a patch; None: as before.

  Raises:
    ValueError: the old grid or the new one is not square, or a norm stands
      before the embedding.
  """
  arrays, options, notes = dict(model.arrays), dict(model.options), []
  rows, cols = model.patch_px
  side = math.isqrt(model.tokens) if model.tokens else None
  if side and (side**2 != model.tokens or rows != cols):
    raise ValueError(
      f"--resolution and --patch_size need square images and patches; there "
      f"are {model.tokens} patches of {rows}x{cols} pixels."
    )
  resolution = resolution or (side and side * rows)
  if patch_size:
    _check_embedding(model, "--patch_size")
    options["patch_size"] = [patch_size, patch_size]
    arrays["embedding/kernel"] = resizing.patch_kernel(
      arrays["embedding/kernel"], options["patch_size"]
    )
    notes.append(
      f"Patches: from {rows}x{cols} to {patch_size}x{patch_size} px."
    )
    rows = patch_size
  if resolution and resolution % rows:
    raise ValueError(
      f"Images of {resolution} px cannot be cut into patches of {rows} px: "
      "give a --resolution that is a multiple."
    )
  new = resolution and resolution // rows
  if side:
    arrays["pos_embedding"] = resizing.posemb_with_row(
      arrays["pos_embedding"], new**2, model.cls_row
    )
    notes.append(f"Position embeddings: from {side}² to {new}².")
  return dataclasses.replace(
    model,
    arrays=arrays,
    options=options,
    notes=(*model.notes, *notes),
    grid=new and (new, new),
  )


def _check_embedding(model, flag):
  """Raises ValueError if something else than patches enters the embedding."""
  options = model.options
  if options["stem"] != "patch":
    raise ValueError(f"{flag} needs patches; the stem is {options['stem']!r}.")
  if options["stem_ln"] not in ("none", "post", "post_posemb"):
    raise ValueError(
      f"{flag} is not possible with stem_ln={options['stem_ln']!r}: its norm "
      "before the embedding sees the pixels of each patch, and no change of "
      "parameters makes up for other ones."
    )
