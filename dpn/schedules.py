"""Durations in any unit, and learning rate schedules.

Both behave as in big_vision, so its configs give the same numbers.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpn import errors, registry, schema

UNITS = ("steps", "epochs", "examples", "percent")
_REQUIRED = object()


def steps(
  name: str,
  config: Mapping[str, Any],
  *,
  total_steps: int | None = None,
  batch_size: int | None = None,
  data_size: int | None = None,
  default: Any = _REQUIRED,
) -> Any:
  """Returns the duration `name` of a config, in steps.

  The config gives it as exactly one of `<name>_steps`, `<name>_epochs`,
  `<name>_examples` and `<name>_percent` (a fraction of the run, in [0, 1]).
  None and negative values count as not given. Units other than steps round to
  the nearest step, but to at least one unless the value is zero. Percent need
  `total_steps`, epochs and examples `batch_size`, epochs also `data_size`. If
  the config does not give the duration, it is `default`.
  """
  values = {f"{name}_{unit}": config.get(f"{name}_{unit}") for unit in UNITS}
  keys = ", ".join(values)
  for key, value in values.items():
    schema.check("config", key, value, int | float | None)
  given = {k: v for k, v in values.items() if v is not None and v >= 0}
  if len(given) > 1:
    got = " and ".join(f"config.{key}={v}" for key, v in given.items())
    raise ValueError(
      f"Got {got}; expected one of them, and None for the other."
    )
  if not given and default is _REQUIRED:
    raise ValueError(f"No duration {name!r}; expected one of {keys}.")
  if not given:
    return default
  [(key, value)] = given.items()
  unit = key.removeprefix(f"{name}_")
  if unit == "steps" and value == int(value):
    return int(value)
  if unit == "steps" or (unit == "percent" and value > 1):
    raise ValueError(
      f"{key}={value}, expected a whole number of steps, or {name}_percent: a"
      " fraction of the run, in [0, 1]."
    )
  try:
    if unit == "epochs":
      exact = value * (data_size / batch_size)  # type: ignore[operator]
    else:
      exact = value * total_steps if unit == "percent" else value / batch_size
  except TypeError as e:  # one of them is None
    raise ValueError(
      f"{key}={value} cannot become steps: a size that this takes is unknown"
      " here. Give the duration in another unit."
    ) from e
  return max(1, round(exact)) if value else 0


class Clock(NamedTuple):
  """Where a schedule stands.

  A decay maps (peak, clock) to the learning rate before warmup and cooldown are
  multiplied in. Its keyword arguments are what a config may set.
  """

  step: jax.Array  # (), from the start of the run
  since_warmup: jax.Array  # (), in steps, negative during warmup
  progress: jax.Array  # (), of the decay: 0 in warmup, 1 at the decay's end


def _cosine(peak, clock, *, end=0.0):
  """Decays from `peak` to `end` along half a cosine."""
  return end + (peak - end) * 0.5 * (1.0 + jnp.cos(jnp.pi * clock.progress))


def _polynomial(peak, clock, *, power=1, end=None, linear_end=0):
  """Decays from `peak` to `end`, or to its alias `linear_end`."""
  end = linear_end if end is None else end
  return end + (peak - end) * (1.0 - clock.progress) ** power


def _rsqrt(peak, clock, *, timescale=10_000, shift=0):
  """Decays as 1/sqrt(1 + t / timescale), t being `shift` when warmup ends."""
  since = jnp.maximum(clock.since_warmup, 0)
  return peak / jnp.sqrt(1 + (since + shift) / timescale)


def _stair(peak, clock, *, steps=(), mults=()):
  """Multiplies `peak` by `mults[i]` from step `steps[i]` on."""
  stair = jnp.sum(clock.step >= jnp.asarray(steps, jnp.int32))
  return peak * jnp.asarray((1.0, *mults), jnp.float32)[stair]


DECAYS = {
  "cosine": _cosine,
  "linear": _polynomial,
  "polynomial": _polynomial,
  "rsqrt": _rsqrt,
  "stair": _stair,
}


def learning_rate(
  total_steps: int,
  batch_size: int | None = None,
  data_size: int | None = None,
  /,
  *,
  base: float = 1.0,
  decay_type: str = "stair",
  scale_with_batchsize: bool = False,
  warmup_start: float = 0.0,
  decay_in_warmup: bool = False,
  **kw,
) -> Callable[[jax.typing.ArrayLike], jax.Array]:
  """Returns a schedule: a function from the step to a float32 scalar.

  A decay starts when `warmup_<unit>` (linear) is over. It ends `hold_<unit>`
  before the run does, and the rate stays. Warmup and `cooldown_<unit>` (linear
  to zero) multiply the rate. With `every_<unit>` it changes only so often, for
  example each epoch. By default it is constant.

  The decays and their arguments in `kw`: "cosine" (end), "linear" or
  "polynomial" (power, end or linear_end), "rsqrt" (timescale and shift, also as
  durations; arXiv 2106.04560, section 3.5), "stair" (steps, mults), or the
  import path of a function (peak, clock, *, …) → rate, see `Clock`.
  `scale_with_batchsize` multiplies the peak, `base`, by batch_size / 256 (arXiv
  1706.02677). Warmup starts at `warmup_start`, like `end` in the units of
  `base`. `decay_in_warmup` counts the decay from the start of the run, as timm
  does: after a warmup to `base` the rate drops to where the decay is by then.
  """
  decay = registry.lookup("decay_type", decay_type, DECAYS)
  sizes = {"batch_size": batch_size, "data_size": data_size}
  sizes["total_steps"] = total_steps
  if decay_in_warmup and decay in (_rsqrt, _stair):
    raise ValueError(
      f"decay_type={decay_type!r} takes no decay_in_warmup: leave it out."
    )
  lengths, decay_kw = _arguments(decay_type, decay, kw, sizes)
  if warmup_start and not any(key.startswith("warmup_") for key in kw):
    raise ValueError(
      f"The schedule has warmup_start={warmup_start}, but no warmup. Give it "
      "one, such as warmup_steps=1000."
    )
  warmup, every = lengths["warmup"], lengths["every"]
  start = 0 if decay_in_warmup else warmup
  held_from = max(total_steps - lengths["hold"], 0)
  decay_steps = held_from - start
  if scale_with_batchsize:
    base = base * batch_size / 256  # type: ignore[operator]

  def schedule(step):
    step = jnp.asarray(step)
    step = step // every * every if every else step
    progress = jnp.clip((step - start) / (decay_steps or 1), 0.0, 1.0)
    progress = jnp.where(step < warmup, 0.0, progress)
    held = jnp.minimum(step, held_from)
    rate = decay(base, Clock(held, held - warmup, progress), **decay_kw)
    if warmup:
      share = jnp.minimum(1.0, step / warmup)
      rate = warmup_start + share * (rate - warmup_start)
    if cooldown := lengths["cooldown"]:
      rate = rate * jnp.minimum(1.0, (total_steps - step) / cooldown)
    return jnp.asarray(rate, jnp.float32)

  try:
    jax.eval_shape(schedule, 0)
  except TypeError as e:  # of arguments of a wrong type
    raise ValueError(f"A {decay_type} schedule to {base} with {kw}: {e}") from e
  return schedule


def _arguments(decay_type, decay, kw, sizes):
  """Returns (steps of each duration, arguments of the decay)."""
  parameters = inspect.signature(decay).parameters
  own = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
  durations = ["warmup", "hold", "cooldown", "every"]
  of_decay = [name for name in own if name in ("timescale", "shift")]
  known = own + [
    f"{name}_{unit}" for name in durations + of_decay for unit in UNITS
  ]
  for key in kw:
    errors.check_known(f"argument of the {decay_type!r} schedule", key, known)
  lengths = {name: steps(name, kw, default=0, **sizes) for name in durations}
  warmup, hold, cooldown = (lengths[name] for name in durations[:3])
  # Runs of 0 and 1 steps, for evaluation and debugging, keep their config.
  if sizes["total_steps"] > 1 and (
    warmup + hold >= sizes["total_steps"]
    # If two shares make the whole, both may have been rounded up.
    or warmup + cooldown > sizes["total_steps"] + (warmup > 0)
  ):
    raise ValueError(
      f"Warmup is {warmup} steps of a run of {sizes['total_steps']}, hold"
      f" {hold}, cooldown {cooldown}; expected fewer together. Shorten them or"
      " lengthen the run."
    )
  decay_kw = {name: kw[name] for name in own if name in kw}
  for name in of_decay:
    if (value := steps(name, kw, default=None, **sizes)) is not None:
      decay_kw[name] = value
  stairs, mults = (
    np.atleast_1d(decay_kw.get(key, ())).tolist() for key in ("steps", "mults")
  )
  if decay_type == "stair" and (
    len(stairs) != len(mults) or list(stairs) != sorted(stairs)
  ):
    raise ValueError(
      f"Stair got steps={tuple(stairs)} and mults={tuple(mults)}, expected"
      " ascending steps and one multiplier for each."
    )
  return lengths, decay_kw
