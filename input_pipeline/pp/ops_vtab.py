"""Labels of the VTAB tasks (arXiv 1910.04867) that TFDS does not hold as such.

| task | ops | classes |
|---|---|---|
| Clevr/count | `clevr_count` | 8 |
| Clevr/distance | `clevr_distance` | 6 |
| dSprites/location | `bin_label("label_x_position", 32, 16)` | 16 |
| dSprites/orientation | `bin_label("label_orientation", 40, 16)` | 16 |
| sNORB/azimuth | `copy("label_azimuth", "label")` | 18 |
| sNORB/elevation | `copy("label_elevation", "label")` | 9 |
| KITTI/distance | `kitti_distance` | 4 |

The ops write `label`. dSprites has images of 0 and 1: `value_range(in_max=1)`.
"""

import numpy as np

from dpn.input_pipeline.pp import op

# Bounds of the classes, from end to end, as VTAB has them.
_CLEVR_DISTANCES = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
_KITTI_DISTANCES = (-100.0, 8.0, 20.0, 999.0)
_KITTI_NO_VEHICLE = 1000.0
_labels = op.declare(writes=("label",))


@_labels
def clevr_count():
  """Labels with the number of objects, from 3 (label 0) to 10."""
  return _label(lambda example: len(example["objects"]["size"]) - 3)


@_labels
def clevr_distance():
  """Labels with the class of the distance to the closest object."""

  def label(example):
    coords = np.reshape(example["objects"]["pixel_coords"], (-1, 3))
    return _class(np.min(coords[:, 2]), _CLEVR_DISTANCES)

  return _label(label)


@_labels
def kitti_distance():
  """Labels with the class of the closest vehicle's distance; 3 means none."""

  def label(example):
    depths = np.reshape(example["objects"]["location"], (-1, 3))[:, 2]
    # Cars, vans and trucks.
    vehicles = depths[np.asarray(example["objects"]["type"]) < 3]
    return _class(np.min(vehicles, initial=_KITTI_NO_VEHICLE), _KITTI_DISTANCES)

  return _label(label)


@_labels
def bin_label(inkey: str, num_values: int, num_classes: int):
  """Labels with `inkey`, whose values 0 … num_values - 1 go into equal bins."""

  def label(example):
    value = int(op.get(example, inkey))
    if not 0 <= value < num_values:
      raise ValueError(f"{inkey} is {value}, not in [0, {num_values}).")
    return value * num_classes // num_values

  return _label(label)


def _label(function):
  return lambda example, _: {**example, "label": function(example)}


def _class(value, bounds):
  """Returns the number of bounds below `value`, less one."""
  return int(np.searchsorted(np.float32(bounds), np.float32(value))) - 1
