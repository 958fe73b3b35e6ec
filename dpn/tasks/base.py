"""What the trainer, the evaluators and the scripts expect of a task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from dpn import trees

Variables = Mapping[str, Any]  # {"params": …} and Flax's other collections
Batch = Mapping[str, jax.Array]


class Task:
  """A model with its loss, its metrics and what evaluators may ask of it.

  `config.task` names one of `dpn.tasks.TASKS` or gives the import path of a
  class of your own, "mypkg.tasks:Regression", which derives from this and has
  to define `from_config`, `init` and `measure`. A task knows nothing of meshes,
  optimizers, files or logging; no other code knows its model, its parameters'
  names or the keys of its batches.

  Attributes:
    config_keys: keys of the config that `from_config` reads.
    towers: names of subtrees of the parameters that are models of their own, so
      that each can be loaded from a separate file.
    embed: None, unless the loss compares the examples of a batch with each
      other. Then `measure` consists of `embed(variables, batch, *, rng=None)` →
      (embeddings, model_state), example by example, and of `compare(variables,
      embeddings, batch)` → the numbers that `measure` returns, so that
      `config.grad_accum` gives the gradients of the whole batch.
  """

  config_keys: ClassVar[tuple[str, ...]] = ()
  towers: ClassVar[tuple[str, ...]] = ()
  embed: Callable | None = None
  compare: Callable | None = None

  @classmethod
  def from_config(cls, config: Mapping[str, Any]) -> "Task":
    """Returns the task of a config."""
    raise NotImplementedError

  def init(self, rng: jax.Array, batch: Batch) -> Variables:
    """Returns fresh variables; only the shapes in `batch` matter."""
    raise NotImplementedError

  def check_vocabularies(self, sizes: Mapping[str, int]):
    """Raises ValueError if a batch may hold ids that the model does not know.

    `sizes` are the sizes of tokenizers' vocabularies, by key of the batch.
    """

  def fit(self, variables: Variables, batches: Iterator[Batch]) -> Variables:
    """Returns the fresh variables, fitted to data where the model needs that.

    For what is computed from images once, before training. `batches` are the
    training batches, from the first step on; few tasks read any.
    """
    del batches
    return variables

  def at(self, step: jax.Array) -> "Task":
    """Returns the task of a training step, for what changes during a run."""
    del step
    return self

  def augment(self, rng: jax.Array, batch: Batch) -> Batch:
    """Returns the batch as a training step sees it, e.g. under mixup."""
    del rng
    return batch

  def measure(
    self, variables: Variables, batch: Batch, *, rng: jax.Array | None = None
  ) -> tuple[Mapping[str, jax.Array], Mapping[str, Any]]:
    """Measures every example.

    `rng` is the step's key; None, as in evaluation: no dropout, no mixup.

    Returns:
      ({"loss": (batch,), …}, model_state): one number per example, unreduced,
      and the new values of the collections other than "params". "_mask", if
      there is one, is each example's weight in all means.
    """
    raise NotImplementedError

  def predict_fns(self) -> Mapping[str, Callable[[Variables, Batch], Any]]:
    """Returns what evaluators can call, by the name in `evals.<name>.pred`.

    Keywords beyond (variables, batch) are set by `evals.<name>.pred_kw`.
    """
    return {"loss": lambda variables, batch: self.measure(variables, batch)[0]}

  def model_options(self) -> Mapping[str, Any]:
    """Returns the options that say what the parameters compute, as JSON values.

    They are written beside exported parameters and compared when loading.
    """
    return {}

  def grad_norms(self, grads: Any) -> Mapping[str, jax.Array]:
    """Returns gradient norms () by group, for `config.log_grad_depth`."""
    return {name: trees.l2(group) for name, group in grads.items()}


def apply(
  model: nn.Module, variables: Variables, *inputs: Any, rng: jax.Array | None
) -> tuple[Any, Mapping[str, Any]]:
  """Returns (what a model returns, its new state), in training if given `rng`.

  Without it, as in evaluation, nothing is random and the state is empty.
  """
  if rng is None:
    return model.apply(variables, *inputs), {}
  return model.apply(
    variables,
    *inputs,
    train=True,
    rngs={"dropout": rng},
    mutable=[name for name in variables if name != "params"],
  )


def check_keys(batch: Batch, keys: Sequence[str], how: str):
  """Raises ValueError if a batch lacks a key; `how` says what makes it."""
  for key in keys:
    if key not in batch:
      raise ValueError(
        f"The examples have {', '.join(sorted(batch))}, but no {key!r}. Let "
        f"config.input.pp make it, and name it in keep(...); {how}."
      )


def weighted_sums(
  measured: Mapping[str, jax.Array], mask: jax.Array
) -> dict[str, jax.Array]:
  """Returns the weighted sum () of each number, and of the weights as `_mask`.

  `measured` is from `Task.measure`; `mask`, (batch,), is false in padding.
  """
  weights = jnp.where(mask, measured.get("_mask", 1.0), 0.0)
  for name, values in measured.items():
    if values.shape != weights.shape:
      raise ValueError(
        f"{name!r} has shape {values.shape}; expected one number per example, "
        f"{weights.shape}."
      )
  total = lambda x: jnp.sum(
    jnp.where(weights > 0, weights * x, 0.0), dtype=jnp.float32
  )
  sums = {name: total(values) for name, values in measured.items()}
  return sums | {"_mask": jnp.sum(weights, dtype=jnp.float32)}


def grad_norms_by_depth(
  grads: Mapping[str, Any], embedding: str, blocks: str
) -> dict[str, jax.Array]:
  """Returns the norms () of a Transformer's embedding and of each block.

  Args:
    grads: gradients of its parameters; empty if it has none.
    embedding: name of the embedding in `grads`.
    blocks: name of the encoder, with blocks looped or scanned.

  Unless both names are in `grads`, the norms are those of its groups.
  """
  if not {embedding, blocks} <= {*grads}:
    return {name: trees.l2(x) for name, x in grads.items()}
  norms, stack = {"embedding": trees.l2(grads[embedding])}, grads[blocks]
  if "encoderblock" in stack:
    per_block = [*jax.vmap(trees.l2)(stack["encoderblock"])]
  else:
    depth = sum(name.startswith("encoderblock_") for name in stack)
    per_block = [trees.l2(stack[f"encoderblock_{i}"]) for i in range(depth)]
  return norms | {f"block{i:02d}": norm for i, norm in enumerate(per_block)}
