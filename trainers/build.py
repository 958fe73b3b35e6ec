"""Builds, from a config, the objects that train; takes no step itself."""

import dataclasses
import functools
import operator
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import dpn.tasks
from dpn import flops, optim, processes, registry, schedules, sharding
from dpn.evaluators import base as evaluators_base
from dpn.input_pipeline import device, fingerprint, loader, pipeline, pp
from dpn.tasks import base
from dpn.trainers import config_keys, update
from dpn.weights import metadata, preprocessing


@dataclasses.dataclass(frozen=True)
class TrainStep:
  """The training step and all it needs, before any array exists."""

  task: base.Task
  sizes: Mapping[str, int]  # total_steps, batch_size and data_size
  schedule_fns: list[Callable[[int], jax.Array]]  # factors of `config.lr`
  shapes: update.TrainState  # each leaf with its sharding
  frozen: Any  # tree of booleans: the parameters that stay as they are
  batch_shapes: Mapping[str, jax.ShapeDtypeStruct]  # over all processes
  init: Callable[[jax.Array], update.TrainState]  # jitted and sharded
  update: Any  # jitted: (state, batch) → (state, values); donates the state
  make_update: Callable[[Any], Callable]  # seed → `update`, not yet jitted

  def compile(self) -> Callable:
    """Returns `update`, compiled; all processes must have the same program."""
    lowered = self.update.lower(self.shapes, self.batch_shapes)
    program = lambda: zlib.crc32(lowered.as_text().encode())
    processes.agree(lambda: {"program": program()})
    return lowered.compile()

  def flops(self) -> int:
    """Returns the FLOPs of a step over all devices, see `dpn.flops`."""
    variables = {"params": self.shapes.params, **self.shapes.model_state}
    loss = lambda v, b: self.task.measure(v, b)[0]["loss"]
    args = variables, self.batch_shapes
    trained = jax.tree.map(lambda _: False, args)
    trained[0]["params"] = jax.tree.map(operator.not_, self.frozen)
    return flops.of_training(loss, *args, trained=trained)


@dataclasses.dataclass(frozen=True)
class Run:
  """Everything a run needs, built and checked, before any array exists."""

  config: Mapping[str, Any]
  step: TrainStep
  mesh: jax.sharding.Mesh
  data: loader.Data
  evaluators: list[evaluators_base.Scheduled]
  total_steps: int
  log_steps: int  # from one log line to the next
  ckpt_steps: int  # from one checkpoint to the next
  keep_ckpt_steps: int  # between those kept for good; 0: keep only the last two
  notes: list[str]  # on the config, for the person who starts the run
  # Notes on what was loaded at the start; filled when that happens.
  loaded: list[str] = dataclasses.field(default_factory=list)

  def of_seed(self, config: Mapping[str, Any]) -> "Run":
    """Returns the run of a config with another seed, on the same data."""
    seed = config["seed"]
    of_data = config["input"].get("seed")
    data = self.data.with_seed(seed if of_data is None else of_data)
    program = _jitted(self.step.make_update(seed), self.step.shapes, self.mesh)
    step = dataclasses.replace(self.step, update=program)
    return dataclasses.replace(
      self, config=config, step=step, data=data, loaded=[]
    )

  @property
  def batch_size(self) -> int:
    return self.config["input"]["batch_size"]

  @property
  def prefetch(self) -> int:
    return self.config.get("prefetch_to_device") or 2

  def batches(
    self, examples_seen: int
  ) -> device.DeviceIterator | device.ResidentIterator:
    """Returns the batches on the devices, from this position on."""
    data, place = self.data, sharding.batch(self.mesh)
    if data.on_device:
      indices = data.indices(examples_seen)
      return device.ResidentIterator(data.everything(), indices, place)
    on_host = data.batches(examples_seen)
    return device.DeviceIterator(on_host, place, prefetch=self.prefetch)

  def due(self, every_steps: int, step: int) -> bool:
    """Returns whether a period ends at `step`; if it is 0, only at the last."""
    at_end = step == self.total_steps
    return at_end or (every_steps > 0 and step % every_steps == 0)

  def evaluators_due(self, step: int) -> list[evaluators_base.Scheduled]:
    return [e for e in self.evaluators if self.due(e.every_steps, step)]

  def checkpoint_due(self, step: int) -> bool:
    periods = self.ckpt_steps, self.keep_ckpt_steps
    return any(self.due(period, step) for period in periods)


