"""A model for images of another size."""

import dataclasses

from dpn.weights import positions, preprocessing
from dpn.weights.vit_params import VitParams


def at_resolution(model: VitParams, px: int) -> VitParams:
  """Returns the model for images with sides of that many pixels.

  Raises:
    ValueError: the old grid is not known, or the patches are not square or do
      not fit in.
  """
  rows, cols, _ = model.patch
  tables = positions.names(model.arrays)
  if rows != cols or (tables and not model.grid):
    raise ValueError(
      "--resolution needs square patches and a grid of them that is known; the "
      f"source has patches of {rows}x{cols} px, and positions for images that "
      "are not square."
    )
  if any(name.endswith("rel_posemb/table") for name in model.arrays):
    raise ValueError(
      "--resolution does not resize relative positions (posemb=rpe): leave it "
      "out, and train at the other resolution from the file's other arrays."
    )
  if px < 1 or px % rows:
    raise ValueError(
      f"--resolution: expected a multiple of {rows}, the patches' px; got {px}."
    )
  side, arrays, notes = px // rows, dict(model.arrays), model.notes
  for name in tables:
    arrays[name] = positions.resize_grid(
      *(arrays[name], model.grid, (side, side)),
      *(model.cls_row, model.align_corners),
    )
  if tables and model.grid:
    old = "×".join(map(str, model.grid))
    notes += (f"Position embeddings: from {old} to {side}×{side}.",)
  pp = model.pp
  if pp and preprocessing.describe(pp)["size"] != (px, px):
    notes += (f"Left out, as it is for another size: {pp!r}.",)
    pp = None
  return dataclasses.replace(
    model, arrays=arrays, grid=(side, side), pp=pp, notes=notes
  )
