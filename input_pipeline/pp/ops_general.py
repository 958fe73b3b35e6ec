"""Ops on values of any kind. Names and arguments are big_vision's.

Differs: `flatten` takes no keys, and `choice` no range of `n`.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpn import errors
from dpn.input_pipeline.pp import op, pixels


def _range_of_pixels(vmin, vmax, in_min, in_max, **_):
  """Returns the mean and std that map in_min to vmin, and in_max to vmax."""
  low, high = np.asarray(in_min) / 255, np.asarray(in_max) / 255
  std = (high - low) / (vmax - vmin)
  return (low - vmin * std).tolist(), std.tolist()


@op.on_key(kind="normalize", pixels=_range_of_pixels)
def value_range(
  vmin: float = -1,
  vmax: float = 1,
  in_min: float | Sequence[float] = 0,
  in_max: float | Sequence[float] = 255.0,
  clip_values: bool = False,
):
  """Maps [in_min, in_max] linearly to [vmin, vmax], as float32.

  `in_min` and `in_max` are one number, or one per channel.
  """
  low = np.asarray(in_min, np.float64)
  width = np.asarray(in_max, np.float64) - low
  if vmin > vmax or not (width > 0).all():
    raise ValueError(
      f"expected vmin <= vmax and in_min < in_max, got {vmin} and {vmax}, "
      f"{in_min} and {in_max}: they would invert images, or make one level."
    )
  scale = (vmax - vmin) / width
  linear = pixels.linear(scale, vmin - low * scale)

  def apply(value):
    value = linear(value)
    return np.clip(value, vmin, vmax, out=value) if clip_values else value

  return apply


@op.declare(classes="depth")
def onehot(
  depth: int,
  key: str = "labels",
  key_result: str | None = None,
  multi: bool = True,
  on: float = 1.0,
  off: float = 0.0,
):
  """Turns a label, or several, into float32 of shape (depth,).

  A label is an integer. Several, of shape (labels,), share one vector with
  `multi` (multi-hot), and else give (labels, depth). A negative label means "no
  label" and leaves its vector `off`. The result goes to `key_result`, or `key`.
  """

  def apply(example, _):
    labels = np.asarray(op.get(example, key))
    if labels.size and labels.dtype.kind not in "iu":
      raise ValueError(
        "expected a label, or several, as integers from 0, got "
        f"{example[key]!r:.60}."
      )
    labels = labels if labels.size else labels.astype(int)
    if labels.size and labels.max() >= depth:
      raise ValueError(
        f"label {labels.max()} does not fit {depth} classes (0 to "
        f"{depth - 1}): raise the depth of onehot or map the labels."
      )
    if multi:
      result = np.full(depth, off, np.float32)
      result[labels[labels >= 0]] = on
    else:
      hits = labels[..., None] == np.arange(depth)
      result = np.where(hits, np.float32(on), np.float32(off))
    example[key_result or key] = result
    return example

  return apply


@op.declare(writes=())
def keep(*keys: str):
  """Keeps these keys and drops all others; a missing one is an error."""
  return lambda example, _: {key: op.get(example, key) for key in keys}


@op.declare(writes=lambda keys: keys)
def drop(*keys: str):
  """Drops these keys; missing ones are fine."""
  return lambda example, _: {k: v for k, v in example.items() if k not in keys}


@op.declare()
def copy(inkey: str, outkey: str):
  """Gives the value of `inkey` a second name, `outkey`."""
  return lambda example, _: {**example, outkey: op.get(example, inkey)}


@op.declare(writes=())
def flatten():
  """Flattens nested dictionaries to names joined by slashes: `objects/size`."""
  return lambda example, _: dict(_leaves("", example))


def _leaves(prefix, nested):
  for key, value in nested.items():
    if isinstance(value, Mapping):
      yield from _leaves(f"{prefix}{key}/", value)
    else:
      yield prefix + key, value


@op.declare(random=True, writes=lambda key, outkey, **_: outkey or key)
def choice(
  n: int | str = "single",
  key: str | Sequence[str] | None = None,
  fewer_ok: bool = False,
  inkey: str | Sequence[str] | None = None,
  outkey: str | Sequence[str] | None = None,
):
  """Chooses random entries of an array, the same ones for every key.

  It takes `n` entries without repetition, in their order, or all if there are
  fewer and `fewer_ok`; "single" takes one and drops its axis. `key` names one
  key, or several, to read and write, unless `inkey` and `outkey` are given. A
  value that is no array, such as a lone caption, is one entry.
  """
  inkeys, outkeys = (
    [keys] if isinstance(keys, str) else list(keys or ())
    for keys in (inkey or key, outkey or key)
  )
  if not inkeys or len(inkeys) != len(outkeys):
    raise ValueError(
      f"expected key, or inkey and outkey, got {inkeys} and {outkeys}."
    )
  if n != "single" and not (type(n) is int and n > 0):
    raise ValueError(f"expected a number of entries or 'single', got {n!r}.")

  def apply(example, rng):
    entries = {name: np.atleast_1d(op.get(example, name)) for name in inkeys}
    sizes = {name: len(x) for name, x in entries.items()}
    size, least = sizes[inkeys[0]], 1 if n == "single" or fewer_ok else n
    if set(sizes.values()) != {size} or size < least:
      raise ValueError(f"cannot choose {n} of {sizes} entries.")
    if n == "single":
      chosen = int(rng.integers(size))
    else:
      chosen = np.sort(rng.permutation(size)[:n])
    for source, target in zip(inkeys, outkeys, strict=True):
      example[target] = entries[source][chosen]
    return example

  return apply


@op.on_key(kind="pad", size="shape")
def pad_to_shape(
  shape: Sequence[int | None], pad_value: Any = 0, where: str = "after"
):
  """Pads an array to `shape`; None leaves an axis as it is.

  `where` is "before", "after" or "both" (the odd one goes after).
  """
  shares = {"before": 1.0, "after": 0.0, "both": 0.5}  # Of what is added.
  errors.check_known("side to pad", where, shares)

  @functools.lru_cache(64)
  def place(old):
    """Returns the padded shape, and where in it a value of shape `old` goes."""
    new = [o if n is None else n for o, n in zip(old, shape, strict=False)]
    if len(old) != len(shape) or any(np.less(new, old)):
      raise ValueError(f"cannot pad shape {old} to {tuple(shape)}.")
    begin = (np.subtract(new, old) * shares[where]).astype(int).tolist()
    ends = zip(begin, old, strict=True)
    return tuple(new), tuple(slice(b, b + o) for b, o in ends)

  def apply(value):
    padded, inside = place(value.shape)
    if value.shape == padded:
      return value
    result = np.empty(padded, value.dtype)
    result.fill(pad_value)
    result[inside] = value
    return result

  return apply


@op.on_key
def squeeze_last_dim():
  """Removes the last axis, which must be of size 1."""
  return lambda value: np.squeeze(value, axis=-1)
