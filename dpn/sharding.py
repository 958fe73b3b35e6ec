"""Device meshes and where each array lies on them."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from absl import logging
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dpn import calls, errors, schema, trees


def make_mesh(
  axes: Sequence[tuple[str, int]] = (("data", -1),),
  among: Sequence[jax.Device] | None = None,
) -> Mesh:
  """Returns a mesh with axes (name, size) over devices, all by default.

  One size may be -1, for the devices that are left.
  """
  schema.check("config", "mesh", axes, Sequence[tuple[str, int]])
  names = [name for name, _ in axes]
  if len({*names}) < len(names):
    raise ValueError(f"config.mesh={list(axes)} has two axes of one name.")
  sizes = [size for _, size in axes]
  count = jax.device_count() if among is None else len(among)
  if sizes.count(-1) == 1:
    rest = -math.prod(sizes)
    sizes[sizes.index(-1)] = count // rest if rest else 0
  if math.prod(sizes) != count or min(sizes) < 1:
    raise ValueError(
      f"config.mesh={list(axes)} does not fit {count} devices: the sizes "
      "must multiply to that number, and one of them may be -1."
    )
  # Flax Linen needs automatic axes: with explicit ones, JAX's default, a
  # sharded parameter in a matmul is a type error.
  types = (AxisType.Auto,) * len(sizes)
  # `jax.make_mesh` refuses shapes that do not follow most TPUs' wiring.
  devices = mesh_utils.create_device_mesh(
    sizes, among, allow_split_physical_axes=True
  )
  return Mesh(devices, names, axis_types=types)


def replicated(mesh: Mesh) -> NamedSharding:
  """Returns the sharding that puts whole arrays on every device."""
  return NamedSharding(mesh, PartitionSpec())


def batch(mesh: Mesh) -> NamedSharding:
  """Returns the sharding that splits axis 0 over all devices."""
  return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def keep_batch(mesh: Mesh, size: int) -> Any:
  """Returns a context in which outputs of Flax modules are sharded by example.

  Only arrays with `size` rows and a further axis are: a vector of that length
  may be a LayerNorm's. Without this, XLA may shard activations by channel, like
  the `fsdp` parameters that they are multiplied with, and compute much of the
  batch on many devices. The context is also a decorator.
  """
  where = batch(mesh)

  def keep(x):
    if isinstance(x, jax.Array) and x.ndim > 1 and len(x) == size:
      return jax.lax.with_sharding_constraint(x, where)
    return x

  def call(method, args, kw, context):
    del context
    return jax.tree.map(keep, method(*args, **kw))

  return nn.intercept_methods(call)


def rows_by_process(mesh: Mesh, rows: int) -> np.ndarray:
  """Returns where in a global batch each row lies, process by process.

  A mesh follows the wiring of a TPU, so a global batch that processes assemble
  with the sharding `batch` is not in the order of processes. The result,
  (rows,), holds the global row of process 0's first row, and so on.
  """
  places: Mapping[Any, Any] = batch(mesh).devices_indices_map((rows,))
  spans = sorted(
    {(d.process_index, *where.indices(rows)) for d, (where,) in places.items()}
  )
  return np.concatenate([np.arange(*span) for _, *span in spans])


def check_batch_size(what: str, batch_size: int, mesh: Mesh):
  """Raises ValueError if the devices cannot share `batch_size` equally."""
  if batch_size < 1 or batch_size % mesh.size:
    below = batch_size // mesh.size * mesh.size
    near = f"{below} or {below + mesh.size}" if below > 0 else mesh.size
    raise ValueError(
      f"{what}={batch_size} cannot be split over {mesh.size} devices: expected "
      f"a multiple of that number, for example {near}."
    )


def infer(shapes: Any, strategy: Sequence[tuple[str, str]], mesh: Mesh) -> Any:
  """Returns a tree of shardings for a tree of shapes.

  A strategy is (regex, rule) pairs; the first regex that matches a leaf's whole
  name gives its rule. Leaves without one are replicated. Names in the optimizer
  state end like the parameter's, so a regex that begins with ".*" covers both.
  Rules are `replicate` and `fsdp(axis="data", min_size_to_shard_mb=4)`, which
  splits the largest divisible dimension of arrays above that size, and warns if
  there is none.
  """
  if any(isinstance(pair, str) or len(pair) != 2 for pair in strategy):
    raise ValueError(
      f"sharding_strategy is {strategy!r}, expected a list of (regex, rule) "
      "pairs, for example [('.*', 'fsdp(axis=\"data\")')]."
    )
  rules = [_parse_rule(rule, mesh) for _, rule in strategy]
  masks = trees.masks(shapes, [r for r, _ in strategy], "sharding_strategy")

  def spec(leaf, *chosen):
    mine = [rule for rule, hit in zip(rules, chosen, strict=True) if hit]
    return NamedSharding(mesh, mine[0](leaf) if mine else PartitionSpec())

  return jax.tree.map(spec, shapes, *masks)


def _fsdp(mesh: Mesh, axis: str = "data", min_size_to_shard_mb: float = 4):
  errors.check_known("mesh axis", axis, mesh.shape)
  parts = mesh.shape[axis]

  def rule(leaf):
    size_mb = math.prod(leaf.shape) * leaf.dtype.itemsize / 2**20
    if size_mb <= min_size_to_shard_mb:
      return PartitionSpec()
    fits = [d for d in leaf.shape if d % parts == 0]
    if not fits:
      if size_mb > 1:
        _warn_of_whole(leaf.shape, axis, parts)
      return PartitionSpec()
    dim = leaf.shape.index(max(fits))
    return PartitionSpec(*[None] * dim, axis)

  return rule


@functools.cache  # once for each shape
def _warn_of_whole(shape, axis, parts):
  logging.warning(
    "Arrays of shape %s stay whole on every device: no dimension is a multiple "
    "of the %d devices of the mesh axis %r. A smaller axis beside another, "
    'mesh=[("data", -1), ("fsdp", 8)], may split them.',
    *(shape, parts, axis),
  )


_RULES = {"replicate": lambda mesh: lambda leaf: PartitionSpec(), "fsdp": _fsdp}


def _parse_rule(text: str, mesh: Mesh) -> Callable[[Any], PartitionSpec]:
  """Returns the rule written as `name` or `name(key=literal, …)`."""
  try:
    _, name, args, kw = calls.parse(text)
  except ValueError as e:
    raise ValueError(
      f"Cannot read the sharding rule {text!r}; write for example "
      "'replicate' or 'fsdp(axis=\"data\")'."
    ) from e
  errors.check_known("sharding rule", name, _RULES)
  try:
    return _RULES[name](mesh, *args, **kw)
  except TypeError as e:
    raise ValueError(f"Sharding rule {text!r}: {e}.") from e
