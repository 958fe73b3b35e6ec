"""Mixes examples and their labels: mixup and CutMix."""

import dataclasses

import jax
import jax.numpy as jnp


def key(doc: str, default=None):
  """Returns the field for a key of a config, with its documentation."""
  return dataclasses.field(default=default, metadata={"doc": doc})


@dataclasses.dataclass(frozen=True)
class Mixup:
  """The keys of `config.mixup`: mixup or CutMix of a batch, as DeiT trains."""

  p: float | None = key("of mixup's beta distribution; 0 turns it off", 0.0)
  cutmix_p: float | None = key(
    "of CutMix's beta distribution; 0 turns it off", 0.0
  )
  switch_prob: float = key("probability of CutMix where both are on", 0.5)
  whole_labels: bool = key(
    "whether a mixed example has both classes in full, as in DeiT III with "
    "`sigmoid_xent`: an example's largest labels become 1, the others 0",
    False,
  )
  fold_in: str | None = key("big_vision's; only None is supported")
  until_steps: int | None = key("the step from which on nothing is mixed")

  def __post_init__(self):
    if self.fold_in is not None:
      raise ValueError(
        f"mixup.fold_in={self.fold_in!r} is not supported: one mixing weight "
        "serves the whole batch. Set it to None."
      )
    lowest = min(self.p or 0.0, self.cutmix_p or 0.0)
    if lowest < 0 or not 0 <= self.switch_prob <= 1:
      raise ValueError(
        f"config.mixup has p={self.p}, cutmix_p={self.cutmix_p} and switch_"
        f"prob={self.switch_prob}, expected none below 0, and switch_prob no "
        "more than 1."
      )

  def __call__(
    self, rng: jax.Array, image: jax.Array, labels: jax.Array
  ) -> tuple[jax.Array, jax.Array]:
    """Returns images and labels of a batch, mixed; arrays as in `cutmix`."""
    if self.whole_labels:  # smoothed ones would all be above 0
      top = (labels > 0) & (labels == labels.max(-1, keepdims=True))
      labels = top.astype(labels.dtype)
    image, labels = self._mixed(rng, image, labels)
    if self.whole_labels:
      labels = (labels > 0).astype(labels.dtype)
    return image, labels

  def _mixed(self, rng, image, labels):
    """Returns images and labels mixed by one of the methods, as in DeiT."""
    if self.p and self.cutmix_p:
      # Only the weights depend on the condition: for a batch that went through
      # it, XLA for GPUs forgets the sharding, and each GPU computes everything.
      switch_rng, rng = jax.random.split(rng)
      switched = jax.random.bernoulli(switch_rng, self.switch_prob)
      rows, cols = image.shape[1:3]
      box, lam = _box(rng, self.cutmix_p, rows, cols), _lam(rng, self.p)
      own = jnp.where(switched, ~box, lam)  # the weight of each pixel
      share = jnp.mean(box, dtype=jnp.float32)
      lam = jnp.where(switched, 1.0 - share, lam)
      return _mix(own[None, :, :, None], image), _mix(lam, labels)
    if self.cutmix_p:
      return cutmix(rng, self.cutmix_p, image, labels)
    return mixup(rng, self.p, image, labels) if self.p else (image, labels)


def mixup(
  rng: jax.Array, p: float, *arrays: jax.Array
) -> tuple[jax.Array, ...]:
  """Returns the arrays with each example mixed into the next (mixup).

  Example i becomes `lam * x[i] + (1 - lam) * x[i - 1]`, in float32, with
  lam ~ Beta(p, p).

  Differs from arXiv 1710.09412: one lam for the batch, at least 1/2 (the larger
  of lam and 1 - lam), and the partner is the preceding example, not a random
  one.

  Arrays are (batch, …) floats, for example images and one-hot labels. The first
  example is mixed with the last, on any number of devices.
  """
  lam = _lam(rng, p)
  return tuple(_mix(lam, x) for x in arrays)


def _lam(rng, p):
  lam = jax.random.beta(rng, p, p)
  return jnp.maximum(lam, 1.0 - lam)


def cutmix(
  rng: jax.Array, p: float, image: jax.Array, labels: jax.Array
) -> tuple[jax.Array, ...]:
  """Returns images with a box of the preceding one, and mixed labels (CutMix).

  The box takes a share 1 - lam of the image, with its aspect ratio, lam ~
  Beta(p, p); its centre is a uniform pixel, and parts outside the image are cut
  off (Eq. 2 and Algorithm 1). Labels are mixed, in float32, by the share of the
  image that the box really takes.

  Differs from arXiv 1905.04899: the partner is the preceding example, not a
  random one. Images are (batch, rows, cols, channels), labels floats (batch,
  classes).
  """
  box = _box(rng, p, *image.shape[1:3])
  mixed = jnp.where(box[None, :, :, None], _preceding(image), image)
  share = jnp.mean(box, dtype=jnp.float32)
  return mixed, _mix(1.0 - share, labels)


def _box(rng, p, rows, cols):
  """Returns which pixels CutMix replaces, (rows, cols) booleans."""
  lam_rng, centre_rng = jax.random.split(rng)
  half = jnp.sqrt(1.0 - jax.random.beta(lam_rng, p, p)) / 2
  centre = jax.random.uniform(centre_rng, (2,))
  in_rows = _inside(centre[0], half, rows)  # (rows,)
  in_cols = _inside(centre[1], half, cols)  # (cols,)
  return in_rows[:, None] & in_cols[None]


def _mix(lam: jax.Array, x: jax.Array) -> jax.Array:
  """Returns `lam * x[i] + (1 - lam) * x[i - 1]`, computed in float32."""
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise ValueError(
      f"mixup got {x.dtype} of shape {x.shape}, expected floats. Preprocess"
      " images with value_range and labels with onehot."
    )
  own, other = (y.astype(jnp.float32) for y in (x, _preceding(x)))
  return (lam * own + (1.0 - lam) * other).astype(x.dtype)


def _preceding(x: jax.Array) -> jax.Array:
  """Returns, for every example, the one before it in the batch."""
  return jnp.roll(x, 1, axis=0)


def _inside(centre, half, size):
  """Returns which pixels of an axis lie in the box: (size,) booleans."""
  middle, reach = jnp.floor(centre * size), jnp.floor(half * size)
  index = jnp.arange(size)
  return (index >= middle - reach) & (index < middle + reach)
