"""Checksums of what a checkpoint holds, which are read back with it."""

import json
import zlib
from collections.abc import Mapping

import jax

from dpn import trees


def of_state(state) -> dict[str, int]:
  """Returns a checksum of each part of the state that has been loaded."""
  parts = dict(state) if isinstance(state, Mapping) else vars(state)
  return {
    name: trees.checksum(part)
    for name, part in parts.items()
    if (leaves := jax.tree.leaves(part)) and leaves[0] is not ...
  }


def of_description(position, state) -> dict[str, int]:
  """Returns checksums of a position, and of the state's names and shapes."""
  shapes = {k: [*map(int, v.shape)] for k, v in trees.flatten(state).items()}
  parts = {"position": position, "shapes": shapes}
  text = {k: json.dumps(v, sort_keys=True) for k, v in parts.items()}
  return {f"its {k}": zlib.crc32(v.encode()) for k, v in text.items()}


def check(expected: Mapping[str, int], got: Mapping[str, int]):
  """Raises ValueError unless all that was read has the checksum it had."""
  for part, value in got.items():
    if value != expected.get(part):
      raise ValueError(
        f"the checksum of {part} is {value}, expected {expected.get(part)}"
      )
