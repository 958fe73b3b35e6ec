"""Preprocessing strings: `decode|resize(256)|flip_lr|keep("image", "label")`.

`make` turns a string into a function. The string is parsed, never evaluated:
op names come from the table below, arguments are literals, and both are
checked when the config is read. Empty ops (`a||b`) are skipped, so a config may
leave one out by formatting in an empty string.

Your own ops go into a module with a table `OPS`, which a config names in
`config.pp_modules = ["mypkg.ops"]`; see `op` for what an op is:

    from input_pipeline.pp import op


    @op.on_key
    def invert(top: int = 255):
      return lambda image: top - image


    OPS = {"invert": invert}
"""

import ast
import inspect
import re
from collections.abc import Sequence

import numpy as np

from dpn import errors, registry
from input_pipeline.pp import (
  lazy_image,
  op,
  ops_deit,
  ops_general,
  ops_image,
  ops_randaug,
  ops_timm,
  ops_vtab,
)

OPS = {
  **ops_general.OPS,
  **ops_image.OPS,
  **ops_randaug.OPS,
  **ops_deit.OPS,
  **ops_timm.OPS,
  **ops_vtab.OPS,
}
# big_vision's modules, whose ops are always there.
_BUILT_IN = ("archive.randaug", "ops_general", "ops_image", "ops_text")
_added = []

_PREFIX = "_|"
# Strings, and bars with no op before the next one or the end.
_EMPTY_OP = re.compile(r"""'[^']*'|"[^"]*"|\|(?=[\s|]*(?:\||$))""")


def add_modules(modules: Sequence[str]):
  """Makes the ops of `config.pp_modules` known to every string from now on.

  Args:
    modules: importable names; each has a table `OPS` of factories by name.

  Raises:
    ValueError: there is no such module, it has no `OPS`, or an op of that name
      is there already.
  """
  for module in modules:
    if module in _BUILT_IN or module in _added:
      continue
    ops = registry.import_path("pp_modules", f"{module}:OPS")
    if taken := sorted(ops.keys() & OPS.keys()):
      raise ValueError(
        f"pp_modules: {module} defines {', '.join(taken)}, which exist "
        "already. Choose other names."
      )
    OPS.update(ops)
    _added.append(module)


def make(spec: str | None, modules: Sequence[str] = ()) -> "Preprocess":
  """Returns the function that `spec` describes.

  Args:
    spec: ops joined by `|`, each a name or a call with literal arguments; None
      or an empty string is the identity.
    modules: where to find more ops, see `add_modules`.

  Raises:
    ValueError: the string cannot be parsed, an op is unknown, or its arguments
      do not fit; the message shows where.
  """
  add_modules(modules)
  return Preprocess(spec or "")


class Preprocess:
  """A function of (example, generator); pickles as its string."""

  def __init__(self, spec: str):
    self.spec = spec
    self._ops = []
    self._ends_lazy = False  # Only ops that take lazy images return them.
    for node in _split(spec):
      takes_lazy, fn = _build(node, spec)
      needs_pixels = self._ends_lazy and not takes_lazy
      self._ops.append((ast.unparse(node), needs_pixels, fn))
      self._ends_lazy = takes_lazy

  def __call__(
    self, example: op.Example, rng: np.random.Generator
  ) -> op.Example:
    """Returns the processed example; the one given is left as it is.

    Raises:
      ValueError: an op failed; the message names it and what it was given.
    """
    example = dict(example)
    for text, needs_pixels, fn in self._ops:
      try:
        if needs_pixels:
          example = _materialize(example)
        example = fn(example, rng)
      except Exception as error:
        raise ValueError(
          f"Preprocessing op {text} failed on {_summary(example)}: {error}"
          f"{_hint(text, example)}"
        ) from error
    return _materialize(example) if self._ends_lazy else example

  def __reduce__(self):
    return make, (self.spec, tuple(_added))

  def __repr__(self):
    return f"pp.make({self.spec!r})"


def _materialize(example):
  return {key: lazy_image.materialize(x) for key, x in example.items()}


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
  """Returns `spec` on one line, bars that join nothing replaced by blanks."""
  blank = lambda match: match[0] if len(match[0]) > 1 else " "
  text = _EMPTY_OP.sub(blank, re.sub(r"[\r\n]", " ", spec))
  first = len(text) - len(text.lstrip("| \t"))
  return " " * first + text[first:]


def _build(node: ast.expr, spec: str) -> tuple[bool, op.Op]:
  """Returns whether an op takes lazy images, and the op."""
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
    takes_lazy = getattr(OPS[name], "takes_lazy", False)
    return takes_lazy, OPS[name](*args, **kwargs)
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
    elif isinstance(value, lazy_image.LazyImage):
      parts.append(f"{key}: image {value.shape}")
    elif isinstance(value, bytes):
      parts.append(f"{key}: {len(value)} bytes")
    else:
      parts.append(f"{key}: {type(value).__name__}")
  return "{" + ", ".join(parts) + "}"
