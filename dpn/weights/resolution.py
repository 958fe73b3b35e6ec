"""Converts a model to images of another size."""

import dataclasses

import numpy as np

from dpn.weights import positions, preprocessing
from dpn.weights.vit_params import VitParams


def at_resolution(model: VitParams, size: tuple[int, int]) -> VitParams:
  """Returns the model for images of (rows, cols) pixels.

  Raises:
    ValueError: the grid is unknown, positions relative, or patches do not fit.
  """
  patch, tables = model.patch[:2], positions.names(model.arrays)
  if tables and not model.grid:
    raise ValueError(
      f"Positions are resized to images of {size} px from a known grid; the "
      "source's is not: its images are not square, or its stem is one's own."
    )
  if any(name.endswith("rel_posemb/table") for name in model.arrays):
    raise ValueError(
      f"Relative positions (posemb=rpe) are not resized to {size} px: "
      "leave them out, and train at that resolution from the file's other "
      "arrays."
    )
  if min(size) < 1 or np.mod(size, patch).any():
    raise ValueError(
      f"Another resolution: expected multiples of the patches' {patch} px; got "
      f"{size}."
    )
  rows, cols = positions.in_patches(size, patch, model.options["stem"])
  arrays, notes = dict(model.arrays), model.notes
  for name in tables:
    arrays[name] = positions.resize_grid(
      *(arrays[name], model.grid, (rows, cols)),
      *(model.cls_row, model.resizing),
    )
  if tables and model.grid:
    old = "×".join(map(str, model.grid))
    notes += (f"Position embeddings: from {old} to {rows}×{cols}.",)
  pp = model.pp
  if pp and preprocessing.describe(pp)["size"] != size:
    notes += (f"Left out, as it is for another size: {pp!r}.",)
    pp = None
  return dataclasses.replace(
    model,
    arrays=arrays,
    grid=(rows, cols),
    pp=pp,
    notes=notes,
    image_shape=(1, *size, model.patch[2]),
  )
