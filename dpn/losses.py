"""Returns the loss of each example, (batch, …) float32, unreduced.

Logits, any float, and labels are (batch, …, classes).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dpn import registry


def softmax_xent(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Returns the cross entropy of a softmax over classes, in nats.

  The labels are the target distribution: one-hot, smoothed or mixed.
  """
  logits, labels = _float32(logits, labels)
  return -jnp.sum(labels * jax.nn.log_softmax(logits), axis=-1)


def sigmoid_xent(logits: jax.Array, labels: jax.Array) -> jax.Array:
  """Returns the binary cross entropy summed over classes, in nats.

  Each label is the probability of its class.
  """
  logits, labels = _float32(logits, labels)
  # 1 - sigmoid(x) = sigmoid(-x), whose logarithm stays finite for large x.
  yes, no = jax.nn.log_sigmoid(logits), jax.nn.log_sigmoid(-logits)
  return -jnp.sum(labels * yes + (1.0 - labels) * no, axis=-1)


def _float32(logits, labels):
  if logits.shape != labels.shape:
    raise ValueError(
      f"Got logits {logits.shape} and labels {labels.shape}, expected equal"
      " shapes. Preprocess integer labels with onehot(num_classes)."
    )
  return logits.astype(jnp.float32), labels.astype(jnp.float32)


_LOSSES = {"sigmoid_xent": sigmoid_xent, "softmax_xent": softmax_xent}


def get(name: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """Returns the loss of this name, or at this import path, "package:fn"."""
  return registry.lookup("loss", name, _LOSSES)
