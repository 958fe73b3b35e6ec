"""Builds the optimizer of a config: big_vision's optax.make.

An update clips the gradient by its global norm, passes it to the optimizer,
scales the result by `lr` and `lr_mults`, adds weight decay, scales the sum by
the schedule, and subtracts it, in this order. So weight decay is decoupled from
the gradient (arXiv 1711.05101) and multiplied by the schedule but not by `lr`.

These are the config's fields. A list holds (pattern, value) pairs; a parameter
belongs to the first pattern that matches its whole name.

  optax_name: a gradient transformation of optax ("scale_by_adam"), or
    "big_vision.scale_by_adafactor", "big_vision.momentum_hp", "big_vision.sgd",
    "scale_by_lamb", "scale_by_muon", or the import path of another,
    "mypkg.optimizers:scale_by_lion".
  optax: arguments of that transformation.
  lr: base learning rate.
  lr_mults: list with factors of `lr`; parameters not listed have 1.
  wd: weight decay, None or 0 for none.
  wd_mults: list with factors of `wd`, by default 1 for kernels; parameters not
    listed have none.
  grad_clip_norm: largest global norm of the trained parameters' gradients; or
    a list of norms, where each pattern's parameters are clipped by the norm of
    their own gradients alone. None and parameters not listed: no clipping.
  schedule: arguments of `schedules.learning_rate`, where `mult` is its `base`;
    or a list of them that covers every parameter. None freezes parameters: they
    keep their bits, have no optimizer state, and their gradients do not count
    in the norm.
  projection: import path of a function (name, parameter) → parameter, applied
    to each trained parameter after its update, as nGPT needs.
"""

import functools
import inspect
import numbers
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dpn import errors, lamb, muon, registry, schedules, schema, trees


def make(
  config: Mapping[str, Any],
  params: trees.Tree,
  *,
  total_steps: int,
  batch_size: int,
  data_size: int | None,
) -> tuple[optax.GradientTransformation, list[Callable]]:
  """Returns the gradient transformation and its schedules.

  Schedules are functions of the step, one for each entry of `schedule` that is
  not None, in order. `params` may be shapes; an epoch has `data_size` examples.
  """
  if config.get("lr") is None:
    raise ValueError("config.lr is missing, expected the base learning rate.")
  _check_signs(config)
  frozen = frozen_mask(config, params)
  trained = jax.tree.map(operator.not_, frozen)
  schedule_fns, schedule_txs = [], []
  for mask, value in _schedules(config, params):
    if value is not None:
      kw = {("base" if k == "mult" else k): v for k, v in dict(value).items()}
      fn = schedules.learning_rate(total_steps, batch_size, data_size, **kw)
      schedule_fns.append(fn)
      schedule_txs.append(optax.masked(optax.scale_by_schedule(fn), mask))
  kw = config.get("optax") or {}
  try:
    name = config.get("optax_name") or ""
    schema.check("config", "optax_name", name, str)
    for key, default in _PATTERNS.get(name, {}).items():
      patterns = [kw.get(key, default)]
      trees.masks(params, patterns, f"config.optax.{key}")  # warns
    optimizer = _optimizer(name, kw)
  except TypeError as e:  # of arguments of a wrong type
    raise ValueError(f"config.optax={dict(kw)}: {e}") from e
  lr_mults = _masked(config, params, "lr_mults")
  if not all(isinstance(m, numbers.Real) and float(m) > 0 for _, m in lr_mults):
    raise ValueError(
      f"config.lr_mults is {config['lr_mults']}, expected positive factors. To"
      " freeze parameters give them None in config.schedule."
    )
  wd = config.get("wd")
  decayed = _masked(config, params, "wd_mults") if wd else []
  return optax.chain(
    *(optax.masked(tx, mask) for tx, mask in _clips(config, params, trained)),
    optax.masked(optimizer, trained),
    optax.scale(config["lr"]),
    *(optax.masked(optax.scale(mult), mask) for mask, mult in lr_mults),
    *(optax.add_decayed_weights(wd * mult, m) for m, mult in decayed),
    *schedule_txs,
    # Last, so that neither weight decay nor a NaN reaches frozen parameters.
    optax.masked(optax.set_to_zero(), frozen),
    optax.scale(-1.0),
    optax.masked(_projected(config.get("projection")), trained),
  ), schedule_fns


def _projected(path: str | None) -> optax.GradientTransformation:
  """Returns a transformation that applies `config.projection` to parameters."""
  if not path:
    return optax.identity()
  project = registry.import_path("config.projection", path)

  def move(key, update, param):
    return project(trees.name(key), param + update) - param

  return optax.stateless(functools.partial(jax.tree.map_with_path, move))


