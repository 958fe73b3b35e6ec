"""The training loss in the logs: the mean over all steps since the last row."""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from dpn.trainers import seeds as seeds_lib

KEY = "loss_since_logged"  # in a checkpoint's position


class MeanLoss:
  """Sums the losses of steps on the devices, without waiting for them."""

  def __init__(self, together: seeds_lib.Together):
    """Goes on from the checkpoint's position, which may be between two rows."""
    self._together = together
    found = [seed.position.get(KEY, {}) for seed in together.healthy]
    self._steps, self._sum = 0, None
    if all(found):
      self._steps = found[0]["steps"]
      sums = np.array([each["sum"] for each in found], np.float32)
      self._sum = sums if len(sums) > 1 else sums[0]

  def add(self, loss: jax.Array):
    """Adds the loss of a step, () or (seeds,)."""
    self._sum = loss if self._sum is None else _add(self._sum, loss)
    self._steps += 1

  def take(self) -> jax.Array:
    """Returns the mean, of the same shape, and begins anew."""
    mean = _divide(self._sum, np.float32(self._steps))
    self._steps, self._sum = 0, None
    return mean

  def positions(self) -> Iterator[Mapping[str, Mapping[str, float]]]:
    """Yields what each healthy seed's checkpoint says of unlogged steps."""
    for _, total in self._together.each(self._sum):
      if total is None:
        yield {}
      else:
        total = float(jax.device_get(total))
        yield {KEY: {"steps": self._steps, "sum": total}}


def since_logged(position: Mapping) -> dict[str, float]:
  """Returns the mean `loss` of the steps that no row has yet, if any."""
  found = position.get(KEY)
  return {"loss": found["sum"] / found["steps"]} if found else {}


# Jitted, as must be whatever uses arrays that several processes hold.
_add, _divide = jax.jit(jnp.add), jax.jit(jnp.divide)
