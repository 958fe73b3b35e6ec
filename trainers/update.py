"""The training step: everything that happens on the device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax
from flax.linen import fp8_ops

from dpn import trees
from dpn.tasks import base

GRAD_DEPTH_STEPS = 1000  # of the paper's Figure 2: arXiv 2302.01327


@flax.struct.dataclass
class TrainState:
  """All that a step reads and replaces."""

  step: jax.Array  # () int32, updates done so far
  params: Any  # what the optimizer changes
  model_state: Any  # Flax's other collections (running statistics), often none
  opt_state: Any
  ema: Any = None  # moving average of params, if there is one
  grad_norms: Any = None  # of the last steps by group, (steps, 2 * groups)

  @property
  def variables(self) -> base.Variables:
    """What is evaluated and exported: averaged parameters if there are any."""
    params = self.params if self.ema is None else self.ema
    return {"params": params, **self.model_state}


def init(
  task: base.Task,
  tx: optax.GradientTransformation,
  rng: jax.Array,
  batch: base.Batch,
  *,
  ema: bool = False,
  grad_depth_steps: int = 0,
) -> TrainState:
  """Returns the state of step 0.

  It has a moving average if `ema`, and the gradient norms of the last
  `grad_depth_steps`, see `make`.
  """
  state = dict(task.init(rng, batch))
  params = state.pop("params")
  norms = None
  if grad_depth_steps:
    groups = task.grad_norms(params)
    norms = jnp.zeros((grad_depth_steps, 2 * len(groups)), jnp.float32)
  return TrainState(
    step=jnp.int32(0),
    params=params,
    model_state=state,
    opt_state=tx.init(params),
    ema=params if ema else None,
    grad_norms=norms,
  )


def grad_depth_steps(log_grad_depth: bool | int | None) -> int:
  """Returns over how many steps gradient norms by depth are averaged.

  0 means no such norms; `config.log_grad_depth=True` means the paper's number.
  """
  if log_grad_depth is True:
    return GRAD_DEPTH_STEPS
  steps = log_grad_depth or 0
  if not isinstance(steps, int) or steps < 0:
    raise ValueError(
      f"config.log_grad_depth={log_grad_depth!r}: expected over how many steps "
      f"the norms are averaged, or True ({GRAD_DEPTH_STEPS}) or False."
    )
  return steps


def make(
  task: base.Task,
  tx: optax.GradientTransformation,
  *,
  seed: int | jax.Array,
  frozen: Any,
  grad_accum: int = 1,
  ema_decay: float | None = None,
  grad_clip_norm: float | Sequence | None = None,
) -> Callable[[TrainState, base.Batch], tuple[TrainState, Mapping[str, Any]]]:
  """Returns the pure function of one step, to be jitted.

  Args:
    task: measures the batch.
    tx: turns gradients into updates.
    seed: of the run; a step's key is fold_in(seed, step).
    frozen: tree of booleans: the parameters whose gradients do not count.
    grad_accum: in how many equal parts to go through the batch. The result is
      that of the whole batch, except for what mixes examples (mixup, batch
      statistics) or draws random numbers: that happens within each part. A loss
      that compares examples sees the whole batch, see `tasks.base.Task`.
    ema_decay: of the moving average of parameters; None for no average.
    grad_clip_norm: the global norm to which `tx` clips; None for no clipping.
      If it is a list, which clips by groups, clipped norms are not returned.

  Returns:
    A function (state, batch) → (state, values). The values are scalars: loss,
    l2_grads (before clipping), l2_params, l2_updates and the mean of whatever
    else the task measures. If the state has `grad_norms`, there are also the
    norms of the task's groups, before clipping as grad_norm/… and after it as
    grad_norm_clipped/…, and the means of both over the last steps, this one
    included, as grad_norm_mean/… and grad_norm_clipped_mean/….
  """

  def update(state: TrainState, batch: base.Batch):
    rng = jax.random.fold_in(jax.random.key(seed), state.step)
    now = task.at(state.step)
    grads, values, model_state = gradients(now, state, batch, rng, grad_accum)
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)

    # Gradients of frozen parameters do not count in the norms that are logged.
    mask_frozen = lambda grad, frozen: jnp.zeros_like(grad) if frozen else grad
    grads = jax.tree.map(mask_frozen, grads, frozen)
    norms = {"l2_grads": grads, "l2_params": params, "l2_updates": updates}
    values |= {name: trees.l2(tree) for name, tree in norms.items()}
    recent = state.grad_norms
    if recent is not None:
      clip: jax.Array | float = 1.0
      by_group = not isinstance(grad_clip_norm, int | float | None)
      if grad_clip_norm and not by_group:
        total = jnp.maximum(values["l2_grads"], jnp.finfo(jnp.float32).tiny)
        clip = jnp.minimum(1.0, jnp.float32(grad_clip_norm) / total)
      recent, norms = _grad_norms(task, grads, clip, recent, state.step)
      clipped = "grad_norm_clipped"
      shown = {k: v for k, v in norms.items() if not k.startswith(clipped)}
      values |= shown if by_group else norms
    ema = state.ema
    if ema_decay is not None:
      ema = _average(ema, params, frozen, state.step, ema_decay)
    step = state.step + 1
    state = TrainState(step, params, model_state, opt_state, ema, recent)
    return state, values

  return update


def _grad_norms(task, grads, clip, recent, step):
  """Returns `recent` with this step's gradient norms, and all norms to log.

  Clipping has multiplied the gradients by `clip`.
  """
  groups = task.grad_norms(grads)
  norms = jnp.stack([*groups.values()])
  norms = jnp.concatenate([norms, clip * norms])
  recent = recent.at[step % len(recent)].set(norms)  # the oldest goes
  means = jnp.sum(recent, 0) / jnp.minimum(step + 1, len(recent))
  kinds = ("grad_norm", "grad_norm_clipped")
  return recent, {
    f"{kind}{mean}/{group}": value
    for mean, both in (("", norms), ("_mean", means))
    for kind, values in zip(kinds, jnp.split(both, 2), strict=True)
    for group, value in zip(groups, values, strict=True)
  }


def gradients(task, state, batch, rng, parts):
  """Returns the gradients of the mean loss, all means, and the new model state.

  Goes through the batch in `parts`, one after the other. The task's `_mask`, if
  any, weighs the examples.
  """
  if parts > 1 and task.embed is not None:
    return _cached_gradients(task, state, batch, rng, parts)
  size = len(jax.tree.leaves(batch)[0])

  def loss_fn(params, overwritten, model_state, batch, rng):
    variables = {"params": params, **model_state, **overwritten}
    measured, model_state = task.measure(variables, batch, rng=rng)
    shares = _shares(measured, size)
    return shares["loss"], (shares, model_state)

  def part(model_state, batch, rng):
    # PowerNorm and its like return the next running estimate as the gradient of
    # this one: it is stored, not given to the optimizer (norms/power_norm.py).
    key = fp8_ops.OVERWRITE_WITH_GRADIENT
    overwritten = {k: v for k, v in model_state.items() if k == key}
    grad_fn = jax.grad(loss_fn, argnums=(0, 1), has_aux=True)
    (grads, overwritten), (shares, model_state) = grad_fn(
      state.params, overwritten, model_state, batch, rng
    )
    return {**model_state, **overwritten}, grads, shares

  if parts == 1:
    model_state, grads, shares = part(state.model_state, batch, rng)
  else:

    def body(carry, xs):
      # The state's integers count training steps, and all parts are one step.
      before = trees.with_integers(carry[0], state.model_state)
      model_state, grads, shares = part(before, *xs)
      return (model_state, jax.tree.map(jnp.add, carry[1], grads)), shares

    start = state.model_state, jax.tree.map(jnp.zeros_like, state.params)
    xs = _split(batch, parts), jax.random.split(rng, parts)
    (model_state, grads), shares = jax.lax.scan(body, start, xs)
    shares = {k: jnp.sum(v) for k, v in shares.items()}
  return *_means(grads, shares), model_state


def _cached_gradients(task, state, batch, rng, parts):
  """Returns `gradients` of a loss that compares all examples of the batch.

  Gradient caching (arXiv 2101.06983, Section 3.2): embeds the parts one after
  the other, takes the gradient of the loss with respect to all embeddings, and
  goes through the parts again to take it from there to the parameters.
  """
  if fp8_ops.OVERWRITE_WITH_GRADIENT in state.model_state:
    raise ValueError(
      f"config.grad_accum={parts} embeds each part twice, and the statistics "
      "of PowerNorm or Unified Normalization would differ in between. Set "
      "grad_accum=1 or another norm."
    )
  size = len(jax.tree.leaves(batch)[0])
  xs = _split(batch, parts), jax.random.split(rng, parts)

  def embed(params, model_state, batch, rng):
    return task.embed({"params": params, **model_state}, batch, rng=rng)

  def forward(model_state, x):
    model_state = trees.with_integers(model_state, state.model_state)
    z, updated = embed(state.params, model_state, *x)
    return {**model_state, **updated}, (z, model_state)

  def loss_fn(params, z):
    join = lambda x: x.swapaxes(0, 1).reshape(size, *x.shape[2:])
    z = jax.tree.map(join, z)  # back in the batch's order
    shares = _shares(task.compare({"params": params}, z, batch), size)
    return shares["loss"], shares

  def backward(grads, x):
    dz, before, *x = x
    of_params = lambda params: embed(params, before, *x)[0]
    [more] = jax.vjp(of_params, state.params)[1](dz)
    return jax.tree.map(jnp.add, grads, more), None

  model_state, (z, before) = jax.lax.scan(forward, state.model_state, xs)
  grad_fn = jax.grad(loss_fn, argnums=(0, 1), has_aux=True)
  (grads, dz), shares = grad_fn(state.params, z)
  grads, _ = jax.lax.scan(backward, grads, (dz, before, *xs))
  return *_means(grads, shares), model_state


def _shares(measured, size):
  """Returns what examples contribute to the means over a batch of `size`."""
  mask = jnp.ones(len(measured["loss"]), bool)
  return {k: x / size for k, x in base.weighted_sums(measured, mask).items()}


def _means(grads, shares):
  """Returns gradients and means over examples with weights, mostly 1."""
  weight = shares.pop("_mask")
  # A batch in which nothing counts has a loss of 0 and no gradient.
  weight = jnp.where(weight > 0, weight, 1.0)
  return jax.tree.map(lambda x: x / weight, (grads, shares))


def _split(batch, parts):
  """Returns arrays (parts, batch / parts, …), without communication.

  Part i is every parts-th example from i on: consecutive ones lie on the same
  device, and every device must have work in every part.
  """
  return jax.tree.map(
    lambda x: x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1), batch
  )


def _average(ema, params, frozen, step, decay):
  """Returns the next moving average of parameters; frozen ones keep their bits.

  The decay grows to `decay` as (1 + step) / (10 + step), so that the average
  soon forgets the initial parameters.
  """
  decay = jnp.minimum(decay, (1.0 + step) / (10.0 + step))
  mix = lambda e, p: (decay * e + (1.0 - decay) * p).astype(e.dtype)
  return jax.tree.map(
    lambda e, p, frozen: e if frozen else mix(e, p), ema, params, frozen
  )
