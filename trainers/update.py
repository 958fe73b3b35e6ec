"""The training step: everything that happens on the device."""

from collections.abc import Callable, Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax
from flax.linen import fp8_ops

from dpn import trees
from dpn.tasks import base


@flax.struct.dataclass
class TrainState:
  """All that a step reads and replaces.

  Attributes:
    step: () int32, updates done so far.
    params: what the optimizer changes.
    model_state: Flax's other collections (running statistics), often empty.
    opt_state: of the optax transformation.
  """

  step: jax.Array
  params: Any
  model_state: Any
  opt_state: Any

  @property
  def variables(self) -> base.Variables:
    """What a task or an evaluator takes."""
    return {"params": self.params, **self.model_state}


def init(
  task: base.Task,
  tx: optax.GradientTransformation,
  rng: jax.Array,
  batch: base.Batch,
) -> TrainState:
  """Returns the state of step 0."""
  variables = dict(task.init(rng, batch))
  params = variables.pop("params")
  return TrainState(jnp.int32(0), params, variables, tx.init(params))


def make(
  task: base.Task,
  tx: optax.GradientTransformation,
  *,
  seed: int,
  frozen: Any,
  log_grad_depth: bool = False,
) -> Callable[[TrainState, base.Batch], tuple[TrainState, Mapping[str, Any]]]:
  """Returns the pure function of one step, to be jitted.

  Args:
    task: measures the batch.
    tx: turns gradients into updates.
    seed: of the run; a step's key is fold_in(seed, step).
    frozen: tree of booleans, parameters whose gradients do not count.
    log_grad_depth: also return the gradient norms of `grad_depth`.

  Returns:
    A function (state, batch) → (state, values), `values` being scalars: loss,
    l2_grads (before clipping), l2_params, l2_updates, the mean of whatever
    else the task measures, and the gradient norms.
  """

  def update(state: TrainState, batch: base.Batch):
    rng = jax.random.fold_in(jax.random.key(seed), state.step)

    def loss_fn(params, overwritten):
      variables = {"params": params, **state.model_state, **overwritten}
      measured, model_state = task.measure(variables, batch, rng=rng)
      means = {name: jnp.mean(values) for name, values in measured.items()}
      return means["loss"], (means, model_state)

    # Estimates kept by backward passes: their gradient is their next value.
    overwritten = {
      name: value
      for name, value in state.model_state.items()
      if name == fp8_ops.OVERWRITE_WITH_GRADIENT
    }
    (grads, overwritten), (values, model_state) = jax.grad(
      loss_fn, argnums=(0, 1), has_aux=True
    )(state.params, overwritten)
    model_state = {**model_state, **overwritten}
    updates, opt_state = tx.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)

    grads = jax.tree.map(
      lambda g, f: jnp.zeros_like(g) if f else g, grads, frozen
    )
    values |= {
      "l2_grads": trees.l2(grads),
      "l2_params": trees.l2(params),
      "l2_updates": trees.l2(updates),
    }
    if log_grad_depth:
      values |= grad_depth(grads)
    return TrainState(state.step + 1, params, model_state, opt_state), values

  return update


def grad_depth(grads: Any) -> dict[str, jax.Array]:
  """Returns the gradient's L2 norm by depth (arXiv 2302.01327, Figure 2).

  Args:
    grads: tree like a ViT's parameters, looped or scanned.

  Returns:
    `grad_norm/embedding` and `grad_norm/blockNN`, () each.
  """
  norms = {"grad_norm/embedding": trees.l2(grads["embedding"])}
  blocks = grads["Transformer"]
  if "encoderblock" in blocks:
    depth = len(jax.tree.leaves(blocks["encoderblock"])[0])
    per_block = jax.vmap(trees.l2)(blocks["encoderblock"])  # (depth,)
    per_block = [per_block[i] for i in range(depth)]
  else:
    depth = sum(name.startswith("encoderblock_") for name in blocks)
    per_block = [trees.l2(blocks[f"encoderblock_{i}"]) for i in range(depth)]
  for i, norm in enumerate(per_block):
    norms[f"grad_norm/block{i:02d}"] = norm
  return norms
