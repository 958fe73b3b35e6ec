"""The state that a run starts from: a checkpoint's, another run's, a file's."""

import contextlib
import itertools
import os
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpn.tasks
from dpn import processes, sharding
from dpn.tasks import base
from dpn.trainers import build, update, workdir
from dpn.weights import checkpoint, files, load, source


def initial_state(
  run: build.Run, checkpoints: checkpoint.Checkpointer
) -> tuple[update.TrainState, dict[str, int], str]:
  """Returns the state to train from, its position, and where it came from.

  In this order: the run's own checkpoint, `config.resume` (another run's
  working directory), `config.model_init` (parameters and running statistics
  only), fresh.
  """
  if checkpoints.latest is not None:
    return *checkpoints.restore(run.step.shapes), "this run's checkpoint"
  return first_state(run)


def first_state(
  run: build.Run,
) -> tuple[update.TrainState, dict[str, int], str]:
  """Returns what `initial_state` does for a run without a checkpoint."""
  config, start = run.config, {"examples_seen": 0}
  if config.get("resume"):
    return *_resume(config["resume"], run), config["resume"]
  state = _fitted(run, run.step.init(jax.random.key(config.get("seed", 0))))
  if not (path := config.get("model_init")):
    return state, start, "fresh parameters"
  variables = load_file(
    path,
    run.step.task,
    state.replace(ema=None).variables,
    pixels=build.pixels(config),
    image_size=build.image_size(config),
    tell=run.loaded.append,
    **(config.get("model_load") or {}),
  )
  params = variables.pop("params")
  # A copy, as training donates both.
  ema = None if state.ema is None else jax.tree.map(jnp.copy, params)
  state = state.replace(params=params, model_state=variables, ema=ema)
  return state, start, str(path)


def _fitted(run, state):
  """Returns a fresh state, fitted to data where the task needs that."""

  def batches():  # nothing is read unless the task asks for a batch
    with contextlib.closing(run.batches(0)) as found:
      yield from itertools.islice(found, max(1, run.total_steps))

  variables = state.variables
  fitted = run.step.task.fit(variables, batches())
  if fitted is variables:
    return state
  shardings = jax.tree.map(lambda x: x.sharding, variables)
  model_state = jax.device_put(dict(fitted), shardings)
  params = model_state.pop("params")
  ema = None if state.ema is None else jax.tree.map(jnp.copy, params)
  return state.replace(params=params, model_state=model_state, ema=ema)


def load_file(
  path: str | source.Checkpoint | Mapping[str, str],
  task: base.Task,
  variables: base.Variables,
  **kw,
) -> dict[str, Any]:
  """Returns the variables with the values loaded from a path.

  `variables` give whatever is not loaded, and the shardings; for the path and
  the keywords see `load.load_variables`.
  """
  shardings = jax.tree.map(lambda x: x.sharding, variables)
  mesh = jax.tree.leaves(shardings)[0].mesh
  # Parameters may be spread over machines, but loading needs each one whole.
  # They are gathered one by one: no device has memory for all of them.
  gather = jax.jit(lambda x: x, out_shardings=sharding.replicated(mesh))
  host = jax.tree.map(lambda x: jax.device_get(gather(x)), variables)
  kw["options"] = task.model_options()
  kw["options_of_run"] = dpn.tasks.model_options
  if {*task.towers} & {*host["params"]}:  # a model of your own has others
    loaded = load.load_towers(path, host, task.towers, **kw)
  else:
    loaded = load.load_variables(path, host, **kw)  # type: ignore[arg-type]
  crc = lambda x: zlib.crc32(np.ascontiguousarray(x).data)
  processes.agree(lambda: {"loaded": jax.tree.map(crc, loaded)})
  return dict(jax.device_put(loaded, shardings))


def _resume(path: str, run: build.Run):
  where = files.locate(path)
  if where.is_file and os.path.basename(where.path) == workdir.PARAMS:
    # A finished run: its state lies beside its parameters.
    folder = os.path.join(where.folder, files.CHECKPOINTS)
    where = files.Location(folder, is_file=False)
  if not os.path.isdir(where.path):
    raise FileNotFoundError(
      f"config.resume={path!r}: {where.path} is no folder of checkpoints. Give "
      "the working directory of a run, or use config.model_init to load a "
      "parameter file."
    )
  other = checkpoint.Checkpointer(where.path, read_only=True)
  with contextlib.closing(other):
    state, position = other.restore(run.step.shapes, step=where.step)
  return state, {"examples_seen": position["examples_seen"]}
