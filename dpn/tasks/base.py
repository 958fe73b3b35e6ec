"""What the trainer and the evaluators expect of a task."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax

Variables = Mapping[str, Any]  # {"params": …} and Flax's other collections
Batch = Mapping[str, jax.Array]


class Task(Protocol):
  """A model with its loss, its metrics and what evaluators may ask of it.

  A task knows nothing of meshes, optimizers, files or logging.
  """

  def init(self, rng: jax.Array, batch: Batch) -> Variables:
    """Returns fresh variables; only the shapes in `batch` matter."""

  def measure(
    self, variables: Variables, batch: Batch, *, rng: jax.Array | None = None
  ) -> tuple[Mapping[str, jax.Array], Mapping[str, Any]]:
    """Measures every example.

    Args:
      variables: as `init` returns them.
      batch: whatever the task needs, leading axis (batch,).
      rng: key of this step's randomness; None measures as in evaluation,
        without dropout or mixup.

    Returns:
      ({"loss": (batch,), …}, model_state): one number per example, unreduced,
      and the new values of the collections other than "params". A number
      "_mask", if there is one, is each example's weight in all means.
    """

  def predict_fns(self) -> Mapping[str, Callable[[Variables, Batch], Any]]:
    """Returns what evaluators can call, by the name in `evals.<name>.pred`."""
