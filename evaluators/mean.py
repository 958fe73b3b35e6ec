"""The means over a data set of the numbers that a task measures per example."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from dpn.evaluators import base
from dpn.input_pipeline import loader
from dpn.tasks import base as tasks_base


@dataclasses.dataclass(kw_only=True)
class Evaluator(base.Evaluator):
  """Reports the means of per-example numbers, each example counted once.

  Padding (`_mask` false) never counts, whatever value it has. Subclasses
  override `measure`.
  """

  PRED: ClassVar[str] = "loss"

  data: Mapping[str, Any]  # see `dpn.input_pipeline.sources.make`
  pp_fn: str
  cache_final: bool = False  # keep the preprocessed data set in memory

  def __post_init__(self):
    super().__post_init__()
    self._data = self.open(self.data, self.pp_fn, cache=self.cache_final)
    self._sums = self.jit(
      lambda variables, batch: tasks_base.weighted_sums(
        self.measure(variables, batch), batch["_mask"]
      )
    )

  def measure(
    self, variables: tasks_base.Variables, batch: tasks_base.Batch
  ) -> Mapping[str, jax.Array]:
    """Returns {name: (batch,)}.

    "_mask", if present, is the weight of each example, 0 to leave it out.
    """
    return self.predict_fn(variables, batch)

  def check(self, variables, trace=jax.eval_shape):
    shapes = self._data.spec | {"_mask": ((self.batch_size,), bool)}
    batch = {k: jax.ShapeDtypeStruct(*v) for k, v in shapes.items()}
    trace(self._sums, variables, batch)

  def run(self, variables):
    return self.means(variables, self._data)

  def means(
    self, variables: tasks_base.Variables, data: loader.EvaluationData
  ) -> dict[str, float]:
    """Returns the means over `data` of the numbers that `measure` returns."""
    totals = collections.Counter()
    running = {}
    for batch in self.batches(data):
      # Fetching one batch late keeps the device busy and its memory bounded.
      running, done = self._sums(variables, batch), running
      totals.update(_floats(done))
    totals.update(_floats(running))
    count = totals.pop("_mask")
    if not count:
      raise ValueError("No example counts: every one of them is masked out.")
    return {name: total / count for name, total in totals.items()}


def _floats(sums) -> dict[str, float]:
  return {k: float(v) for k, v in jax.device_get(sums).items()}