def from_config(config: Mapping[str, Any]) -> Run:
  """Returns the run that a config describes; checks the whole config."""
  notes = config_keys.check(config)
  registry.trust_names(config)
  mesh = sharding.make_mesh(config.get("mesh") or [("data", -1)])
  task = dpn.tasks.make(config)
  pp.add_modules(config.get("pp_modules") or ())
  data = pipeline.training(
    config["input"],
    seed=config.get("seed", 0),
    process_index=jax.process_index(),
    process_count=jax.process_count(),
  )
  processes.agree(data.examples.facts)
  sizes = {key: v.size for key, v in data.vocabularies.items()}
  task.check_vocabularies(sizes)
  step = train_step(config, task, data.spec, mesh, data_size=data.num_examples)
  evaluators = evaluators_base.from_config(
    config, task.predict_fns(), mesh, step.sizes
  )
  for evaluator in evaluators:
    evaluator.check(step.shapes.variables)
    evaluator.check_vocabularies(data.vocabularies)
  duration = lambda name, default: schedules.steps(
    name, config, **step.sizes, default=default
  )
  return Run(
    config=config,
    step=step,
    mesh=mesh,
    data=data,
    evaluators=evaluators,
    total_steps=step.sizes["total_steps"],
    log_steps=duration("log_training", default=50),
    ckpt_steps=duration("ckpt", default=1000),
    keep_ckpt_steps=duration("keep_ckpt", default=0),
    notes=notes,
  )


