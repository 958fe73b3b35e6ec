"""Returns the loss of each example, (batch, …) float32, unreduced.

Logits, any float, and labels are (batch, …, classes).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

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
  return optax.sigmoid_binary_cross_entropy(logits, labels).sum(-1)


def softmax_contrastive(
  zimg: jax.Array,
  ztxt: jax.Array,
  temperature: jax.Array | float,
  *,
  mask: jax.Array | None = None,
  chunks: int = 1,
) -> jax.Array:
  """Returns the mean of both directions' cross entropies, (batch,), in nats.

  Each image has to find its text among all in the batch, and each text its
  image, as in CLIP (arXiv 2103.00020, Figure 3) and LiT (arXiv 2111.07991).

  Args:
    zimg: (batch, dim), of length 1.
    ztxt: (batch, dim), likewise; row i belongs to image i.
    temperature: factor on similarities, () or (1,).
    mask: (batch,), false for pairs that are left out of all comparisons.
    chunks: number of parts in which to process the rows. Memory for (batch,
      batch) falls by this factor; the backward pass recomputes similarities.
  """
  pairs = _pairs(zimg, ztxt)
  total = jnp.zeros(())
  for rows, columns in (pairs, pairs[::-1]):

    def nll(rows, index, columns=columns):
      logits = _similarities(rows, columns, temperature)
      if mask is not None:
        logits = jnp.where(mask[None], logits, -jnp.inf)
      positive = jnp.take_along_axis(logits, index[:, None], axis=1)[:, 0]
      return jax.nn.logsumexp(logits, axis=1) - positive

    total += _by_rows(nll, rows, chunks)
  # A row that is masked itself has no positive.
  return total / 2 if mask is None else jnp.where(mask, total / 2, 0.0)


def sigmoid_contrastive(
  zimg: jax.Array,
  ztxt: jax.Array,
  temperature: jax.Array | float,
  bias: jax.Array | float = 0.0,
  *,
  mask: jax.Array | None = None,
  chunks: int = 1,
) -> jax.Array:
  """Returns SigLIP's loss (arXiv 2303.15343, Section 3.2), (batch,), in nats.

  For each image the binary cross entropies of all texts of the batch, summed.

  Args:
    zimg: (batch, dim), of length 1.
    ztxt: (batch, dim), likewise; row i belongs to image i.
    temperature: factor on similarities, () or (1,).
    bias: added to the similarities after `temperature` has scaled them.
    mask: (batch,), false for pairs that are left out of all comparisons.
    chunks: see `softmax_contrastive`.
  """
  rows, columns = _pairs(zimg, ztxt)

  def nll(rows, index):
    logits = _similarities(rows, columns, temperature) + jnp.reshape(bias, ())
    positive = index[:, None] == jnp.arange(len(columns))[None]
    terms = -jax.nn.log_sigmoid(jnp.where(positive, logits, -logits))
    terms = terms if mask is None else jnp.where(mask[None], terms, 0.0)
    return jnp.sum(terms, axis=1)

  loss = _by_rows(nll, rows, chunks)
  return loss if mask is None else jnp.where(mask, loss, 0.0)


def _pairs(zimg, ztxt):
  if zimg.shape != ztxt.shape or zimg.ndim != 2:
    raise ValueError(
      f"Got embeddings {zimg.shape} of images and {ztxt.shape} of texts, "
      "expected (batch, dim) of both, a text for every image."
    )
  wide = lambda z: z.astype(jnp.promote_types(z.dtype, jnp.float32))
  return wide(zimg), wide(ztxt)


def _similarities(rows, columns, temperature):
  return rows @ columns.T * jnp.reshape(temperature, ())


def _by_rows(fn, rows, chunks):
  """Returns fn(rows, their indices), computed in equal chunks of the rows.

  As a device holds neighbouring rows, every chunk takes some from each device.
  """
  if chunks == 1:
    return fn(rows, jnp.arange(len(rows)))
  if len(rows) % chunks:
    raise ValueError(
      f"loss_chunks={chunks} does not divide the {len(rows)} pairs of a batch: "
      "give the evaluator a batch_size that it does."
    )
  split = lambda x: x.reshape(-1, chunks, *x.shape[1:]).swapaxes(0, 1)
  parts = jax.tree.map(split, (rows, jnp.arange(len(rows))))
  result = jax.lax.map(lambda part: jax.checkpoint(fn)(*part), parts)
  return result.swapaxes(0, 1).reshape(-1)  # (batch,)


def _float32(logits, labels):
  if logits.shape != labels.shape:
    raise ValueError(
      f"Got logits {logits.shape} and labels {labels.shape}, expected equal"
      " shapes. Preprocess integer labels with onehot(config.num_classes)."
    )
  return logits.astype(jnp.float32), labels.astype(jnp.float32)


LOSSES = {"sigmoid_xent": sigmoid_xent, "softmax_xent": softmax_xent}


def get(name: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
  """Returns the loss of this name, or at this import path, "package:fn"."""
  return registry.lookup("loss", name, LOSSES)
