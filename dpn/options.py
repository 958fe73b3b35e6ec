"""Options written as one short string: `"name,key=value,key=value"`.

A choice and what belongs to it stay together that way, and an option cannot be
set where it means nothing. What can be set is read off a callable's signature:
every keyword annotated bool, int, float or Literal is an option.
"""

import functools
import typing
from collections.abc import Callable, Mapping

from dpn import errors

_BOOLS = {"True": True, "true": True, "False": False, "false": False}


def parse(
  kind: str, text: str, table: Mapping[str, Callable]
) -> functools.partial:
  """Returns `table[name]` with the options of "name,key=value,…" bound.

  Args:
    kind: what is being chosen, for error messages, such as "norm".
    text: the string.
    table: from names to callables.

  Raises:
    ValueError: on an unknown name, option or value, naming the nearest.
  """
  name, _, rest = text.partition(",")
  if name not in table:
    raise ValueError(errors.unknown(kind, name, table))
  return bind(f"{kind}={text!r}", rest, table[name])


def bind(where: str, text: str, function: Callable) -> functools.partial:
  """Returns `function` with the options of "key=value,…" bound.

  Raises:
    ValueError: on an unknown option or value, beginning with `where`.
  """
  hints = _options(function)
  values = {}
  for item in filter(None, text.split(",")):
    key, equals, value = item.partition("=")
    if not equals:
      raise ValueError(
        f"{where}: expected key=value after the name, got {item!r}."
      )
    if key not in hints:
      known = hints or ["(it has no options)"]
      raise ValueError(f"{where}: {errors.unknown('option', key, known)}")
    if key in values:
      raise ValueError(f"{where}: option {key!r} is given twice.")
    values[key] = _value(where, key, value, hints[key])
  return functools.partial(function, **values)


def _options(function):
  """Returns {keyword: type} of the keywords that can be set."""
  init = function.__init__ if isinstance(function, type) else function
  hints = typing.get_type_hints(init)
  # `float | None`: None is the default, it cannot be written.
  hints = {
    k: next((t for t in typing.get_args(h) if t is float), h)
    for k, h in hints.items()
  }
  return {
    k: h
    for k, h in hints.items()
    if h in (bool, int, float) or typing.get_origin(h) is typing.Literal
  }


def _value(where, key, text, hint):
  """Returns `text` as the type `hint`."""
  if hint in (int, float):
    try:
      return hint(text)
    except ValueError:
      raise ValueError(
        f"{where}: {key} must be of type {hint.__name__}, got {text!r}."
      ) from None
  known = _BOOLS if hint is bool else {v: v for v in typing.get_args(hint)}
  if text not in known:
    raise ValueError(f"{where}: {errors.unknown(key, text, known)}")
  return known[text]
