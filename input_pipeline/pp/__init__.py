"""Preprocessing strings: `decode|resize(256)|flip_lr|keep("image", "label")`.

`make` turns a string into a function, `describe` says what it does to images.
The string is parsed, never evaluated: op names come from the table below,
arguments are literals, and both are checked when the config is read. Empty ops
(`a||b`) are skipped, so a config may leave one out by formatting in an empty
string.

Your own ops go into a module with a table `OPS`, which a config names in
`config.pp_modules = ["mypkg.ops"]`; see `op`, and docs/extending.md.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpn import calls, registry, schema
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
  parser,
)

# All functions of these modules that are declared as ops, by name.
OPS = {
  name: factory
  for module in (
    *(ops_corrupt, ops_general, ops_image, ops_randaug),
    *(ops_segmentation, ops_text, ops_timm, ops_vtab),
  )
  for name, factory in vars(module).items()
  if hasattr(factory, "declared")
}
# big_vision's modules, whose ops are always there.
BUILT_IN = ("archive.randaug", "ops_general", "ops_image", "ops_text")
_added = []


def add_modules(modules: Sequence[str] | str):
  """Makes the ops of `config.pp_modules` known to every string from now on.

  Raises:
    ValueError: a module is not there, has no table `OPS` of factories by name,
      or defines an op that exists.
  """
  for module in [modules] if isinstance(modules, str) else modules:
    if module in BUILT_IN or module in _added:
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
  schema.check("preprocessing", "", spec, str | None)
  add_modules(modules)
  return Preprocess(spec or "")


def describe(spec: str) -> dict[str, Any]:
  """Returns what a string does to images; see `parser.describe`.

  No op is built, and unknown ones are no error: the string may come from a file
  that was written where more ops were known.
  """
  return parser.describe(parser.parse(spec, OPS, strict=False))


def replace(spec: str, name: str, text: str) -> str:
  """Returns a string with the op `name` replaced by `text`; "" drops it."""
  named = lambda step: step.partition("(")[0].rstrip() == name
  texts = (text if named(x) else x for x in calls.OP.findall(spec))
  return "|".join(filter(None, texts))


class Preprocess:
  """A function of (example, generator); pickles as its string.

  Attributes:
    spec: the string.
    steps: its ops, see `parser.Step`.
    geometry: the ops that decode, crop, resize and pad, with all arguments.
    vocabularies: the vocabularies of token ids, by the key that holds them.
  """

  def __init__(self, spec: str):
    self.spec = spec
    self.steps = parser.parse(spec, OPS)
    self._ops = []  # (text, function) of each
    self.vocabularies = {}
    lazy = [step.declared.lazy for step in self.steps]
    told = lambda s: s.declared.lazy or s.declared.kind not in ("", "normalize")
    self.geometry = "|".join(map(str, filter(told, self.steps)))
    for i, step in enumerate(self.steps):
      fn = step.make()
      self._ops.append((step.text, fn))
      # Only ops that take lazy images return them.
      if lazy[i] and not any(lazy[i + 1 : i + 2]):
        self._ops.append((step.text, _materialize))
      if vocabulary := getattr(fn, "vocabulary", None):
        self.vocabularies |= dict.fromkeys(step.writes, vocabulary)

  def __call__(
    self, example: op.Example, rng: np.random.Generator
  ) -> op.Example:
    """Returns the processed example; the one given is left as it is."""
    example = dict(example)
    for key, value in example.items():
      if isinstance(value, np.ndarray):
        # It may be the data set's own, so no op may write to it.
        value = example[key] = value.view()
        value.setflags(write=False)
    for text, fn in self._ops:
      try:
        example = fn(example, rng)
      except Exception as error:
        given = ", ".join(f"{k}: {_kind(v)}" for k, v in example.items())
        message = f"Preprocessing op {text} failed on {{{given}}}: {error}"
        encoded = isinstance(example.get("image"), bytes)
        if encoded and not re.match(r"decode(_jpeg|\W|$)", text):
          message += " (The image is still encoded: put decode first.)"
        if re.search("read-?only", str(error)):
          message += " (It may be the data set's: let the op change a copy.)"
        raise ValueError(message) from error
    return example

  def onehot_of_source(self) -> tuple[str, int] | None:
    """Returns key and number of classes of the first op that reads a label.

    None if there is none, or if an op before it may change the label.
    """
    for i, step in enumerate(self.steps):
      if classes := step.args.get(step.declared.classes):
        unchanged = not any(s.may_write(step.reads) for s in self.steps[:i])
        return (step.reads, classes) if unchanged else None
    return None

  def leaves(self, key: str) -> bool:
    """Returns whether it is certain that no op changes the value at `key`."""
    return not any(step.may_write(key) for step in self.steps)

  def __reduce__(self):
    return make, (self.spec, tuple(_added))


def _materialize(example, _):
  return {key: lazy_image.materialize(x) for key, x in example.items()}


def _kind(value) -> str:
  """Returns the shape of a value, or its type."""
  if isinstance(value, np.ndarray | lazy_image.LazyImage):
    return f"{getattr(value, 'dtype', 'image ')}{value.shape}"
  if isinstance(value, bytes):
    return f"{len(value)} bytes"
  return type(value).__name__
