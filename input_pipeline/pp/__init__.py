"""Preprocessing strings: `decode|resize(256)|flip_lr|keep("image", "label")`.

`make` turns a string into a function. The string is parsed, never evaluated:
op names come from the table below, arguments are literals, and both are
checked when the config is read. Empty ops (`a||b`) are skipped, so a config may
leave one out by formatting in an empty string.

Your own ops go into a module with a table `OPS`, which a config names in
`config.pp_modules = ["mypkg.ops"]`; see `op`, and docs/extending.md.
"""

import ast
import inspect
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dpn import calls, errors, registry
from dpn.input_pipeline.pp import (
  lazy_image,
  op,
  ops_corrupt,
  ops_general,
  ops_image,
  ops_randaug,
  ops_segmentation,
  ops_text,
  ops_timm,
  ops_vtab,
)

OPS = {
  factory.__name__: factory
  for factory in (
    ops_corrupt.corrupt,
    ops_general.choice,
    ops_general.copy,
    ops_general.drop,
    ops_general.flatten,
    ops_general.keep,
    ops_general.onehot,
    ops_general.pad_to_shape,
    ops_general.squeeze_last_dim,
    ops_general.value_range,
    ops_image.central_crop,
    ops_image.decode,
    ops_image.decode_jpeg_and_inception_crop,
    ops_image.flip_lr,
    ops_image.inception_crop,
    ops_image.random_crop,
    ops_image.resize,
    ops_image.resize_long,
    ops_image.resize_small,
    ops_image.vgg_value_range,
    ops_randaug.randaug,
    ops_segmentation.decode_labels,
    ops_segmentation.flip_with_mask,
    ops_segmentation.photometric_distortion,
    ops_segmentation.random_crop_with_mask,
    ops_segmentation.random_resize_with_mask,
    ops_text.bert_tokenize,
    ops_text.coco_captions,
    ops_text.lower,
    ops_text.prompt,
    ops_text.tokenize,
    ops_timm.color_jitter,
    ops_timm.random_erasing,
    ops_timm.three_augment,
    ops_timm.rand_augment,
    ops_vtab.bin_label,
    ops_vtab.clevr_count,
    ops_vtab.clevr_distance,
    ops_vtab.kitti_distance,
  )
}
# big_vision's modules, whose ops are always there.
_BUILT_IN = ("archive.randaug", "ops_general", "ops_image", "ops_text")
_added = []


def add_modules(modules: Sequence[str] | str):
  """Makes the ops of `config.pp_modules` known to every string from now on.

  Raises:
    ValueError: a module is not there, has no table `OPS` of factories by name,
      or defines an op that exists.
  """
  for module in [modules] if isinstance(modules, str) else modules:
    if module in _BUILT_IN or module in _added:
      continue
    ops = registry.import_path("pp_modules", f"{module}:OPS")
    if not isinstance(ops, Mapping):
      raise ValueError(
        f"pp_modules: OPS of {module} must be a dictionary, from names of ops "
        f"to their factories, got {type(ops).__name__}."
      )
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
  """A function of (example, generator); pickles as its string.

  Attributes:
    spec: the string.
    geometry: of it, what decodes, crops and resizes, with all arguments.
  """

  def __init__(self, spec: str):
    self.spec = spec
    self._ops = []  # (text, function) of each
    ops = [_build(op) for op in calls.OP.finditer(re.sub(r"[\r\n]", " ", spec))]
    self.geometry = "|".join(op.whole for op in ops if op.lazy)
    for built, following in itertools.zip_longest(ops, ops[1:]):
      self._ops.append((built.text, built.fn))
      # Only ops that take lazy images return them.
      if built.lazy and not (following and following.lazy):
        self._ops.append((built.text, _materialize))

  def __call__(
    self, example: op.Example, rng: np.random.Generator
  ) -> op.Example:
    """Returns the processed example; the one given is left as it is."""
    example = dict(example)
    for key, value in example.items():
      if isinstance(value, np.ndarray):
        # The data set's own, perhaps: no op may write to it.
        value = example[key] = value.view()
        value.setflags(write=False)
    for text, fn in self._ops:
      try:
        example = fn(example, rng)
      except Exception as error:
        given = ", ".join(f"{k}: {_describe(v)}" for k, v in example.items())
        message = f"Preprocessing op {text} failed on {{{given}}}: {error}"
        encoded = isinstance(example.get("image"), bytes)
        if encoded and not re.match(r"decode(_jpeg|\W|$)", text):
          message += " (The image is still encoded: put decode first.)"
        if re.search("read-?only", str(error)):
          message += " (It may be the data set's: let the op change a copy.)"
        raise ValueError(message) from error
    return example

  def onehot_of_source(self) -> tuple[str, int] | None:
    """Returns key and depth of the onehot that reads a label of the source.

    None if there is none, or if an op before it may change the label.
    """
    for i, (_, fn) in enumerate(self._ops):
      if reads := getattr(fn, "reads", None):
        return reads if _leave(self._ops[:i], reads[0]) else None
    return None

  def leaves(self, key: str) -> bool:
    """Returns whether surely no op changes the value at `key`."""
    return _leave(self._ops, key)

  @property
  def vocabularies(self) -> dict[str, ops_text.Vocabulary]:
    """What token ids are from, by the key that holds them."""
    return dict(fn.makes for _, fn in self._ops if hasattr(fn, "makes"))

  def __reduce__(self):
    return make, (self.spec, tuple(_added))


def _leave(ops, key):
  """Returns whether surely no op changes the value at `key`.

  One of VTAB's or of your own might, and one that names the key, but `keep`.
  """
  own = lambda module: not module.startswith(__name__)
  return not any(
    own(fn.__module__)
    or fn.__module__ == ops_vtab.__name__
    or (key in text and not re.match(r"keep\b", text))
    for text, fn in ops
  )


def _materialize(example, _):
  return {key: lazy_image.materialize(x) for key, x in example.items()}


def _describe(value) -> str:
  """Returns the shape of a value, or its kind."""
  if isinstance(value, np.ndarray | lazy_image.LazyImage):
    return f"{getattr(value, 'dtype', 'image ')}{value.shape}"
  if isinstance(value, bytes):
    return f"{len(value)} bytes"
  return type(value).__name__


class _Built(NamedTuple):
  """An op of a string."""

  text: str  # as written
  whole: str  # with all arguments but keys
  fn: op.Op
  lazy: bool  # whether it takes lazy images


def _build(match: re.Match) -> _Built:
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
  if name not in OPS:
    raise _error(match, errors.unknown("op", name, OPS))
  signature = inspect.signature(OPS[name])
  known = signature.parameters
  for keyword in call.keywords:
    if keyword.arg not in known:
      message = errors.unknown(f"argument of {name}", keyword.arg, known)
      raise _error(match, message, keyword)
  args = [_literal(match, arg) for arg in call.args]
  kwargs = {k.arg: _literal(match, k.value) for k in call.keywords}
  try:
    bound = signature.bind(*args, **kwargs)
    fn = OPS[name](*args, **kwargs)
  except (TypeError, ValueError) as error:
    message = f"{name}: {error} Signature: {name}{signature}."
    raise _error(match, message) from error
  bound.apply_defaults()
  shown = (f"{k}={v!r}" for k, v in bound.arguments.items() if "key" not in k)
  whole = f"{name}({', '.join(shown)})"
  return _Built(text, whole, fn, hasattr(OPS[name], "takes_lazy"))


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
