"""Parses preprocessing strings, and answers what they do to images.

Strings are parsed, never evaluated: op names come from a table, and arguments
are literals. What an op does is what it declares, see `op.Declaration`.
"""

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dpn import calls, errors
from dpn.input_pipeline.pp import op

Size = tuple[int, int]  # rows and cols, in pixels


class Step(NamedTuple):
  """An op of a string."""

  text: str  # as written
  name: str  # of the op
  given: Mapping[str, Any]  # the arguments written, by name
  args: Mapping[str, Any]  # `given`, and the defaults of all others
  declared: op.Declaration  # what the op does
  make: Callable[[], op.Op] | None  # returns the op

  @property
  def reads(self) -> str | None:
    """The key it reads, None if its arguments do not tell."""
    return self.args.get("key") or self.args.get("inkey")

  @property
  def writes(self) -> Sequence[str] | None:
    """The keys it may change; None if that may be any."""
    keys = self.declared.writes
    if callable(keys):
      keys = keys(**self.args)
    elif keys is None:
      names = ("key_result", "key", "outkey")
      keys = next(filter(None, map(self.args.get, names)), None)
    return (keys,) if isinstance(keys, str) else keys

  def may_write(self, key: str) -> bool:
    return self.writes is None or key in self.writes

  def __str__(self):
    """The op with all arguments but keys."""
    shown = (f"{k}={v!r}" for k, v in self.args.items() if "key" not in k)
    return f"{self.name}({', '.join(shown)})"


def parse(
  spec: str, table: Mapping[str, Callable], strict: bool = True
) -> list[Step]:
  """Returns the ops of a string; empty ones (`a||b`) are skipped.

  Args:
    spec: the string.
    table: factories of ops by name.
    strict: whether all ops must be known. If not, what cannot be parsed is left
      out, and nothing is known about ops that are not in the table.

  Raises:
    ValueError: the message points at the op, or the argument, that is wrong.
  """
  steps = []
  for match in calls.OP.finditer(re.sub(r"[\r\n]", " ", spec)):
    try:
      steps.append(_step(match, table, strict))
    except ValueError:
      if strict:
        raise
  return steps


def _step(match: re.Match, table, strict) -> Step:
  text = match[0].rstrip()
  try:
    node = ast.parse(text, mode="eval").body
  except SyntaxError as error:
    column = max((error.offset or 0) - 1, 0)
    raise _error(match, f"Syntax error: {error.msg}.", column) from None
  except (MemoryError, RecursionError):
    raise _error(match, "The string is nested too deeply.") from None
  call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
  if not isinstance(call.func, ast.Name):
    raise _error(match, "Expected an op: a name, or a call of a name.")
  name = call.func.id
  if name not in table and strict:
    raise _error(match, errors.unknown("op", name, table))
  args = [_literal(match, arg) for arg in call.args]
  kwargs = {k.arg: _literal(match, k.value) for k in call.keywords}
  if name not in table:
    return Step(text, name, kwargs, kwargs, op.Declaration(), None)
  factory = table[name]
  signature = inspect.signature(factory)
  known = signature.parameters
  for keyword in call.keywords:
    if keyword.arg not in known:
      message = errors.unknown(f"argument of {name}", keyword.arg, known)
      raise _error(match, message, keyword)

  def attempt(function):
    try:
      return function(*args, **kwargs)
    except (TypeError, ValueError) as error:
      message = f"{name}: {error} Signature: {name}{signature}."
      raise _error(match, message) from error

  bound = attempt(signature.bind)
  given = dict(bound.arguments)
  bound.apply_defaults()
  declared = getattr(factory, "declared", op.Declaration())
  make = lambda: attempt(factory)
  return Step(text, name, given, bound.arguments, declared, make)


def _literal(match: re.Match, node: ast.expr):
  try:
    return ast.literal_eval(node)
  except (TypeError, ValueError):
    message = (
      "Arguments must be literals (numbers, strings, None, True, False, tuples "
      f"or lists of them), got {ast.get_source_segment(match[0], node)}."
    )
    raise _error(match, message, node) from None


def _error(match: re.Match, message: str, at: ast.AST | int = 0) -> ValueError:
  """Returns an error that points at a column of an op, or at a node."""
  if isinstance(at, ast.AST):  # The parser counts bytes.
    at = len(match[0].encode()[: at.col_offset].decode())
  caret = " " * (match.start() + at) + "^"
  return ValueError(f"{message}\n  {match.string}\n  {caret}")


def describe(steps: Iterable[Step]) -> dict[str, Any]:
  """Returns what a string does to the value at "image", as JSON can hold it.

  - `image_ops`: the string without the ops that only change other keys.
  - `size`: (rows, cols) of the result, None if it varies.
  - `pixels`: mean and std by which the string normalizes pixels in [0, 1], None
    unless exactly one op normalizes.
  - `resized`: if images are only resized and then perhaps cropped at the
    centre, a dictionary with `size` (one number is the shorter side), `crop`,
    `method` and `antialias`; else None.
  """
  steps = [step for step in steps if step.may_write("image")]
  size, normalizers, others = None, [], []
  for step in steps:
    kind = step.declared.kind
    if kind == "normalize":
      normalizers.append(step)
    elif kind != "decode":
      others.append(step)
    given = step.args.get(step.declared.size)
    if kind == "central_crop" and given is None:
      size = size and (min(size),) * 2
    elif kind in ("crop", "central_crop", "pad", "resize"):
      size = _pair(given)
    elif kind in ("resize_shorter", "rescale"):
      size = None
  return {
    "image_ops": "|".join(step.text for step in steps),
    "size": size,
    "pixels": _pixels(normalizers),
    "resized": _resized(others),
  }


def _pair(size) -> Size | None:
  """Returns rows and cols of a size or a shape, None if they are open."""
  given = size[:2] if isinstance(size, list | tuple) else [size]
  whole = given and all(isinstance(x, int) for x in given)
  return (given[0], given[-1]) if whole else None


def _pixels(steps):
  if len(steps) != 1 or steps[0].declared.pixels is None:
    return None
  return steps[0].declared.pixels(**steps[0].args)


def _resized(steps):
  kinds = [step.declared.kind for step in steps]
  if kinds not in (
    ["resize"],
    ["resize", "central_crop"],
    ["resize_shorter", "central_crop"],
  ):
    return None
  resize, crop = steps[0], steps[-1]
  size, crop = (s.args.get(s.declared.size) for s in (resize, crop))
  size = _pair(size) if kinds[0] == "resize" else size
  if not size or not _pair(crop):
    return None
  return {
    "size": size,
    "crop": _pair(crop),
    "method": resize.args.get("method", "bilinear"),
    "antialias": resize.args.get("antialias", False),
  }
