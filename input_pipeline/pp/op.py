"""What a preprocessing op is, and how it declares what it does.

An op is a function of (example, generator) that returns the example; `pp.make`
chains them. A factory takes the arguments written in the preprocessing string
and returns an op. Most ops change one value: their factories return a function
of that value and are decorated with `on_key` or, when it draws random numbers,
`on_key_random`. Arrays are the data set's own, and read-only: an op that writes
to one makes a copy first.

Both decorators, and `declare` for other factories, take the fields of a
`Declaration`. That is all the rest of the code knows about an op without
running it: how large images get, what is exported, what may be lazy.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dpn import errors

Example = dict[str, Any]
Op = Callable[[Example, np.random.Generator], Example]
KINDS = (
  *("decode", "normalize", "crop", "central_crop", "pad"),
  *("resize", "resize_shorter", "rescale"),
)


@dataclasses.dataclass(frozen=True)
class Declaration:
  """What an op does. Where a function is expected, it gets the op's arguments.

  Attributes:
    writes: the keys it changes, or a function that returns them. By default
      the arguments `key`, `outkey` and `key_result` tell; without these, any
      key may change.
    kind: one of `KINDS` for an op that decodes, resizes, crops, pads or
      normalizes images, "" for others. "resize_shorter" keeps the aspect
      ratio, and so does "rescale", whose result may have any size.
    size: for "resize", "crop", …, the argument with the size of the result.
    pixels: for "normalize", a function that returns mean and standard
      deviation: pixels in [0, 1] become (pixels - mean) / std.
    classes: for an op that reads a label, the argument with the number of
      classes.
    lazy: whether it takes images that are not computed yet; see `lazy_image`.
    random: whether it draws random numbers.
  """

  writes: Sequence[str] | Callable[..., Sequence[str]] | None = None
  kind: str = ""
  size: str = "size"
  pixels: Callable[..., tuple] | None = None
  classes: str = ""
  lazy: bool = False
  random: bool = False

  def __post_init__(self):
    if self.kind:
      errors.check_known("kind of op", self.kind, KINDS)


def declare(**fields) -> Callable[[Callable], Callable]:
  """Returns a decorator that declares fields of an op, for its factory."""

  def mark(factory):
    known = getattr(factory, "declared", Declaration())
    factory.declared = dataclasses.replace(known, **fields)
    return factory

  return mark


def on_key(
  factory: Callable | None = None,
  /,
  *,
  default: str = "image",
  channels: Sequence[int] = (),
  random: bool = False,
  **fields,
) -> Callable[..., Op]:
  """Turns a factory of functions of a value into a factory of ops on one key.

  The factory returned takes three more keywords: `inkey` is where the value is
  read, `outkey` where the result goes, `key` means both.

  Args:
    factory: if left out, this returns a decorator.
    default: the key, unless the string names another.
    channels: if given, values must be uint8 images with one of these counts.
    random: whether the functions take (value, generator).
    **fields: of the `Declaration`.
  """
  if factory is None:
    fields |= {"default": default, "channels": channels, "random": random}
    return functools.partial(on_key, **fields)

  @functools.wraps(factory)
  def make(*args, key=None, inkey=default, outkey=default, **kwargs):
    fn = factory(*args, **kwargs)
    source, target = key or inkey, key or outkey

    def op(example, rng):
      value = get(example, source)
      if channels:
        check_levels(value, factory.__name__, channels)
      example[target] = fn(value, rng) if random else fn(value)
      return example

    op.vocabulary = getattr(fn, "vocabulary", None)
    return op

  own = inspect.signature(make, follow_wrapped=False).parameters
  make.__signature__ = inspect.Signature(
    [
      *inspect.signature(factory).parameters.values(),
      *(own[name] for name in ("key", "inkey", "outkey")),
    ]
  )
  return declare(random=random, **fields)(make)


on_key_random = functools.partial(on_key, random=True)


def get(example: Mapping[str, Any], key: str) -> Any:
  """Returns the value at `key`; an error names the nearest key."""
  if key not in example:
    raise ValueError(errors.unknown("key", key, example))
  return example[key]


def check_levels(image: np.ndarray, name: str, channels: Sequence[int]):
  """Raises ValueError unless the op `name` gets levels in 0, …, 255."""
  shapes = [(c,) for c in channels]
  if image.dtype != np.uint8 or image.shape[2:] not in shapes:
    known = " or ".join(map(str, channels))
    raise ValueError(
      f"expected uint8 of shape (rows, cols, {known}), got {image.dtype} of "
      f"{image.shape}: place {name} before value_range."
    )


def check_areas(area_min: float, area_max: float):
  """Raises ValueError unless these are shares of an image in percent."""
  if not 0 < area_min <= area_max <= 100 or area_max <= 1:
    raise ValueError(
      "expected 0 < area_min <= area_max <= 100, in percent and not as "
      f"fractions, got {(area_min, area_max)}."
    )


def pair(size: int | tuple[int, int]) -> tuple[int, int]:
  """Returns (rows, cols) from one number for both, or from two."""
  both = tuple(size) if isinstance(size, tuple | list) else (size, size)
  if len(both) != 2 or not all(type(n) is int and n > 0 for n in both):
    raise ValueError(
      f"Expected a size in pixels, as 224 or (rows, cols), got {size!r}."
    )
  return both
