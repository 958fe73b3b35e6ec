"""From a config to the objects that train: no step is taken here."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import dpn.tasks
from dpn import checkpoint, optim, schedules, sharding
from dpn.models import load
from dpn.tasks import base
from evaluators import base as evaluators_base
from input_pipeline import pipeline
from trainers import schema, update

CHECKPOINTS = "checkpoints"


@dataclasses.dataclass(frozen=True)
class Experiment:
  """Everything a run needs, built and checked, before any array exists.

  Attributes:
    config: as given.
    mesh: the devices.
    data: training examples.
    task: model, loss and metrics.
    schedule_fns: factors of `config.lr` by step.
    evaluators: with how often they run.
    total_steps: length of the run.
    log_steps: steps from one log line to the next.
    ckpt_steps: steps from one checkpoint to the next.
    shapes: of the train state, each leaf with its sharding.
    init: rng → TrainState, jitted and sharded.
    update: (state, batch) → (state, values), jitted; donates the state.
    notes: on the config, for the person who starts the run.
  """

  config: Mapping[str, Any]
  mesh: jax.sharding.Mesh
  data: pipeline.TrainingData
  task: base.Task
  schedule_fns: list[Callable[[int], jax.Array]]
  evaluators: list[evaluators_base.Scheduled]
  total_steps: int
  log_steps: int
  ckpt_steps: int
  shapes: update.TrainState
  init: Callable[[jax.Array], update.TrainState]
  update: Callable
  notes: list[str]

  @property
  def batch_size(self) -> int:
    return self.config["input"]["batch_size"]


def from_config(config: Mapping[str, Any]) -> Experiment:
  """Returns the experiment that a config describes.

  Raises:
    ValueError, OSError: if anything in the config is wrong or missing; the
      message says what was expected.
  """
  notes = schema.check(config)
  seed = config.get("seed", 0)
  mesh = sharding.make_mesh(config.get("mesh") or [("data", -1)])
  task = dpn.tasks.make(config, batch_shards=mesh.size)
  data = pipeline.training(
    config["input"],
    seed=seed,
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )
  batch_size = data.batch_size
  sharding.check_batch_size("config.input.batch_size", batch_size, mesh)
  sizes = {"batch_size": batch_size, "data_size": data.num_examples}
  sizes["total_steps"] = schedules.steps("total", config, **sizes)

  one = _one_example(data.spec)
  params = jax.eval_shape(task.init, jax.random.key(0), one)["params"]
  tx, schedule_fns = optim.make(config, params, **sizes)
  init = lambda rng: update.init(task, tx, rng, one)
  shapes = _with_shardings(
    jax.eval_shape(init, jax.random.key(0)), config, mesh
  )
  shardings = jax.tree.map(lambda s: s.sharding, shapes)
  step = update.make(
    task,
    tx,
    seed=seed,
    frozen=optim.frozen_mask(config, params),
    log_grad_depth=config.get("log_grad_depth", False),
  )
  return Experiment(
    config=config,
    mesh=mesh,
    data=data,
    task=task,
    schedule_fns=schedule_fns,
    evaluators=evaluators_base.from_config(
      config, task.predict_fns(), mesh, sizes
    ),
    total_steps=sizes["total_steps"],
    log_steps=schedules.steps("log_training", config, **sizes, default=50),
    ckpt_steps=schedules.steps("ckpt", config, **sizes, default=1000),
    shapes=shapes,
    init=jax.jit(init, out_shardings=shardings),
    update=jax.jit(
      step,
      donate_argnums=0,
      in_shardings=(shardings, sharding.batch(mesh)),
      out_shardings=(shardings, sharding.replicated(mesh)),
    ),
    notes=notes,
  )


def initial_state(
  experiment: Experiment, checkpoints: checkpoint.Checkpointer
) -> tuple[update.TrainState, dict[str, int], str]:
  """Returns the state to train from, its position, and where it came from.

  In this order: the run's own checkpoint, `config.resume` (another run's
  working directory), `config.model_init` (parameters only), fresh.
  """
  config = experiment.config
  start = {"examples_seen": 0}
  if checkpoints.latest is not None:
    state, position = checkpoints.restore(experiment.shapes)
    return state, position, "this run's checkpoint"
  if config.get("resume"):
    state, position = _resume(config["resume"], experiment)
    return state, position, config["resume"]
  state = experiment.init(jax.random.key(config.get("seed", 0)))
  if not config.get("model_init"):
    return state, start, "fresh parameters"
  loaded = load.load(
    config["model_init"],
    state.params,
    **(config.get("model_load") or {}),
  )
  shardings = jax.tree.map(lambda s: s.sharding, experiment.shapes.params)
  state = state.replace(params=jax.device_put(loaded, shardings))
  return state, start, config["model_init"]


def _resume(workdir: str, experiment: Experiment):
  directory = os.path.join(workdir, CHECKPOINTS)
  if not os.path.isdir(directory):
    raise FileNotFoundError(
      f"config.resume={workdir!r}: there is no {directory}. Give the working "
      "directory of a run, or use config.model_init to load a parameter file."
    )
  other = checkpoint.Checkpointer(directory, read_only=True)
  try:
    if other.latest is None:
      raise FileNotFoundError(f"config.resume: no checkpoint in {directory}.")
    return other.restore(experiment.shapes)
  finally:
    other.close()


def _one_example(spec):
  """Returns a batch of one: enough to initialise from, and cheap."""
  return {k: np.zeros((1, *s[1:]), dtype) for k, (s, dtype) in spec.items()}


def _with_shardings(shapes, config, mesh):
  strategy = config.get("sharding_strategy") or []
  return jax.tree.map(
    lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
    shapes,
    sharding.infer(shapes, strategy, mesh),
  )
