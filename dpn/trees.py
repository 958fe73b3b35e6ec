"""Returns and selects leaves of a pytree by name: keys joined by "/".

Configs, checkpoints and exports refer to leaves by these names, for example
"Transformer/encoderblock_0/LayerNorm_0/scale".
"""

import functools
import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import traverse_util

Tree = Any
# The keys of one of JAX's paths, joined by "/".
name = functools.partial(jax.tree_util.keystr, simple=True, separator="/")


def unstacked_axes(name: str, ndim: int) -> range:
  """Returns the axes of a parameter, except the axis of scanned blocks."""
  return range(ndim)[int("/encoderblock/" in f"/{name}") :]


def flatten(tree: Tree) -> dict[str, Any]:
  """Returns `{name: leaf}` in JAX's leaf order.

  Dictionaries give their keys, sequences the index, named tuples and
  dataclasses the field. A bare leaf is called "". Raises ValueError where two
  leaves share a name, because a key contains "/".
  """
  pairs = jax.tree.leaves_with_path(tree)
  flat = {name(path): leaf for path, leaf in pairs}
  if len(flat) < len(pairs):
    raise ValueError(
      f"{len(pairs)} leaves have only {len(flat)} names. Expected keys without "
      f"'/', rename those: {sorted(flat)}."
    )
  return flat


def unflatten(flat: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the nested dictionary whose leaves bear these names.

  Raises ValueError where a name is both a leaf and the parent of another.
  """
  parents = {name[:i] for name in flat for i, c in enumerate(name) if c == "/"}
  if both := sorted(parents & flat.keys()):
    raise ValueError(
      f"{both} name leaves and parents of other leaves. Rename or drop them."
    )
  return traverse_util.unflatten_dict(flat, sep="/")


def differences(a: Tree, b: Tree) -> list[tuple[str, Any, Any]]:
  """Returns (name, leaf of a, leaf of b), sorted, wherever these differ.

  A leaf that only one of the trees has is "absent" in the other. None and empty
  containers are leaves here: in a config they mean something.
  """
  empty = lambda x: x is None or (isinstance(x, dict | list | tuple) and not x)
  a, b = (
    {name(path): leaf for path, leaf in jax.tree.leaves_with_path(tree, empty)}
    for tree in (a, b)
  )
  pairs = (
    (name, a.get(name, "absent"), b.get(name, "absent"))
    for name in sorted({*a, *b})
  )
  return [pair for pair in pairs if pair[1] != pair[2]]


@functools.cache
def warn_once(message: str) -> None:
  """Logs a warning, unless this process has logged the same before."""
  logging.warning("%s", message)


def masks(tree: Tree, patterns: Sequence[str], what: str) -> list[Tree]:
  """Returns one tree of booleans per pattern: the leaves that belong to it.

  A leaf belongs to the first pattern that matches its whole name, so it is
  True in one mask at most. A pattern to which nothing belongs is logged, once:
  configs may name parameters that only some models have. `what` says in
  messages where the patterns come from, e.g. "config.lr_mults".
  """
  try:
    compiled = [re.compile(pattern) for pattern in patterns]
  except re.error as error:
    raise ValueError(
      f"{what}: got {error.pattern!r}, expected a regular expression: {error}."
    ) from error

  owners = []  # of each leaf: which pattern it belongs to, or -1
  for name in flatten(tree):
    hits = (i for i, regex in enumerate(compiled) if regex.fullmatch(name))
    owners.append(next(hits, -1))
  for i, pattern in enumerate(patterns):
    if i not in owners:
      warn_once(
        f"{what}: nothing belongs to {pattern!r}. It must match a whole name"
        " that no earlier pattern matches."
      )
  return [
    jax.tree.unflatten(jax.tree.structure(tree), [o == i for o in owners])
    for i in range(len(patterns))
  ]


def with_integers(tree: Tree, others: Tree) -> Tree:
  """Returns the tree with the integers of `others`, which has its structure."""
  integer = lambda x: jnp.issubdtype(x.dtype, jnp.integer)
  return jax.tree.map(lambda x, y: y if integer(x) else x, tree, others)


def l2(tree: Tree) -> jax.Array:
  """Returns the float32 L2 norm () of all leaves seen as one vector."""
  squares = [
    jnp.sum(jnp.square(jnp.asarray(leaf, jnp.float32)))
    for leaf in jax.tree.leaves(tree)
  ]
  return jnp.sqrt(sum(squares, start=jnp.float32(0)))


def checksum(tree: Tree) -> int:
  """Returns a number below 2^32 that depends on every bit of every leaf.

  It depends on places, too, but not on sharding: it sums, modulo 2^32, each
  element's bits times an odd number made from its place. It takes one leaf at a
  time, as a program over all leaves of a deep model takes half a minute to
  compile, and awaits each, as many communicating programs can block each other.
  """
  total = 0
  for i, leaf in enumerate(jax.tree.leaves(tree)):
    total += int(_leaf_checksum(leaf, np.uint32(i * 0x9E3779B9 % 2**32)))
  return total % 2**32


@jax.jit
def _leaf_checksum(x: jax.Array, place: jax.Array) -> jax.Array:
  """Returns a leaf's term of `checksum`; its first element is at `place`."""
  x = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else x
  uint = jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}")  # two of a float64
  bits = jax.lax.bitcast_convert_type(x, uint).astype(jnp.uint32)
  stride = 1
  for axis in range(bits.ndim - 1, -1, -1):
    steps = jax.lax.broadcasted_iota(jnp.uint32, bits.shape, axis)
    place, stride = place + stride * steps, stride * bits.shape[axis]
  # MurmurHash3's mixing; then odd, so that no changed bit is lost.
  place = (place ^ (place >> 16)) * jnp.uint32(0x85EBCA6B)
  place = (place ^ (place >> 13)) * jnp.uint32(0xC2B2AE35)
  odd = (place ^ (place >> 16)) | jnp.uint32(1)
  return jnp.sum(bits * odd, dtype=jnp.uint32)


def nonfinite(tree: Tree) -> list[str]:
  """Returns the names of leaves that hold a NaN or an infinity."""
  return [n for n, x in flatten(tree).items() if not jnp.isfinite(x).all()]


def largest(tree: Tree) -> tuple[str, float]:
  """Returns the leaf that holds the largest magnitude, and that magnitude."""
  sizes = {n: float(jnp.abs(x).max()) for n, x in flatten(tree).items()}
  return max(sizes.items(), key=operator.itemgetter(1))
