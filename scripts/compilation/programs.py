"""What a run compiles besides its step: initialization and evaluators."""

from collections.abc import Collection, Iterator

import jax

from dpn import errors, sharding
from dpn.evaluators import base
from dpn.scripts import fake_data
from dpn.trainers import build

ALWAYS, INIT, ALL = "step", "init", "eval"


def check(config, what: Collection[str]):
  """Raises ValueError if a config does not have one of these programs."""
  for name in what:
    known = [ALWAYS, INIT, ALL, *(config.get("evals") or ())]
    errors.check_known("program of --what", name, known)


def lower(
  config, step: build.TrainStep, what: Collection[str]
) -> Iterator[tuple[str, jax.stages.Lowered]]:
  """Yields programs by name, not yet compiled; an evaluator may have several.

  Args:
    config: has the evaluators, whose data are not opened.
    step: the config's.
    what: "init", "eval" (all evaluators) and sections of config.evals.
  """
  image = step.batch_shapes.get("image")
  size = (64, 64) if image is None else image.shape[1:3]
  sections = fake_data.evals(config, size)
  mesh = next(iter(step.batch_shapes.values())).sharding.mesh
  if INIT in what:
    key = jax.eval_shape(lambda: jax.random.key(0))
    yield INIT, step.init.lower(key)
  if ALL not in what:
    sections = {k: v for k, v in sections.items() if k in what}
  scheduled = base.from_config(
    {**config, "evals": sections}, step.task.predict_fns(), mesh, step.sizes
  )
  for each in scheduled:
    lowered = []

    def trace(function, variables, batch, lowered=lowered):
      place = {"sharding": sharding.batch(mesh)}
      shapes = {
        k: jax.ShapeDtypeStruct(s.shape, s.dtype, **place)
        for k, s in batch.items()
      }
      lowered.append(function.lower(variables, shapes))
      return jax.eval_shape(function, variables, batch)

    each.check(step.shapes.variables, trace=trace)
    yield from ((each.name, program) for program in lowered)
