"""Looks up what a config names, and checks the options given to it.

A name is a key of one of our tables, such as `"dtn"`, or an import path,
`"package.module:attribute"`. Options are a dictionary, checked against the
signature: `norm="dtn", norm_kw={"cls": "layernorm"}`.

Import paths run code. Your own command, config or Python may give any; a file,
such as a checkpoint's metadata, only those in modules that you trust.
"""

import functools
import importlib
import inspect
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from dpn import errors, schema

_trusted = {"dpn"}
# Keys of a config in which a colon means something else.
_TEXT = ("class_names", "model_init", "resume", "table", "wandb")


def trust(modules: str) -> str:
  """Lets files name anything in some modules and their submodules.

  Args:
    modules: names joined by commas, such as "mypkg,other.norms".

  Returns:
    The argument, so that this can be the type of a command line's.
  """
  _trusted.update(filter(None, map(str.strip, modules.split(","))))
  return modules


def trust_names(value: Any):
  """Trusts the modules that the user's own config or options name."""
  _trusted.update(module for _, module in _modules(value))


def is_trusted(name: str) -> bool:
  """Returns whether the user trusts a module, or a package that holds it."""
  parts = name.split(".")
  return any(".".join(parts[:n]) in _trusted for n in range(1, len(parts) + 1))


def check_names(where: str, value: Any, kinds: Collection[str] = ()):
  """Raises ValueError if what a file says would import an untrusted module.

  Args:
    where: the file, for the message.
    value: a config, or options of a model, as read from JSON.
    kinds: prefixes that a name of data may have, as in "folder:photos".
  """
  for keys, module in _modules(value):
    of_data = keys[0] in ("input", "evals") and {"data", "datasets"} & {*keys}
    if not (is_trusted(module) or (of_data and module in kinds)):
      raise ValueError(
        f"{where}: {'.'.join(keys)} names the module {module!r}. Importing it "
        "could run any code. If you know where it comes from, trust it: "
        f"--trust {module} on the command line, or dpn.registry.trust("
        f"{module!r}) in Python."
      )


def _modules(value: Any, *keys: str) -> Iterator[tuple[tuple[str, ...], str]]:
  """Yields (keys, module) of the import paths in nested values."""
  if keys[:1] and keys[0] in _TEXT:
    return
  if hasattr(value, "items"):
    for name, part in value.items():
      yield from _modules(part, *keys, *str(name).split("."))
      has_type = hasattr(part, "items") and "type" in part
      if keys == ("evals",) and not has_type:  # the name is it
        yield from _modules(name, *keys, str(name), "type")
  elif isinstance(value, list | tuple):
    for part in value:
      yield from _modules(part, *keys)
  elif isinstance(value, str):
    module, _, name = value.partition(":")
    # These may be modules alone, without an attribute.
    is_type = "." in module and (keys[0], keys[-1]) == ("evals", "type")
    if name.isidentifier() or is_type or keys == ("pp_modules",):
      yield keys, module


def lookup(kind: str, name: str, table: Mapping[str, Any]) -> Any:
  """Returns `table[name]`, or what the import path `name` stands for.

  `kind` says in messages what is being chosen, such as "norm". ValueError if
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
  """Returns the object at "package.module:attribute", or raises ValueError."""
  module_name, _, attribute = path.partition(":")
  if not all(map(str.isidentifier, [*module_name.split("."), attribute])):
    raise ValueError(
      f"{kind}={path!r} is no import path; expected 'package.module:attribute'."
    )
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

  These are all arguments with a default or after a `*`, except those that the
  function or class names in its `RESERVED`.
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