def _check_signs(config):
  """Raises ValueError if a number is below 0: training would go uphill."""
  for key in ("lr", "wd", "wd_mults", "grad_clip_norm"):
    value = config.get(key)
    listed = isinstance(value, list | tuple)
    for _, x in _entries(config, key) if listed else [(".*", value)]:
      number = isinstance(x, numbers.Real) and x is not True
      optional = key != "wd_mults" or not listed  # None: it is not set
      if not (number and x >= 0) and not (optional and x is None):
        raise ValueError(
          f"config.{key} has {x!r}, expected a number that is not negative."
        )


def _clips(config, params, trained):
  """Returns (transformation, mask) of each group that is clipped."""
  clip = config.get("grad_clip_norm")
  if isinstance(clip, int | float | None):
    groups = [(trained, clip)]
  else:
    both = functools.partial(jax.tree.map, operator.and_, trained)
    masks = _masked(config, params, "grad_clip_norm")
    groups = [(both(mask), norm) for mask, norm in masks]
  make_tx = lambda n: optax.clip_by_global_norm(n) if n else optax.identity()
  return [(make_tx(norm), mask) for mask, norm in groups]


def frozen_mask(config: Mapping[str, Any], params: trees.Tree) -> trees.Tree:
  """Returns a tree of booleans: the parameters that `schedule` freezes."""
  entries = _schedules(config, params)
  return _union(params, [mask for mask, value in entries if value is None])


def _union(params, masks):
  """Returns a tree of booleans: what any of the masks selects."""
  nothing = jax.tree.map(lambda _: False, params)
  return jax.tree.map(lambda *bools: any(bools), nothing, *masks)


def matched(
  config: Mapping[str, Any], params: trees.Tree, key: str
) -> dict[str, tuple[str, Any]]:
  """Returns the (pattern, value) that each parameter belongs to, by its name.

  `key` is `lr_mults`, `wd_mults` or `schedule`. Parameters that no pattern
  matches are missing; without weight decay, `wd_mults` lacks all of them.
  """
  if key == "wd_mults" and not config.get("wd"):
    return {}
  masks = [mask for mask, _ in _masked(config, params, key)]
  return {
    name: tuple(entry)
    for mask, entry in zip(masks, _entries(config, key), strict=True)
    for name, hit in trees.flatten(mask).items()
    if hit
  }


def _entries(config, key):
  """Returns a list of (pattern, value)."""
  default = {"wd_mults": [(".*/kernel$", 1.0)], "schedule": {}}.get(key, [])
  entries = config.get(key, default)
  if key == "schedule" and not isinstance(entries, (list, tuple)):
    entries = [(".*", entries)]
  entries = default if entries is None else entries
  is_pair = lambda x: hasattr(x, "__len__") and len(x) == 2
  if isinstance(entries, str) or not all(map(is_pair, entries)):
    raise ValueError(
      f"config.{key} is {entries!r}, expected a list of (pattern, value)."
    )
  return entries


def _masked(config, params, key):
  """Returns (mask, value) for each (pattern, value) of a list."""
  entries = _entries(config, key)
  masks = trees.masks(params, [p for p, _ in entries], f"config.{key}")
  return [(mask, v) for mask, (_, v) in zip(masks, entries, strict=True)]


def _schedules(config, params):
  """Returns (mask, arguments or None) of each schedule."""
  entries = _masked(config, params, "schedule")
  for _, value in entries:
    if value is not None and not hasattr(value, "items"):
      raise ValueError(
        f"config.schedule has {value!r}, expected arguments such as dict("
        "decay_type='cosine'), or None to freeze parameters."
      )
  covered = trees.flatten(_union(params, [mask for mask, _ in entries]))
  if missing := [name for name, hit in covered.items() if not hit]:
    raise ValueError(
      "config.schedule must cover every parameter, got none for"
      f" {', '.join(missing)}. Add (pattern, None) to freeze them, or end the"
      " list with ('.*', dict(…))."
    )
  return entries


