"""The collectives of a compiled program, from its text."""

import collections
import dataclasses
import math
import re

KINDS = (
  *("all-reduce", "all-gather", "reduce-scatter", "all-to-all"),
  "collective-permute",
)
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)\s.*\{$")
_OP = re.compile(
  rf"= (.+?) ({'|'.join(KINDS)})(-start)?\("  # -done repeats what -start has
)
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\]")
_SCALAR = 4  # bytes
_TRIPS = re.compile(r'known_trip_count":\{"n":"(\d+)"')
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_CONSTANT = re.compile(r"= s32\[\]\S* constant\((\d+)\)")
_CALLED = re.compile(
  r"(?:body|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)"
)


@dataclasses.dataclass(frozen=True)
class Traffic:
  """How often a kind of collective runs in a step, and bytes on a device."""

  count: int
  size: int


def collectives(text: str) -> dict[str, Traffic]:
  """Returns the collectives of an HLO module, by kind.

  The body of a loop counts as often as it runs, if the program says how often
  or its condition compares with one constant, as a scan's does, which begins at
  0; otherwise once. Bytes are those of the results on one device.
  """
  own, calls, entry = _read(text.splitlines())
  times = collections.Counter()

  def visit(name, factor):
    times[name] += factor
    for called, trips in calls[name]:
      visit(called, factor * trips)

  visit(entry, 1)
  found = collections.defaultdict(lambda: [0, 0])
  for name, ops in own.items():
    for kind, size in ops:
      found[kind][0] += times[name]
      found[kind][1] += times[name] * size
  return {kind: Traffic(*found[kind]) for kind in KINDS if kind in found}


def _read(lines):
  """Returns the collectives and calls of each computation, and the first."""
  own, calls = collections.defaultdict(list), collections.defaultdict(list)
  limits, loops, name, entry = collections.defaultdict(list), [], "", ""
  for line in lines:
    if start := _COMPUTATION.match(line):
      name = start[2]
      entry = name if start[1] else entry
      continue
    limits[name] += map(int, _CONSTANT.findall(line))
    if condition := _CONDITION.search(line):
      loops.append((name, condition[1], line))
    else:
      calls[name] += [(called, 1) for called in _CALLED.findall(line)]
    if op := _OP.search(line):
      shapes = [_bytes(*shape) for shape in _SHAPE.findall(op[1])]
      if op[3] and op[2] != "all-reduce":
        # Asynchronous ones return operands, results and then scalars.
        arrays = [size for size in shapes if size > _SCALAR]
        shapes = arrays[len(arrays) // 2 :]
      own[name].append((op[2], sum(shapes)))
  for name, condition, line in loops:
    known = [int(n) for n in _TRIPS.findall(line)] or limits[condition]
    trips = known[0] if len(known) == 1 else 1
    calls[name] += [(called, trips) for called in _CALLED.findall(line)]
  return own, calls, entry


def _bytes(dtype, dims):
  number = re.search(r"\d+", dtype)
  bits = 8 if dtype == "pred" or dtype.startswith("f8") else int(number[0])
  return math.prod(int(d) for d in dims.split(",") if d) * bits // 8
