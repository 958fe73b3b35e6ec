"""Mixes examples and their labels (mixup, arXiv 1710.09412)."""

import jax
import jax.numpy as jnp


def mixup(
  rng: jax.Array, p: float, *arrays: jax.Array, groups: int = 1
) -> tuple[jax.Array, ...]:
  """Returns the arrays with each example mixed into the next.

  Example i becomes `lam * x[i] + (1 - lam) * x[i - 1]`, in float32, with
  lam ~ Beta(p, p).

  Differs from the paper: one lam for the batch, at least 1/2 (the larger of
  lam and 1 - lam), and the partner is the preceding example, not a random one.

  Args:
    rng: random key; the result depends on it and the arrays alone.
    p: parameter of the Beta distribution, positive.
    *arrays: (batch, …) floats, for example images and one-hot labels.
    groups: how many equal parts of the batch are mixed apart, the first of a
      part with its last. 1 has the same result on any number of devices. The
      number of devices over which the batch is split keeps every example's
      partner on its device, without communication (big_vision's behaviour).

  Raises:
    ValueError: p is not positive, an array is not of floats, or the groups do
      not divide the batch.
  """
  if not p > 0:
    raise ValueError(f"mixup got p={p}, expected p > 0: skip mixup for p=0.")
  lam = jax.random.beta(rng, p, p)
  lam = jnp.maximum(lam, 1.0 - lam)
  return tuple(mix(lam, x, groups) for x in arrays)


def mix(lam: jax.Array, x: jax.Array, groups: int) -> jax.Array:
  """Returns `lam * x[i] + (1 - lam) * x[i - 1]`, computed in float32."""
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise ValueError(
      f"mixup got {x.dtype} of shape {x.shape}, expected floats. Preprocess"
      " images with value_range and labels with onehot."
    )
  own, other = (y.astype(jnp.float32) for y in (x, preceding(x, groups)))
  return (lam * own + (1.0 - lam) * other).astype(x.dtype)


def preceding(x: jax.Array, groups: int) -> jax.Array:
  """Returns, for every example, the one before it in its part of the batch."""
  if x.shape[0] % groups:
    raise ValueError(
      f"mixup got a batch of {x.shape[0]} in {groups} groups, expected a batch"
      " size that is a multiple of the groups."
    )
  parts = x.reshape(groups, -1, *x.shape[1:])  # (groups, batch/groups, …)
  return jnp.roll(parts, 1, axis=1).reshape(x.shape)
