"""Pastes a box of one example into another (CutMix, arXiv 1905.04899)."""

import jax
import jax.numpy as jnp

from dpn import mixup as mixup_lib


def cutmix(
  rng: jax.Array,
  p: float,
  image: jax.Array,
  labels: jax.Array,
  groups: int = 1,
) -> tuple[jax.Array, jax.Array]:
  """Returns images with a box of the preceding one, and mixed labels.

  The box takes a share 1 - lam of the image, with its aspect ratio, lam ~
  Beta(p, p); its centre is a uniform pixel, and what lies outside is cut off
  (Eq. 2 and Algorithm 1). Labels are mixed, in float32, by the share of the
  image that the box really takes.

  Differs from the paper: the partner is the preceding example, not a random
  one.

  Args:
    rng: random key; the result depends on it and the arrays alone.
    p: parameter of the Beta distribution, positive.
    image: (batch, rows, cols, channels).
    labels: (batch, classes) floats.
    groups: how many equal parts of the batch are mixed apart, see
      `mixup.mixup`.

  Raises:
    ValueError: p is not positive, the labels are not of floats, or the groups
      do not divide the batch.
  """
  if not p > 0:
    raise ValueError(f"cutmix got p={p}, expected p > 0: skip cutmix for p=0.")
  lam_rng, centre_rng = jax.random.split(rng)
  rows, cols = image.shape[1:3]
  half = jnp.sqrt(1.0 - jax.random.beta(lam_rng, p, p)) / 2
  centre = jax.random.uniform(centre_rng, (2,))
  in_rows = _inside(centre[0], half, rows)  # (rows,)
  in_cols = _inside(centre[1], half, cols)  # (cols,)
  box = in_rows[:, None] & in_cols[None, :]  # (rows, cols)
  box = box[None, :, :, None]
  share = jnp.mean(box, dtype=jnp.float32)
  partner = mixup_lib.preceding(image, groups)
  return (
    jnp.where(box, partner, image),
    mixup_lib.mix(1.0 - share, labels, groups),
  )


def _inside(centre, half, size):
  """Returns which pixels of an axis lie in the box: (size,) booleans."""
  middle, reach = jnp.floor(centre * size), jnp.floor(half * size)
  index = jnp.arange(size)
  return (index >= middle - reach) & (index < middle + reach)


def mixup_or_cutmix(
  rng: jax.Array,
  image: jax.Array,
  labels: jax.Array,
  *,
  mixup_p: float,
  cutmix_p: float,
  switch_prob: float = 0.5,
  groups: int = 1,
) -> tuple[jax.Array, jax.Array]:
  """Returns images and labels of a batch under one of the two, as DeiT trains.

  Args:
    rng: random key.
    image: (batch, rows, cols, channels) floats.
    labels: (batch, classes) floats.
    mixup_p: as in `mixup.mixup`; 0 for no mixup.
    cutmix_p: as in `cutmix`; 0 for no cutmix.
    switch_prob: probability of cutmix where both are on.
    groups: see `mixup.mixup`.

  Raises:
    ValueError: a parameter or an array does not fit.
  """
  if not 0 <= switch_prob <= 1:
    raise ValueError(f"switch_prob must lie in [0, 1], got {switch_prob}.")
  mix = lambda rng: mixup_lib.mixup(rng, mixup_p, image, labels, groups=groups)
  cut = lambda rng: cutmix(rng, cutmix_p, image, labels, groups)
  if mixup_p and cutmix_p:
    switch_rng, rng = jax.random.split(rng)
    switched = jax.random.bernoulli(switch_rng, switch_prob)
    return jax.lax.cond(switched, cut, mix, rng)
  if cutmix_p:
    return cut(rng)
  return mix(rng) if mixup_p else (image, labels)
