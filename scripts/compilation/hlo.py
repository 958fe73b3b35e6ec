"""Reads from its text what a compiled program does.

The compiler's own cost_analysis counts the body of a loop once, so a step with
scanned blocks seems to be one block deep; here the body counts as often as the
loop runs.
"""

import collections
import dataclasses
import functools
import math
import re
import sys
from collections.abc import Iterator

import numpy as np

KINDS = (
  *("all-reduce", "all-gather", "reduce-scatter", "all-to-all"),
  "collective-permute",
)
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+)\s.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.+?) ([\w\-]+)\(")
_SHAPE = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_CALLED = re.compile(
  r"\b(?:body|to_apply|calls|\w+_computation|branch_computations)="
  r"(\{.*?\}|%?[\w.\-]+)"
)
_SCALAR = 4  # bytes
# Neither read nor write memory by themselves.
_FREE = {
  *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while"),
  *("call", "conditional", "after-all", "partition-id", "replica-id"),
  *("async-start", "async-update", "opt-barrier", "iota"),
}
_CONTROL = {"while", "call", "conditional", "async-start"}
_SLICES = ("dynamic-slice", "slice", "slice-start")


@dataclasses.dataclass(frozen=True)
class Traffic:
  """How often a kind of collective runs in a step, and bytes on a device.

  Attributes:
    count: how often.
    size: bytes of its results.
    sent: bytes that a device sends at least, see `_sent`.
  """

  count: int
  size: int
  sent: float


@dataclasses.dataclass(frozen=True)
class Array:
  """An array as the compiler lays it out."""

  dtype: str
  dims: tuple[int, ...]
  layout: str  # from minor to major, tiles, memory space: "1,0:T(8,128)S(1)"

  @property
  def size(self) -> int:
    """Bytes without padding."""
    return math.prod(self.dims) * (_bits(self.dtype) or 8) // 8

  @property
  def in_hbm(self) -> int:
    """Bytes that it takes in HBM, 0 if it lies elsewhere."""
    # S(1) is a memory on the chip, S(5) the host's.
    return 0 if "S(" in self.layout else self.padded

  @property
  def padded(self) -> int:
    """Bytes with the padding of its tiles."""
    order, _, rest = self.layout.partition(":")
    tile = re.match(r"T\(([\d,]+)\)", rest)
    if not tile or not self.dims:
      return self.size
    padded, minor = list(self.dims), [int(i) for i in order.split(",")]
    for length, i in zip(reversed(tile[1].split(",")), minor, strict=False):
      padded[i] = math.ceil(padded[i] / int(length)) * int(length)
    return self.size * math.prod(padded) // (math.prod(self.dims) or 1)


@dataclasses.dataclass(frozen=True)
class Instruction:
  """A line of a computation."""

  name: str
  op: str
  arrays: tuple[Array, ...]  # of its result, in order
  operands: tuple[str, ...]  # their names
  called: tuple[str, ...]  # names of computations
  line: str
  root: bool

  def attribute(self, pattern: str) -> str:
    """Returns what a regex's group finds in its attributes, "" if nothing."""
    found = re.search(pattern, self.line)
    return found[1] if found else ""

  @functools.cached_property
  def hbm(self) -> int:
    return sum(array.in_hbm for array in self.arrays)


class Program:
  """A module of HLO: its computations, and how often each of them runs.

  A loop runs as often as the program says, or else as its condition says if it
  compares a counter that starts at 0 with one constant, as a scan does, or else
  once. Each branch of a conditional counts.
  """

  def __init__(self, text: str):
    self._in: dict[str, dict[str, Instruction]] = {}
    count = re.search(r"\bnum_(?:partitions|replicas)=(\d+)", text)
    self._devices = int(count[1]) if count else 1
    entry, own = "", {}
    for line in text.splitlines():
      if start := _COMPUTATION.match(line):
        own = self._in[start[2]] = {}
        entry = start[2] if start[1] else entry
      elif found := _instruction(line):
        own[found.name] = found
    self._times, self._runs = collections.Counter(), set()
    self._visit(entry, 1, True)

  def _visit(self, name, times, runs):
    """Counts a computation; `runs` unless it is part of one operation."""
    self._times[name] += times
    if runs:
      self._runs.add(name)
    for i in self._in[name].values():
      trips = self._trips(i) if i.op == "while" else 1
      for called in i.called:
        self._visit(called, times * trips, runs and i.op in _CONTROL)

  def _trips(self, loop):
    if known := loop.attribute(r'known_trip_count":\{"n":"(\d+)"'):
      return int(known)
    condition = self._in[loop.attribute(r"condition=%?([\w.\-]+)")]
    numbers = map(_integer, condition.values())
    limits = [number for number in numbers if number is not None]
    stride = self._stride(loop, condition)
    return math.ceil(limits[0] / stride) if len(limits) == 1 else 1

  def _stride(self, loop, condition):
    """Returns by how much a loop's counter grows, 1 if that cannot be told."""
    counter = [i for i in condition.values() if i.op == "get-tuple-element"]
    body = self._in[loop.attribute(r"body=%?([\w.\-]+)")]
    root = next((i for i in body.values() if i.root), None)
    if len(counter) != 1 or not root or root.op != "tuple":
      return 1
    grown = body[root.operands[int(counter[0].attribute(r"index=(\d+)"))]]
    numbers = (_integer(body[x]) for x in grown.operands if x in body)
    return next(filter(None, numbers), 1) if grown.op == "add" else 1

  def instructions(self) -> Iterator[tuple[str, Instruction, int]]:
    """Yields (computation, instruction, how often it runs in a step)."""
    for name, times in self._times.items():
      for instruction in self._in[name].values():
        yield name, instruction, times

  def collectives(self) -> dict[str, Traffic]:
    """Returns its collectives by kind."""
    found, known = collections.defaultdict(lambda: [0, 0, 0.0]), set()
    for name, i, times in self.instructions():
      # On TPUs, a collective that overlaps fusions is in each of them.
      channel = i.attribute(r"channel_id=(\d+)")
      if name not in self._runs and channel and i.op in KINDS:
        if channel in known:
          continue
        known.add(channel)
      if (kind := i.op.removesuffix("-start")) in KINDS:
        sizes = [array.size for array in i.arrays]
        if kind != i.op and kind != "all-reduce":
          # Asynchronous ones return operands, results and then scalars.
          sizes = [size for size in sizes if size > _SCALAR]
          sizes = sizes[len(sizes) // 2 :]
        group, size = _group(i) or self._devices, sum(sizes)
        if name.startswith("all-reduce-scatter"):  # a TPU's, fused
          kind, size = "reduce-scatter", size // group
        more = 1, size, _sent(kind, size, group)
        found[kind] = [
          x + times * y for x, y in zip(found[kind], more, strict=True)
        ]
    return {kind: Traffic(*found[kind]) for kind in KINDS if kind in found}

  def flops(self) -> collections.Counter[str]:
    """Returns the FLOPs of matrix products and convolutions, by their dtype."""
    found = collections.Counter()
    for name, i, times in self.instructions():
      if i.op in ("dot", "convolution") or "matmul" in i.attribute(
        r'custom_call_target="([^"]*)'
      ):
        of = [self._in[name][x].arrays[0] for x in i.operands[:2]]
        count = _convolution if i.op == "convolution" else _dot
        widest = max((array.dtype for array in of), key=_bits)
        found[widest] += times * count(i, *of)
    return found

  def hbm(self) -> Iterator[tuple[Instruction, int]]:
    """Yields (instruction, bytes that it moves from and to HBM in a step).

    The padding of tiles counts. What the compiler keeps in on-chip memory moves
    nothing; of arrays that are sliced, or updated in place, the part counts.
    """
    for name, i, times in self.instructions():
      if name in self._runs and (moved := self._moved(self._in[name], i)):
        yield i, times * moved

  def _moved(self, own, i):
    if i.op in _FREE or i.op.endswith("-done"):
      return 0
    if i.op == "copy-start":  # its result names both ends
      return i.hbm
    if i.op == "slice-start":
      part = i.arrays[1]
      return part.in_hbm + (part.padded if i.arrays[0].in_hbm else 0)
    if i.op.endswith("-start") and i.op != "all-reduce-start":
      return i.hbm
    if i.attribute(r'target="(AllocateBuffer|ConcatBitcast)'):
      return 0
    reads = sum(self._read(own, i, at) for at in range(len(i.operands)))
    return reads + self._written(own, i)

  def _read(self, own, i, at):
    """Returns the bytes of an operand that an instruction reads."""
    source = own.get(i.operands[at])
    if source is None or not source.hbm:
      return 0
    if i.op in _SLICES:
      return i.arrays[-1].padded
    if i.op == "dynamic-update-slice" and at == 0:
      return 0
    if i.op == "fusion":
      return min(source.hbm, self._used(i.called[0], at))
    return source.hbm

  def _used(self, name, at):
    """Returns the bytes of a parameter that a fused computation uses."""
    own, total = self._in[name], 0
    [start] = (
      i for i in own.values() if f" parameter({at})" in i.line.split(", ")[0]
    )
    same = [start]
    for alias in same:  # grows on the way
      for i in own.values():
        for place, operand in enumerate(i.operands):
          if operand != alias.name:
            continue
          if i.op == "bitcast":
            same.append(i)
          elif i.op == "fusion":
            total += self._used(i.called[0], place)
          elif i.op in _SLICES:
            total += i.arrays[-1].padded
          elif i.op != "dynamic-update-slice" or place:
            return sys.maxsize  # all of it
    return total

  def _written(self, own, i):
    """Returns the bytes of HBM that an instruction writes."""
    if i.op == "fusion":
      own = self._in[i.called[0]]
      [root] = (x for x in own.values() if x.root)
      parts = [own[x] for x in root.operands] if root.op == "tuple" else [root]
      pairs = zip(i.arrays, parts, strict=False)
      return sum(self._updated(own, part, a.in_hbm) for a, part in pairs)
    return self._updated(own, i, i.hbm)

  def _updated(self, own, i, whole):
    while i.op == "bitcast":
      i = own[i.operands[0]]
    if whole and i.op == "dynamic-update-slice":
      return min(whole, own[i.operands[1]].arrays[0].padded)
    if whole and i.op == "fusion" and len(i.arrays) == 1:
      return min(whole, self._written(own, i))
    return whole


def _integer(i):
  """Returns the value of an integer constant, None for other instructions."""
  value = i.attribute(r"= [su]32\[\]\S* constant\((\d+)\)")
  return int(value) if value else None


def _instruction(line):
  """Returns an `Instruction`, None for other lines."""
  if not (start := _INSTRUCTION.match(line)):
    return None
  depth, end = 1, start.end()
  while depth and end < len(line):
    depth += {"(": 1, ")": -1}.get(line[end], 0)
    end += 1
  arrays = (
    Array(dtype, tuple(int(d) for d in dims.split(",") if d), layout)
    for dtype, dims, layout in _SHAPE.findall(start[3])
  )
  if re.search(r'custom_call_target="__cublas', line):
    arrays = (a for a in arrays if a.dtype != "s8")  # its workspace
  called = " ".join(_CALLED.findall(line[end:]))
  return Instruction(
    name=start[2],
    op=start[4],
    arrays=tuple(arrays),
    operands=tuple(re.findall(r"%([\w.\-]+)", line[start.end() : end])),
    called=tuple(re.findall(r"[\w.\-]+", called)),
    line=line,
    root=bool(start[1]),
  )


def _group(i):
  """Returns how many devices a collective spans, 0 for all there are."""
  text = i.attribute(
    r"replica_groups=(mesh\[.*?\][^{]*\{[^}]*|\S+?\]|\{\{[\d,]*)"
  )
  if text.startswith("mesh"):  # mesh['a'=4,'b'=2] {'b'}
    sizes, axes = text.split("{")
    sizes = dict(re.findall(r"('\w+')=(\d+)", sizes))
    return math.prod(int(sizes[x]) for x in re.findall(r"'\w+'", axes))
  numbers = re.findall(r"\d+", text)
  if text.startswith("["):  # [groups, devices of each]<=[…]
    return int(numbers[1])
  return len(numbers)  # of the first group, {{0,1},{2,3}}


def _sent(kind, size, group):
  """Returns the bytes a device sends, by the bytes of a collective's result.

  On a ring of n devices an all-reduce sends 2 (n - 1) / n of its bytes, others
  (n - 1) / n; the result of a reduce-scatter is an nth of its operand.
  """
  if kind == "collective-permute":
    return size
  factor = {"all-reduce": 2, "reduce-scatter": group}.get(kind, 1)
  return size * factor * (group - 1) / group


def _bits(dtype):
  return int((re.search(r"\d+", dtype) or [0])[0])


def _dot(i, lhs, rhs):
  del rhs
  contracted = i.attribute(r"lhs_contracting_dim\w+\"?[=:][\[{]([\d,\"]*)")
  axes = [int(axis) for axis in re.findall(r"\d+", contracted)]
  return 2 * math.prod(i.arrays[0].dims) * math.prod(lhs.dims[a] for a in axes)


def _convolution(i, lhs, rhs):
  """Returns the FLOPs without multiplications by padding.

  TPUs turn every matrix product into a convolution, in which batches are
  spatial dimensions and most multiplications would be by padding.
  """
  labels = i.attribute(r"dim_labels=([\w>\-]+)")
  of_lhs, of_rhs, of_out = re.split(r"_|->", labels)
  out = i.arrays[0]
  size = i.attribute(r"window=\{[^}]*?\bsize=([\dx]+)").split("x")
  window = {
    key: i.attribute(rf"window=\{{[^}}]*?\b{key}=([\dx_\-]+)").split("x")
    for key in ("stride", "pad", "lhs_dilate", "rhs_dilate")
  }
  pairs = 1
  for axis in range(len(of_out) - 2):
    at = lambda key, axis=axis: int((window[key][axis:] or [""])[0] or 1)
    low = window["pad"][axis].split("_")[0] if window["pad"][0] else 0
    reach = (lhs.dims[of_lhs.index(str(axis))] - 1) * at("lhs_dilate")
    place = np.add.outer(  # in the padded and dilated image: (outputs, taps)
      np.arange(out.dims[of_out.index(str(axis))]) * at("stride") - int(low),
      np.arange(int(size[axis])) * at("rhs_dilate"),
    )
    hit = (place >= 0) & (place <= reach) & (place % at("lhs_dilate") == 0)
    pairs *= int(hit.sum())
  batch, features = (out.dims[of_out.index(x)] for x in "bf")
  return 2 * batch * features * rhs.dims[of_rhs.index("i")] * pairs
