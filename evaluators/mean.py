"""The mean over a data set of what a task measures for each example."""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from dpn import sharding
from dpn.tasks import base
from input_pipeline import device, pipeline


class MaskedMean:
  """Averages per-example numbers over a data set, each example once.

  Padding (`_mask` false) never counts, whatever value it has.
  """

  def __init__(
    self,
    measure: Callable[[base.Variables, base.Batch], Mapping[str, jax.Array]],
    data: pipeline.EvaluationData,
    mesh: jax.sharding.Mesh,
  ):
    """Prepares the means of `measure`.

    Args:
      measure: returns {name: (batch,)}; "_mask" among them is the weight of
        each example, 0 to leave it out.
      data: batches with `_mask` (batch,).
      mesh: the devices.
    """
    self._data = data
    self._sharding = sharding.batch(mesh)
    self._sums = jax.jit(
      lambda variables, batch: _masked_sums(measure(variables, batch), batch),
      out_shardings=sharding.replicated(mesh),
    )

  def check(self, variables: base.Variables):
    """Traces `measure` on variables and a batch of these shapes."""
    shapes = self._data.spec | {"_mask": ((self._data.batch_size,), bool)}
    batch = {k: jax.ShapeDtypeStruct(*v) for k, v in shapes.items()}
    jax.eval_shape(self._sums, variables, batch)

  def __call__(self, variables: base.Variables) -> dict[str, float]:
    """Returns the mean of each number."""
    totals = collections.Counter()
    running = None
    for batch in device.to_device(iter(self._data), self._sharding):
      # Fetching one batch late keeps the device busy and its memory bounded.
      running, done = self._sums(variables, batch), running
      totals.update(_to_host(done))
    totals.update(_to_host(running))
    count = totals.pop("_mask")
    if not count:
      raise ValueError("No example counts: every one of them is masked out.")
    return {name: total / count for name, total in totals.items()}


def _to_host(sums) -> dict[str, float]:
  return {k: float(v) for k, v in jax.device_get(sums or {}).items()}


def _masked_sums(measured: Mapping[str, jax.Array], batch: base.Batch):
  mask = jnp.where(batch["_mask"], measured.get("_mask", 1.0), 0.0)
  for name, values in measured.items():
    if values.shape != mask.shape:
      raise ValueError(
        f"{name!r} has shape {values.shape}; expected one number per example, "
        f"{mask.shape}."
      )
  sums = {
    k: jnp.sum(jnp.where(mask > 0, mask * v, 0.0)) for k, v in measured.items()
  }
  return sums | {"_mask": jnp.sum(mask, dtype=jnp.float32)}


class Evaluator:
  """Reports the mean of whatever the task's prediction `loss` returns."""

  PRED = "loss"

  def __init__(
    self,
    predict_fn: Callable[[base.Variables, base.Batch], Any],
    *,
    mesh: jax.sharding.Mesh,
    batch_size: int,
    data: Mapping[str, Any],
    pp_fn: str,
    cache_final: bool = False,
  ):
    """Prepares the evaluation.

    Args:
      predict_fn: (variables, batch) → {name: (batch,)}.
      mesh: the devices.
      batch_size: images at a time, over all devices.
      data: the data set, see `input_pipeline.sources.make`.
      pp_fn: preprocessing of each example.
      cache_final: keep the preprocessed data set in memory.
    """
    sharding.check_batch_size("batch_size", batch_size, mesh)
    batches = pipeline.evaluation(
      data,
      pp_fn,
      batch_size,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
      cache=cache_final,
    )
    self._mean = MaskedMean(predict_fn, batches, mesh)

  def check(self, variables: base.Variables):
    """Raises ValueError if variables of these shapes do not fit."""
    self._mean.check(variables)

  def run(self, variables: base.Variables) -> dict[str, float]:
    """Returns the means."""
    return self._mean(variables)
