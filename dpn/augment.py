"""Random shifts and flips of whole batches, on the device.

For data that is stored there (`config.input.on_device`), which preprocessing on
the host cannot augment.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from dpn.mixing import key


@dataclasses.dataclass(frozen=True)
class Augment:
  """The keys of `config.augment`: shifts and flips of a batch."""

  pad: int = key("by how many pixels images are shifted, at most", 0)
  pad_value: float | tuple[float, ...] = key(
    "fills the border, in the units that the model sees: a number, or one for "
    "each channel",
    0.0,
  )
  flip_lr: bool = key("whether half of the images are mirrored", False)

  def __post_init__(self):
    if self.pad < 0:
      raise ValueError(f"config.augment.pad={self.pad}: expected 0 or more.")

  def __bool__(self):
    return bool(self.pad or self.flip_lr)

  def __call__(self, shift_rng, flip_rng, image):
    if self.pad:
      image = random_shift(shift_rng, image, self.pad, self.pad_value)
    return random_flip_lr(flip_rng, image) if self.flip_lr else image


def random_shift(
  rng: jax.Array, image: jax.Array, pad: int, value: float | tuple[float, ...]
) -> jax.Array:
  """Returns each image padded by `pad` pixels of `value`, cropped at random.

  `value` is one number or one for each channel. All crops of the images' own
  size, (batch, rows, cols, channels), are equally likely. Equivalent to
  `pad_to_shape(…, where="both")|random_crop(…)`.
  """
  batch, *shape = image.shape
  rows, cols, channels = shape
  size = (batch, rows + 2 * pad, cols + 2 * pad, channels)
  if np.shape(value) not in ((), (channels,)):
    raise ValueError(
      f"config.augment.pad_value={value}: expected one number, or one for each "
      f"of {channels} channels."
    )
  padded = jnp.broadcast_to(jnp.asarray(value, image.dtype), size)
  padded = padded.at[:, pad : pad + rows, pad : pad + cols].set(image)
  corners = jax.random.randint(rng, (batch, 2), 0, 2 * pad + 1)
  crop = lambda x, at: jax.lax.dynamic_slice(x, (at[0], at[1], 0), shape)
  return jax.vmap(crop)(padded, corners)


def random_flip_lr(rng: jax.Array, image: jax.Array) -> jax.Array:
  """Returns images (batch, rows, cols, channels), half of them mirrored."""
  flipped = jax.random.bernoulli(rng, shape=(len(image), 1, 1, 1))
  return jnp.where(flipped, image[:, :, ::-1], image)
