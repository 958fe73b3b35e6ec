"""What a preprocessing op is, and how one reads and writes an example's keys.

An op is a function of (example, generator) that returns the example; `pp.make`
chains them. A factory takes the arguments written in the preprocessing string
and returns an op. Most ops change one value: their factories return a function
of that value and are decorated with `on_key` or, when it draws random numbers,
`on_key_random`. Arrays are the data set's own, and read-only: an op that writes
to one makes a copy first.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpn import errors

Example = dict[str, Any]
Op = Callable[[Example, np.random.Generator], Example]


def on_key(factory: Callable) -> Callable[..., Op]:
  """Returns a factory of ops on one key, from one of functions of a value.

  The factory returned takes three more keywords: `inkey` is where the value is
  read, `outkey` where the result goes, `key` means both; all are "image"
  unless given.
  """

  @functools.wraps(factory)
  def make(*args, **kwargs):
    fn = factory(*args, **kwargs)
    return lambda value, rng: fn(value)

  return on_key_random(make)


def on_key_random(factory: Callable) -> Callable[..., Op]:
  """Returns what `on_key` does, for functions of (value, generator)."""

  @functools.wraps(factory)
  def make(*args, key=None, inkey="image", outkey="image", **kwargs):
    fn = factory(*args, **kwargs)
    source, target = key or inkey, key or outkey

    def op(example, rng):
      example[target] = fn(get(example, source), rng)
      return example

    return op

  own = inspect.signature(make, follow_wrapped=False).parameters
  make.__signature__ = inspect.Signature(
    [
      *inspect.signature(factory).parameters.values(),
      *(own[name] for name in ("key", "inkey", "outkey")),
    ]
  )
  return make


def takes_lazy(factory: Callable) -> Callable:
  """Marks a factory whose ops need not get arrays; see `lazy_image`."""
  factory.takes_lazy = True
  return factory


def get(example: Mapping[str, Any], key: str) -> Any:
  """Returns the value at `key`; an error names the nearest key."""
  if key not in example:
    raise ValueError(errors.unknown("key", key, example))
  return example[key]


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
  """Returns (rows, cols) from one number for both, or from two."""
  both = tuple(size) if isinstance(size, tuple | list) else (size, size)
  if len(both) != 2 or not all(type(n) is int and n > 0 for n in both):
    raise ValueError(
      f"Expected a size in pixels, as 224 or (rows, cols), got {size!r}."
    )
  return both
