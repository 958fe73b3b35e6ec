"""Looks up what a config names, and checks the options given to it.

A name is a key of one of our tables, such as `"dtn"`, or an import path,
`"package.module:attribute"`. Options are a dictionary, checked against the
signature: `norm="dtn", norm_kw={"cls": "layernorm"}`.
"""

import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from dpn import errors, schema


def lookup(kind: str, name: str, table: Mapping[str, Any]) -> Any:
  """Returns `table[name]`, or what the import path `name` stands for.

  `kind` says in messages what is being chosen, such as "norm". ValueError where
  there is no such name, module or attribute.
  """
  if not isinstance(name, str):
    raise ValueError(f"{kind} must be a name, got {name!r}.")
  if ":" in name:
    return import_path(kind, name)
  if name not in table:
    raise ValueError(
      f"{errors.unknown(kind, name, table)} Or an import path of your own, "
      "'package.module:attribute'."
    )
  return table[name]


def import_path(kind: str, path: str) -> Any:
  """Returns the object at "package.module:attribute"; ValueError if none is."""
  module_name, _, attribute = path.partition(":")
  try:
    module = importlib.import_module(module_name)
  except ModuleNotFoundError as e:
    if not f"{module_name}.".startswith(f"{e.name}."):
      raise  # the module is there, but what it imports is not
    raise ValueError(
      f"{kind}={path!r}: there is no module {e.name!r}. Install it, or start "
      "Python where it lies (or add that folder to PYTHONPATH)."
    ) from e
  if not hasattr(module, attribute):
    public = [name for name in vars(module) if not name.startswith("_")]
    raise ValueError(
      f"{kind}={path!r}: {errors.unknown('attribute', attribute, public)}"
    )
  return getattr(module, attribute)


def bind(
  kind: str,
  name: str,
  table: Mapping[str, Callable],
  kw: Mapping[str, Any] | None = None,
) -> functools.partial:
  """Returns what `name` stands for with the options `kw` bound to it.

  Args:
    kind: what is being chosen; its options are called `<kind>_kw`.
    name: see `lookup`; of a function or class.
    table: see `lookup`.
    kw: see `options`; None for none.
  """
  function = lookup(kind, name, table)
  hints = options(function)
  for key, value in (kw or {}).items():
    where = f"{kind}_kw of {kind}={name!r}"
    if key not in hints:
      known = hints or ["(it has no options)"]
      raise ValueError(f"{where}: {errors.unknown('option', key, known)}")
    schema.check(where, key, value, hints[key])
  return functools.partial(function, **dict(kw or {}))


def options(function: Callable) -> dict[str, Any]:
  """Returns {keyword: type hint} of what can be set in a function or class.

  That is all with a default or after a `*`, but for fields of a class that it
  names in `RESERVED`.
  """
  init: Any = function
  if isinstance(function, type):
    init = function.__init__  # type: ignore[misc]
  hints = typing.get_type_hints(init)
  ignored = {"parent", "name", *getattr(function, "RESERVED", ())}
  return {
    key: hints.get(key, Any)
    for key, p in inspect.signature(function).parameters.items()
    if (p.default is not p.empty or p.kind is p.KEYWORD_ONLY)
    and key not in ignored
  }


def defaults(function: Callable) -> dict[str, Any]:
  """Returns {keyword: default} of `options`."""
  parameters = inspect.signature(function).parameters
  return {key: parameters[key].default for key in options(function)}
