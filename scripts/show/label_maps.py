"""Colours for label maps, and what they stand for."""

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib import colors

# Multiples, modulo 1, fill the cube evenly: powers of the root of x^4 = x + 1
# (Roberts's quasirandom sequence).
_STEPS = 1.2207440846057596 ** np.array([-1, -2, -3])
_MOST = 24  # classes in a legend


def colours(num_classes: int) -> np.ndarray:
  """Returns colours (num_classes + 1, 3) in [0, 1]; the last one is black."""
  if num_classes <= 20:  # matplotlib's: ten strong ones first, then ten light
    pairs = np.reshape(matplotlib.colormaps["tab20"].colors, (10, 2, 3))
    table = np.concatenate([pairs[:, 0], pairs[:, 1]])[:num_classes]
  else:
    hsv = np.outer(np.arange(num_classes), _STEPS) % 1
    hsv[:, 1:] = 0.3 + 0.7 * hsv[:, 1:]  # neither grey nor dark
    table = colors.hsv_to_rgb(hsv)
  return np.concatenate([table, np.zeros((1, 3))])


def in_colour(labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Returns label maps (…, rows, cols) as colours (…, rows, cols, 3).

  Colours are in [0, 1]. Ids that are not a class are black.
  """
  known = (labels >= 0) & (labels < num_classes)
  return colours(num_classes)[np.where(known, labels, num_classes)]


def shares(labels: np.ndarray, num_classes: int) -> np.ndarray:
  """Returns the share of each class among the labelled pixels (classes,)."""
  known = labels[(labels >= 0) & (labels < num_classes)]
  counts = np.bincount(known, minlength=num_classes)
  return counts / max(known.size, 1)


def legend(
  labels: np.ndarray, names: Sequence[str]
) -> list[tuple[str, np.ndarray]]:
  """Returns (name, colour) of the classes in `labels`, most frequent first."""
  share, table = shares(labels, len(names)), colours(len(names))
  order = np.argsort(-share, kind="stable")[: np.count_nonzero(share)]
  entries = [(names[k], table[k]) for k in order[:_MOST]]
  if left_out := len(order) - len(entries):
    entries.append((f"and {left_out} more", np.ones(3)))
  return [*entries, ("not labelled", table[-1])]
