"""A checkpoint for other pixels, another resolution or patch size."""

import dataclasses
import math

import numpy as np

from dpn.weights import resize as resample
from scripts import conversion_source


def fold_pixels(
  source: conversion_source.Checkpoint,
) -> conversion_source.Checkpoint:
  """Returns the model that computes the same of pixels in [-1, 1].

  Raises:
    ValueError: the pixels are unknown, or a norm stands before the embedding.
  """
  if source.pixels is None:
    raise ValueError(
      "--fold_pixels: the source does not say which mean and std its pixels "
      "have; there is no config.json or preprocessor_config.json that does."
    )
  _plain_embedding(source, "--fold_pixels")
  kernel = source.arrays["embedding/kernel"].astype(np.float64)
  mean, std = map(np.array, source.pixels.of(kernel.shape[2]))
  # (x - mean) / std = z * scale + shift, for z = 2 x - 1.
  scale, shift = 0.5 / std, (0.5 - mean) / std
  bias = source.arrays["embedding/bias"] + np.einsum("pqcw,c->w", kernel, shift)
  arrays = {
    **source.arrays,
    "embedding/kernel": (kernel * scale[:, None]).astype(np.float32),
    "embedding/bias": bias.astype(np.float32),
  }
  note = (
    f"Folded {source.pixels} into the embedding: pixels are in [-1, 1] now."
  )
  return dataclasses.replace(
    source,
    arrays=arrays,
    pixels=conversion_source.MINUS_ONE_TO_ONE,
    notes=(*source.notes, note),
  )


def resize(
  source: conversion_source.Checkpoint,
  resolution: int | None,
  patch_size: int | None,
) -> conversion_source.Checkpoint:
  """Returns the model for images or patches of another size.

  Args:
    source: to be changed.
    resolution: pixels of a side of the images; None: as before.
    patch_size: pixels of a side of a patch; None: as before.

  Raises:
    ValueError: the old grid or the new one is not square, or a norm stands
      before the embedding.
  """
  arrays, options, notes = dict(source.arrays), dict(source.options), []
  rows, cols = conversion_source.patch_px(source.model)
  side = math.isqrt(source.tokens) if source.tokens else None
  if side and (side**2 != source.tokens or rows != cols):
    raise ValueError(
      f"--resolution and --patch_size need square images and patches; there "
      f"are {source.tokens} patches of {rows}x{cols} pixels."
    )
  resolution = resolution or (side and side * rows)
  if patch_size:
    _plain_embedding(source, "--patch_size")
    arrays["embedding/kernel"] = resample.patch_kernel(
      arrays["embedding/kernel"], (patch_size, patch_size)
    )
    options["patch_size"] = [patch_size, patch_size]
    notes.append(
      f"Patches: from {rows}x{cols} to {patch_size}x{patch_size} px."
    )
    rows = patch_size
  if resolution and resolution % rows:
    raise ValueError(
      f"Images of {resolution} px cannot be cut into patches of {rows} px: "
      "give a --resolution that is a multiple."
    )
  if side:
    arrays["pos_embedding"] = resample.posemb_with_row(
      arrays["pos_embedding"], (resolution // rows) ** 2, source.has_row
    )
    notes.append(f"Position embeddings: from {side}² to {resolution // rows}².")
  return dataclasses.replace(
    source,
    arrays=arrays,
    options=options,
    notes=(*source.notes, *notes),
    grid=resolution and (resolution // rows,) * 2,
  )


def _plain_embedding(source, flag):
  model = source.model
  if model.conv_stem:
    raise ValueError(f"{flag} needs patches; this model has a conv_stem.")
  if model.stem_ln not in ("none", "post", "post_posemb"):
    raise ValueError(
      f"{flag} is not possible with stem_ln={model.stem_ln!r}: its norm "
      "before the embedding sees the pixels of each patch, and no change of "
      "parameters makes up for other ones."
    )
