"""Checks values that come from elsewhere against type hints.

JSON files are described by a TypedDict, options by the code that takes them.
"""

import itertools
import json
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from dpn import errors, paths

MAX_DEPTH = 32  # of nested lists and dictionaries
_UNIONS = (typing.Union, types.UnionType)


def check(where: str, key: str, value: Any, hint: Any):
  """Raises ValueError unless a value, called `key`, is what a hint allows.

  That is Any, a class, a Literal, a TypedDict (whose other keys are free), or
  lists, tuples, mappings and unions of them. Tuples may be given as lists, and
  numbers must be finite; anything else in a hint allows everything.
  """
  if typing.get_origin(hint) is typing.Literal:
    known = typing.get_args(hint)
    if value not in known:
      raise ValueError(f"{where}: {errors.unknown(key, value, known)}")
    return
  for name, part, of_part in _parts(value, hint):
    check(where, _join(key, name), part, of_part)
  required = getattr(hint, "__required_keys__", ())
  if _is_mapping(value) and (missing := sorted({*required} - {*value})):
    raise ValueError(f"{where}: {_join(key, missing[0])} is missing.")
  if not _fits(value, hint):
    name = f"{key} must" if key else "it must"
    got = errors.shown(value)
    raise ValueError(f"{where}: {name} be of type {_name(hint)}, got {got}.")


def _join(key, name) -> str:
  return f"{key}.{name}" if key else name


def _parts(value, hint):
  """Yields (name, part, hint of the part) for each part of a value."""
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if origin in _UNIONS:
    # Only one of them can be a container: JSON does not tell others apart.
    for option in args:
      if _fits(value, option):
        yield from _parts(value, option)
        return
  elif typing.is_typeddict(hint) and _is_mapping(value):
    for name, of_part in typing.get_type_hints(hint).items():
      if name in value:
        yield name, value[name], of_part
  elif origin and args and _is_mapping(value):
    yield from ((str(k), part, args[-1]) for k, part in value.items())
  elif origin and args and isinstance(value, list | tuple):
    single = origin is not tuple or ... in args
    of_parts = itertools.repeat(args[0]) if single else args
    parts = zip(value, of_parts, strict=False)  # `_fits` compares the lengths
    yield from ((str(i), part, of) for i, (part, of) in enumerate(parts))


def _fits(value, hint) -> bool:
  """Returns whether a value is of a type, whatever its parts are."""
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if origin in _UNIONS:
    return any(_fits(value, option) for option in args)
  if origin is typing.Literal:
    return value in args
  if typing.is_typeddict(hint) or (origin or hint) in (dict, Mapping):
    return _is_mapping(value)
  if origin is tuple and ... not in args:
    return isinstance(value, list | tuple) and len(value) == len(args)
  if origin in (list, tuple, Sequence):
    return isinstance(value, list | tuple)
  if hint in (None, types.NoneType):
    return value is None
  if hint is float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)
  if hint is int:
    return isinstance(value, int) and not isinstance(value, bool)
  known = isinstance(hint, type) and hint is not Any
  return not known or isinstance(value, hint)


def _is_mapping(value) -> bool:
  return isinstance(value, Mapping) or hasattr(value, "items")  # a ConfigDict


def _name(hint) -> str:
  if typing.get_origin(hint) in _UNIONS:
    return " or ".join(map(_name, typing.get_args(hint)))
  if typing.is_typeddict(hint) or (typing.get_origin(hint) or hint) is Mapping:
    return "dict"
  if isinstance(hint, type) and not typing.get_args(hint):
    return hint.__name__
  return re.sub(r"(\w+\.)+(?=\w)", "", str(hint))


def parse(where: str, text: str | bytes, hint: Any) -> Any:
  """Returns the value of JSON text.

  Raises:
    ValueError: the text is damaged, nested too deep, or not what the hint
      allows; the message begins with `where`.
  """
  try:
    value = json.loads(text)
    if _depth(value) > MAX_DEPTH:
      raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
  except (ValueError, RecursionError) as e:
    raise ValueError(f"{where} is damaged, expected JSON: {e}.") from e
  check(where, "", value, hint)
  return value


def read_json(path: str, hint: Any) -> Any:
  """Returns what a JSON file holds, see `parse`."""
  return parse(path, paths.read(path), hint)


def _depth(value) -> int:
  if isinstance(value, dict):
    value = list(value.values())
  if not isinstance(value, list):
    return 0
  return 1 + max(map(_depth, value), default=0)
