"""Prints a config's parameters and FLOPs per image, by part of the model.

  python -m scripts.count --config configs/augreg_i1k.py:variant=B/16

Nothing is computed: shapes come from jax.eval_shape, FLOPs from XLA's cost
analysis of one image's forward pass in evaluation. XLA counts a multiply-add
as two, so papers' "FLOPs" are the column of multiply-adds; transcendental
functions are not counted. Images are sized by running config.input.pp.
"""

import collections
import dataclasses
import math
import re

import flax.linen as nn
import jax
import numpy as np

import dpn.tasks
from dpn import trees
from input_pipeline import pipeline, pp, testing
from trainers import cli

BLOCK = re.compile(r"Transformer/encoderblock_\d+/?(\w*)")
STEM = ("stem", "embedding")


@dataclasses.dataclass
class Part:
  """What one part of a model has and does: parameters, FLOPs per image."""

  params: int = 0
  flops: float = 0.0


@dataclasses.dataclass
class Call:
  """One call of a module, with what is needed to repeat it."""

  module: nn.Module
  variables: dict
  args: tuple
  kwargs: dict
  children: list


def count(model: nn.Module, image_shape: tuple[int, ...]) -> dict[str, Part]:
  """Returns the parts of a ViT by name, in the order of the forward pass.

  Args:
    model: as `vit.Model` makes it.
    image_shape: (rows, cols, channels).
  """
  model = model.clone(scan=False, remat_policy="none")
  image = jax.ShapeDtypeStruct((1, *image_shape), np.float32)
  variables = jax.eval_shape(model.init, jax.random.key(0), image)
  parts, cache = collections.defaultdict(Part), {}
  # A second call of a module makes predictions for every patch, which nobody
  # uses and jit drops.
  for path, (call, *_) in record_calls(model, variables, image).items():
    parts[part_of(path)].flops += own_flops(call, cache)
  for name, leaf in trees.flatten(variables["params"]).items():
    parts[part_of(name.rpartition("/")[0])].params += math.prod(leaf.shape)
  return {name: p for name, p in parts.items() if p.params or p.flops}


def part_of(path: str) -> str:
  """Returns the part that a module, named by its path, belongs to."""
  if match := BLOCK.match(path):
    return f"blocks/{match[1] or 'residual'}"
  if path == "Transformer":
    return "blocks/residual"
  first, _, rest = path.partition("/")
  if first == "Transformer":
    return rest
  return "stem" if first in STEM else first or "posemb, cls, pooling"


def record_calls(model, variables, image) -> dict[str, list[Call]]:
  """Returns the calls of every module in a forward pass, by its path."""
  calls, stack = collections.defaultdict(list), []

  def record(next_function, args, kwargs, context):
    if context.method_name != "__call__":
      return next_function(*args, **kwargs)
    call = Call(*context.module.unbind(), *shapes((args, kwargs)), children=[])
    call.variables = shapes(call.variables)
    if stack:
      stack[-1].children.append(call)
    calls["/".join(context.module.path)].append(call)
    stack.append(call)
    result = next_function(*args, **kwargs)
    stack.pop()
    return result

  with nn.intercept_methods(record):
    jax.eval_shape(model.apply, variables, image)
  return calls


def shapes(tree):
  """Returns the tree with shapes for arrays, all else as it is."""
  return jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if is_array(x) else x,
    tree,
  )


def is_array(x) -> bool:
  return hasattr(x, "shape") and hasattr(x, "dtype")


def own_flops(call: Call, cache: dict) -> float:
  """Returns the FLOPs of a call without those of the modules it calls."""
  inside = sum(flops(c, cache) for c in call.children)
  # XLA counts the scalar function of equal reductions once per program.
  return max(0.0, flops(call, cache) - inside)


def flops(call: Call, cache: dict) -> float:
  """Returns the FLOPs of a call; equal calls are analysed once."""
  leaves, tree = jax.tree.flatten((call.variables, call.args, call.kwargs))
  key = (repr(call.module), tree, *map(repr, leaves))
  if key not in cache:
    arrays = {i: x for i, x in enumerate(leaves) if is_array(x)}

    def run(arrays):
      inputs = [arrays.get(i, x) for i, x in enumerate(leaves)]
      variables, args, kwargs = jax.tree.unflatten(tree, inputs)
      return call.module.apply(variables, *args, **kwargs)

    cost = jax.jit(run).lower(arrays).cost_analysis() or {}
    cache[key] = cost.get("flops", 0.0)
  return cache[key]


def table(parts: dict[str, Part]) -> str:
  """Returns the parts and their sum as an aligned table."""
  total = Part(
    sum(p.params for p in parts.values()), sum(p.flops for p in parts.values())
  )
  rows = [("part", "parameters", "FLOPs", "multiply-adds")]
  for name, part in [*parts.items(), ("total", total)]:
    numbers = part.params, part.flops, part.flops / 2
    rows.append((name, *(f"{n:,.0f}" for n in numbers)))
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return "\n".join(
    f"{name:<{widths[0]}}  "
    + "  ".join(f"{x:>{w}}" for x, w in zip(row, widths[1:], strict=True))
    for name, *row in rows
  )


def image_shape(config) -> tuple[int, ...]:
  """Returns the (rows, cols, channels) that config.input.pp makes.

  Where that decodes images, a made-up one will do; otherwise the data are
  opened.
  """
  if "decode" not in config.input.pp:
    return pipeline.training(config.input, seed=0).spec["image"][0][1:]
  rng = np.random.default_rng(0)
  example = {"image": testing.jpeg(rng, rows=64, cols=64), "label": 0}
  return pp.make(config.input.pp)(example, rng)["image"].shape


def main():
  config = _CONFIG.value
  model = dpn.tasks.make(config).model
  print(table(count(model, image_shape(config))))


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  cli.run(main)
