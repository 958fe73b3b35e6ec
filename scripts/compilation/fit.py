"""Finds, by compiling, the smallest change to a config that makes it fit."""

import copy
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

# A guess at the least share that rematerialization leaves. Only changes that
# could not fit even then are not tried.
_REMAT = 1 / 16
_MARGIN = 1.2
HOPELESS = "It needs more devices, or larger."


class DoesNotFit(ValueError):
  """A program that needs more than a device has.

  Attributes:
    needed: bytes on a device.
  """

  def __init__(self, message: str, needed: float):
    super().__init__(message)
    self.needed = needed


def search(
  config, attempt: Callable, *, devices: int, state: int, room: int
) -> tuple[Mapping[str, Any], Any]:
  """Returns changes of a config that make it fit, and what `attempt` returned.

  Args:
    config: the user's; the changes are {} if it fits.
    attempt: compiles a config, or raises DoesNotFit.
    devices: how many there are.
    state: bytes of the training state on each device.
    room: bytes that each device has.

  Raises:
    DoesNotFit: nothing helps.
  """
  try:
    return {}, attempt(config)
  except DoesNotFit as e:
    print(e)
    rest, count = max(e.needed - state, 0), 0
  for change, of_state, of_rest in changes(config, devices):
    if of_state * state + of_rest * rest > _MARGIN * room:
      continue
    count += 1
    try:
      found = attempt(changed(config, change))
    except ValueError as e:  # or the model does not allow it
      print(f"Tried {flags(change)}: {e}")
      continue
    return change, found
  raise DoesNotFit(
    f"Nothing of {count} changes tried makes it fit: neither grad_accum nor "
    f"remat_policy, fsdp or fewer images. {HOPELESS}",
    state + rest,
  )


def changes(
  config: Mapping[str, Any], devices: int
) -> Iterator[tuple[dict[str, Any], float, float]]:
  """Yields (changes, factor on the state, factor on the rest), smallest first.

  First those that cost no FLOPs and leave the recipe as it is, then those that
  recompute the forward pass, then those that communicate, last fewer images.
  """
  batch, accum = config["input"]["batch_size"], config.get("grad_accum") or 1
  factors = [2**k for k in range(1, batch.bit_length())]
  parts = [
    ({"grad_accum": accum * f}, 1 / f)
    for f in factors
    if batch % (accum * f * devices) == 0
  ]
  model = config.get("model") or {}
  towers = [k for k in ("image", "text") if isinstance(model.get(k), Mapping)]
  sections = [f"model.{tower}" for tower in towers] or ["model"]
  remat = {f"{s}.remat_policy": "nothing_saveable" for s in sections}
  [axis, _], *_ = config.get("mesh") or [("data", -1)]
  fsdp = {"sharding_strategy": [(".*", f'fsdp(axis="{axis}")')]}
  for part, less in parts:
    yield part, 1, less
  for part, less in [({}, 1), *parts]:
    yield remat | part, 1, _REMAT * less
  for part, less in [({}, 1), *parts]:
    yield fsdp | part, 1 / devices, less
  for part, less in [({}, 1), *parts]:
    yield fsdp | remat | part, 1 / devices, _REMAT * less
  for f in factors:
    if batch % (accum * f * devices) == 0:
      yield {"input.batch_size": batch // f}, 1, 1 / f
      yield fsdp | remat | {"input.batch_size": batch // f}, 1 / devices, 1 / f


def changed(config, change: Mapping[str, Any]):
  """Returns a copy of a config with some fields, named by dots, changed."""
  config = copy.deepcopy(config)
  with config.unlocked():
    config.update_from_flattened_dict(change)
  return config


def flags(change: Mapping[str, Any]) -> str:
  """Returns changes as words of a command line."""
  return shlex.join(f"--config.{k}={v}" for k, v in change.items())
