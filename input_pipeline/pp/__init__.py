"""Preprocessing strings: `decode|resize(256)|flip_lr|keep("image", "label")`.

`make` turns a string into a function. The string is parsed, never evaluated:
op names come from the table below, arguments are literals, and both are
checked when the config is read. Empty ops (`a||b`) are skipped, so a config may
leave one out by formatting in an empty string.
"""

import ast
import inspect
import io
import tokenize

import numpy as np

from dpn import errors
from input_pipeline.pp import (
  op,
  ops_deit,
  ops_general,
  ops_image,
  ops_randaug,
  ops_timm,
  ops_vtab,
  pending,
)

_PREFIX = "_|"

OPS = {
  **ops_general.OPS,
  **ops_image.OPS,
  **ops_randaug.OPS,
  **ops_deit.OPS,
  **ops_timm.OPS,
  **ops_vtab.OPS,
}


def make(spec: str | None) -> "Preprocess":
  """Returns the function that `spec` describes.

  Args:
    spec: ops joined by `|`, each a name or a call with literal arguments; None
      or an empty string is the identity.

  Raises:
    ValueError: the string cannot be parsed, an op is unknown, or its arguments
      do not fit; the message shows where.
  """
  return Preprocess(spec or "")


class Preprocess:
  """A function of (example, generator); pickles as its string."""

  def __init__(self, spec: str):
    self.spec = spec
    self._ops = [
      (ast.unparse(node), _build(node, spec)) for node in _split(spec)
    ]
    self._steps = list(_with_pixels(self._ops))

  def __call__(
    self, example: op.Example, rng: np.random.Generator
  ) -> op.Example:
    """Returns the processed example; the one given is left as it is.

    Raises:
      ValueError: an op failed; the message names it and what it was given.
    """
    example = dict(example)
    for text, fn in self._steps:
      try:
        example = fn(example, rng)
      except Exception as error:
        raise ValueError(
          f"Preprocessing op {text} failed on {_summary(example)}: {error}"
          f"{_hint(text, example)}"
        ) from error
    return example

  def __reduce__(self):
    return make, (self.spec,)

  def __repr__(self):
    return f"pp.make({self.spec!r})"


def _with_pixels(ops):
  """Yields the ops; before those that need arrays, what computes them."""
  pending_from = None
  for text, fn in ops:
    name = text.partition("(")[0]
    if name in ops_image.GIVE_PENDING:
      pending_from = text
    elif pending_from and name not in ops_image.TAKE_PENDING:
      yield pending_from, _compute
      pending_from = None
    yield text, fn
  if pending_from:
    yield pending_from, _compute


def _compute(example, _):
  return {key: pending.whole(value) for key, value in example.items()}


def _split(spec: str) -> list[ast.expr]:
  """Returns the syntax tree of each op, in order."""
  text = _without_empty_ops(spec)
  if not text.strip():
    return []
  try:
    # The prefix keeps leading blanks from counting as indentation.
    node = ast.parse(f"{_PREFIX}{text}", mode="eval").body
  except SyntaxError as error:
    column = max((error.offset or 0) - 1 - len(_PREFIX), 0)
    raise _error(spec, f"Syntax error: {error.msg}.", column) from None
  except (MemoryError, RecursionError):
    raise _error(spec, "The string is nested too deeply.", 0) from None
  ops = []
  while isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
    ops.append(node.right)
    node = node.left
  if not isinstance(node, ast.Name):
    raise _error(spec, "Expected ops joined by |, and nothing else.", 0)
  return ops[::-1]


def _without_empty_ops(spec: str) -> str:
  """Returns `spec` on one line, every bar that joins nothing made a blank."""
  chars = [" " if c in "\r\n" else c for c in spec]
  text = f"({''.join(chars)})"
  depth, bar, after_op = 0, None, False
  try:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
      depth += (token.string in "([{") - (token.string in ")]}")
      if depth == 0:
        break
      if token.string == "|" and depth == 1:
        column = token.start[1] - 1
        if after_op:
          bar, after_op = column, False
        else:
          chars[column] = " "
      elif token.start[1] > 0:
        after_op = True
  except tokenize.TokenError:
    return "".join(chars)  # Parsing will say what is wrong, and where.
  if bar is not None and not after_op:
    chars[bar] = " "
  return "".join(chars)


def _build(node: ast.expr, spec: str) -> op.Op:
  """Returns the op that one call, or one name, asks for."""
  call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
  if not isinstance(call.func, ast.Name):
    raise _error(
      spec, "Expected an op: a name, or a call of a name.", _column(node, spec)
    )
  name = call.func.id
  if name not in OPS:
    raise _error(spec, errors.unknown("op", name, OPS), _column(node, spec))
  signature = inspect.signature(OPS[name])
  args = [_literal(arg, name, spec) for arg in call.args]
  kwargs = {}
  for keyword in call.keywords:
    if keyword.arg not in signature.parameters:
      message = errors.unknown(
        f"argument of {name}", keyword.arg, signature.parameters
      )
      raise _error(spec, message, _column(keyword, spec))
    kwargs[keyword.arg] = _literal(keyword.value, name, spec)
  try:
    signature.bind(*args, **kwargs)
    return OPS[name](*args, **kwargs)
  except (TypeError, ValueError) as error:
    message = f"{name}: {error} Signature: {name}{signature}."
    raise _error(spec, message, _column(node, spec)) from error


def _literal(node: ast.expr, name: str, spec: str):
  try:
    return ast.literal_eval(node)
  except (TypeError, ValueError):
    message = (
      f"The arguments of {name} must be literals (numbers, strings, None, "
      f"True, False, tuples or lists of them), got {ast.unparse(node)}."
    )
    raise _error(spec, message, _column(node, spec)) from None


def _column(node: ast.AST, spec: str) -> int:
  """Returns where `node` begins; the parser counts bytes."""
  before = spec.encode()[: node.col_offset - len(_PREFIX)]
  return len(before.decode())


def _error(spec: str, message: str, column: int) -> ValueError:
  line = spec.replace("\n", " ").replace("\r", " ")
  return ValueError(f"{message}\n  {line}\n  {' ' * column}^")


def _hint(text: str, example: op.Example) -> str:
  encoded = isinstance(example.get("image"), bytes)
  if encoded and not text.startswith("decode"):
    return " (The image is still encoded: put decode first.)"
  return ""


def _summary(example: op.Example) -> str:
  """Returns the keys of an example, with the shape or the kind of each."""
  parts = []
  for key, value in example.items():
    if isinstance(value, np.ndarray):
      parts.append(f"{key}: {value.dtype}{value.shape}")
    elif isinstance(value, pending.Pending):
      parts.append(f"{key}: image {value.shape}")
    elif isinstance(value, bytes):
      parts.append(f"{key}: {len(value)} bytes")
    else:
      parts.append(f"{key}: {type(value).__name__}")
  return "{" + ", ".join(parts) + "}"