def _optimizer(name, kw):
  """Returns the gradient transformation `name`, made with arguments `kw`."""
  if ":" in name:
    make_tx = registry.import_path("config.optax_name", name)
  else:
    make_tx = OPTIMIZERS.get(name) or functools.reduce(
      lambda module, part: getattr(module, part, None), name.split("."), optax
    )
    # Modules that optax itself imports do not count.
    is_ours = getattr(make_tx, "__module__", "").startswith(("dpn.", "optax."))
    make_tx = make_tx if is_ours else None
  if not callable(make_tx):
    transforms = [key for key in dir(optax) if key.startswith("scale_by_")]
    known = {*OPTIMIZERS, *transforms, "identity", "trace", "ema"} - _NOT_ALONE
    raise ValueError(errors.unknown("config.optax_name", name, known))
  arguments = inspect.signature(make_tx)
  if "learning_rate" in arguments.parameters:
    raise ValueError(
      f"config.optax_name {name!r} would apply a learning rate of its own, and"
      " its sign. Expected a plain transformation, such as 'scale_by_adam' for"
      " 'adamw': config.lr, wd and schedule do the rest."
    )
  for key in kw:
    kind = f"argument of {name} in config.optax"
    errors.check_known(kind, key, arguments.parameters)
  try:
    arguments.bind(**kw)
  except TypeError as e:
    raise ValueError(f"config.optax for {name}{arguments}: {e}.") from e
  tx = make_tx(**kw)
  if not isinstance(tx, optax.GradientTransformation):
    raise ValueError(
      f"config.optax_name {name!r} returned {tx!r}, expected an"
      " optax.GradientTransformation, as optax.scale_by_adam returns."
    )
  if needed := [
    p.name
    for p in inspect.signature(tx.update).parameters.values()
    if p.kind is p.KEYWORD_ONLY and p.default is p.empty
  ]:
    raise ValueError(
      f"config.optax_name {name!r} needs {', '.join(needed)} for every update,"
      " and gets gradients and parameters alone. Choose another."
    )
  _check_sign(name, tx)
  return tx


def _check_sign(name, tx):
  """Raises ValueError if the first update of a transformation descends."""
  params = {"encoderblock_0": {"Dense_0": {"kernel": jnp.ones((2, 2))}}}
  updates, _ = tx.update(params, tx.init(params), params)
  if sum(map(jnp.sum, jax.tree.leaves(updates))) < 0:
    raise ValueError(
      f"config.optax_name {name!r} returns updates against the gradient, as"
      " with a learning rate in it; config.lr would turn them round, and the"
      " loss would rise. Expected a plain transformation, such as"
      " optax.scale_by_adam: config.lr, wd and schedule do the rest."
    )


def scale_by_adafactor(
  min_dim_size_to_factor: int = 32,
  decay_rate: float = 0.8,
  decay_offset: int = 0,
  beta2_cap: float = 0.999,
  clipping_threshold: float | None = None,
  momentum: float | None = 0.9,
  dtype_momentum: str | jnp.dtype = jnp.bfloat16,
  eps: float = 1e-30,
) -> optax.GradientTransformation:
  """Returns Adafactor as in Scaling Vision Transformers.

  Source: arXiv 2106.04560, section 3.4, on top of arXiv 1804.04235: the second
  moment of a matrix is kept as the means of its rows and columns; its decay
  rises as 1 - t^-decay_rate, to `beta2_cap` at most; there is a first moment,
  in half precision and without bias correction; parameter scaling is gone, and
  update clipping, too, unless `clipping_threshold` limits the root mean square
  of an array's update. Arrays with fewer than two dimensions of
  `min_dim_size_to_factor` keep their full second moment. As in big_vision, the
  blocks that `scan` stacks count as a dimension, so from 32 blocks on scales
  and biases are factored, too. `eps` is added to squared gradients.
  """

  def decay(step, exponent):
    return jnp.minimum(beta2_cap, 1.0 - (step + 1.0) ** (-exponent))

  txs = [
    optax.scale_by_factored_rms(
      decay_rate=decay_rate,
      step_offset=decay_offset,
      min_dim_size_to_factor=min_dim_size_to_factor,
      epsilon=eps,
      decay_rate_fn=decay,
    )
  ]
  if clipping_threshold:
    txs.append(optax.clip_by_block_rms(clipping_threshold))
  if momentum:
    txs.append(optax.ema(momentum, False, accumulator_dtype=dtype_momentum))
  return optax.chain(*txs)


def momentum_hp(
  momentum: float = 0.9,
  dtype: str | jnp.dtype = jnp.bfloat16,
  nesterov: bool = False,
) -> optax.GradientTransformation:
  """Returns momentum whose accumulator is in half precision."""
  return optax.trace(momentum, nesterov, dtype)


# Transformations of optax that need the loss or have their own learning rate.
_NOT_ALONE = {
  "scale_by_backtracking_linesearch",
  "scale_by_learning_rate",
  "scale_by_polyak",
  "scale_by_zoom_linesearch",
}
OPTIMIZERS = {
  "big_vision.momentum_hp": momentum_hp,
  "big_vision.scale_by_adafactor": scale_by_adafactor,
  "big_vision.sgd": optax.identity,
  "scale_by_lamb": lamb.scale_by_lamb,
  "scale_by_muon": muon.scale_by_muon,
}
# Arguments that choose parameters; others get Adam.
_PATTERNS = {
  "scale_by_lamb": {"kernels": lamb.KERNELS},
  "scale_by_muon": {"matrices": muon.MATRICES},
}