def train_step(
  config: Mapping[str, Any],
  task: base.Task,
  spec: loader.Spec,
  mesh: jax.sharding.Mesh,
  *,
  data_size: int,
) -> TrainStep:
  """Returns the training step of a config.

  `spec` is of batches over all processes; an epoch has `data_size` examples.
  """
  [batch_size] = {shape[0] for shape, _ in spec.values()}
  parts = _parts(config, batch_size, mesh)
  params = _variables(config, task, spec)["params"]
  sizes = {"batch_size": batch_size, "data_size": data_size}
  sizes["total_steps"] = schedules.steps("total", config, **sizes)
  tx, schedule_fns = optim.make(config, params, **sizes)
  init = _init(config, task, tx, spec)
  shapes = with_shardings(jax.eval_shape(init, jax.random.key(0)), config, mesh)
  shardings = jax.tree.map(lambda s: s.sharding, shapes)
  frozen = optim.frozen_mask(config, params)
  _check_trained(config, frozen, sizes["total_steps"])
  divided = config.get("sharding_strategy")  # otherwise nothing is to keep
  keep = sharding.keep_batch(mesh, batch_size // parts if divided else 0)
  make_update = lambda seed: keep(
    update.make(
      task,
      tx,
      seed=seed,
      frozen=frozen,
      grad_accum=parts,
      ema_decay=_ema_decay(config),
      grad_clip_norm=config.get("grad_clip_norm"),
    )
  )
  by_batch = sharding.batch(mesh)
  return TrainStep(
    task=task,
    sizes=sizes,
    schedule_fns=schedule_fns,
    shapes=shapes,
    frozen=frozen,
    batch_shapes={
      name: jax.ShapeDtypeStruct(shape, dtype, sharding=by_batch)
      for name, (shape, dtype) in spec.items()
    },
    init=jax.jit(init, out_shardings=shardings),
    make_update=make_update,
    update=_jitted(make_update(config.get("seed", 0)), shapes, mesh),
  )


def _jitted(function, shapes, mesh):
  """Returns (state, batch) → (state, values), jitted; donates the state."""
  shardings = jax.tree.map(lambda s: s.sharding, shapes)
  return jax.jit(
    function,
    donate_argnums=0,
    in_shardings=(shardings, sharding.batch(mesh)),
    out_shardings=(shardings, sharding.replicated(mesh)),
  )


def _init(config, task, tx, spec) -> Callable[[jax.Array], update.TrainState]:
  """Returns the function that makes the state that training begins with."""
  return functools.partial(
    update.init,
    task,
    tx,
    batch=one_example(spec),
    ema=_ema_decay(config) is not None,
    grad_depth_steps=update.grad_depth_steps(config.get("log_grad_depth")),
  )


def _ema_decay(config) -> float | None:
  """Returns config.ema_decay, after a check."""
  decay = config.get("ema_decay")
  if decay is not None and not 0 < decay < 1:
    raise ValueError(
      f"config.ema_decay={decay} must lie between 0 and 1, e.g. 0.9999; None "
      "for no average."
    )
  return decay


def _variables(config, task, spec) -> base.Variables:
  """Returns the shapes of a task's variables; checks what the task returns."""
  name = f"config.task={config.get('task', 'classification')!r}"
  rng = jax.random.key(0)
  variables = jax.eval_shape(task.init, rng, one_example(spec))
  if not (isinstance(variables, Mapping) and "params" in variables):
    got = [*variables] if isinstance(variables, Mapping) else type(variables)
    raise ValueError(
      f"{name}: `init` returned {got}, expected a dictionary of collections, "
      "one of them 'params'."
    )
  measure = functools.partial(task.measure, rng=rng)
  batch = {key: jax.ShapeDtypeStruct(*x) for key, x in spec.items()}
  got = jax.eval_shape(measure, variables, batch)
  pair = isinstance(got, tuple) and len(got) == 2
  measured = got[0] if pair else got
  [each] = {shape[:1] for shape, _ in spec.values()}
  if not (
    pair
    and isinstance(measured, Mapping)
    and "loss" in measured
    and all(getattr(x, "shape", None) == each for x in measured.values())
  ):
    shown = jax.tree.map(lambda x: x.shape, measured)
    raise ValueError(
      f"{name}: `measure` returned arrays of the shapes {shown}, expected "
      f"({{'loss': {each}, …}}, model_state): the numbers of each example, not "
      "their mean."
    )
  return variables


def _check_trained(config, frozen, total_steps):
  """Raises ValueError if there are steps, but no parameters to train."""
  if total_steps and all(jax.tree.leaves(frozen)):
    raise ValueError(
      f"config.schedule={config.get('schedule')} freezes every parameter: "
      "nothing would be trained. {} stands for a constant rate; to evaluate "
      "alone, set total_steps=0."
    )


def _parts(config, batch_size, mesh) -> int:
  """Returns config.grad_accum; checks that it and the mesh divide a batch."""
  given = config.get("grad_accum")
  parts = 1 if given is None else given
  if not isinstance(parts, int) or parts < 1 or batch_size % parts:
    raise ValueError(
      f"config.grad_accum={parts} must be a whole number that divides "
      f"config.input.batch_size={batch_size}."
    )
  mixup = config.get("mixup") or {}
  if parts == batch_size > 1 and (mixup.get("p") or mixup.get("cutmix_p")):
    raise ValueError(
      f"config.grad_accum={parts} leaves one example in each part, and "
      "config.mixup mixes the examples of a part with each other: set a "
      "smaller grad_accum, or config.mixup=None."
    )
  what = "config.input.batch_size" + (" / config.grad_accum" * (parts > 1))
  sharding.check_batch_size(what, batch_size // parts, mesh)
  return parts


def params_metadata(run: Run) -> dict[str, str]:
  """Returns the metadata of the parameter file: which model it belongs to."""
  options = run.step.task.model_options()
  made = {k: v.sha256 for k, v in run.data.vocabularies.items() if v.sha256}
  more: dict[str, Any] = {metadata.LOADER: fingerprint.of_config(run.config)}
  more |= {"vocabularies": made} if made else {}
  pp = preprocessing.of_run(run.config)
  return metadata.metadata(options, pixels(run.config), pp=pp, **more)


def image_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
  """Returns (rows, cols) of the images trained on, None if they vary."""
  return preprocessing.describe(config["input"].get("pp"))["size"]


def pixels(config: Mapping[str, Any]):
  """Returns the `weights.pixels.Pixels` of the images trained on, or None."""
  return preprocessing.describe(config["input"].get("pp"))["pixels"]


def one_example(spec: loader.Spec):
  """Returns a batch of one example: enough to initialize from, and cheap."""
  return {k: np.zeros((1, *s[1:]), dtype) for k, (s, dtype) in spec.items()}


def with_shardings(shapes, config: Mapping[str, Any], mesh: jax.sharding.Mesh):
  """Returns shapes with the shardings that a config gives them."""
  strategy = config.get("sharding_strategy") or []
  return jax.tree.map(
    lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where),
    shapes,
    sharding.infer(shapes, strategy, mesh),
  )
