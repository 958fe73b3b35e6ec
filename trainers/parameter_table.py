"""The parameters of a model on one screen."""

import re
from collections.abc import Mapping
from typing import Any

import jax
from clu import parameter_overview

_WIDTH = 80


def table(params: Mapping[str, Any]) -> str:
  """Returns a line for each module that holds arrays, and how many numbers.

  Modules "<name>_0", "<name>_1", … of equal shapes share a line, with the parts
  of one below. `params` is a nested dictionary of arrays or shapes.
  """
  rows = [*_rows(params), ("parameters", "", f"{_size(params):,}")]
  name_width = max(len(name) for name, arrays, _ in rows if arrays)
  lines = []
  for name, arrays, numbers in rows:
    line = f"{name:<{name_width}}  {arrays}"
    room = max(_WIDTH - len(line), len(numbers) + 2)
    lines.append(f"{line}{numbers:>{room}}")
  return "\n".join(lines)


def _rows(params, indent=""):
  """Returns (name, arrays, numbers); modules within others are indented."""
  arrays, modules = _split(params)
  rows = []
  if not indent:  # arrays in no module
    rows = [(k, _shape(x), f"{_size(x):,}") for k, x in arrays.items()]
  for name, times, module in _folded(modules):
    held = (f"{k} {_shape(x)}" for k, x in _split(module)[0].items())
    numbers = f"{times} × " * (times > 1) + f"{_size(module):,}"
    rows.append((indent + name, ", ".join(held), numbers))
    rows += _rows(module, f"{indent}  ")
  return rows


def _split(params):
  """Returns the arrays and the modules in a module."""
  modules = {k: x for k, x in params.items() if isinstance(x, Mapping)}
  return {k: x for k, x in params.items() if k not in modules}, modules


def _folded(modules):
  """Yields (name, times, module), equal ones once: "block_0…11", 12, …."""
  groups = {}
  for name, module in modules.items():
    stem = re.sub(r"(?<=_)\d+$", "", name)
    shapes = str(jax.tree.map(lambda x: x.shape, module))
    groups.setdefault((stem, shapes), []).append(name)
  for (stem, _), names in groups.items():
    name = names[0]
    if len(names) > 1:
      numbers = sorted(int(name.rpartition("_")[2]) for name in names)
      whole = numbers == [*range(numbers[0], numbers[-1] + 1)]
      ends = f"{numbers[0]}…{numbers[-1]}"
      name = f"{stem}{ends if whole else ','.join(map(str, numbers))}"
    yield name, len(names), modules[names[0]]


def _shape(x):
  return "×".join(map(str, x.shape)) or "number"


def _size(tree):
  """Returns how many numbers are in an array or in a tree of them."""
  return int(parameter_overview.count_parameters({"": tree}))
