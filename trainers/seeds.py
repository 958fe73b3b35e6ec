"""One or several seeds of a config that train in one program.

Small models leave a device mostly idle; several at once, by jax.vmap, fill it.
Each seed has its own run folder, with everything that a separate run would have
left there, so that it can also be resumed by itself. The numbers are those of
separate runs, up to rounding; a single seed trains without jax.vmap.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from dpn import atomic, errors, processes, sharding, trees
from dpn.input_pipeline import device
from dpn.trainers import build, restore, update
from dpn.trainers import log as log_lib
from dpn.trainers import workdir as workdir_lib
from dpn.weights import checkpoint, files

PLACEHOLDER = "{seed}"


@dataclasses.dataclass
class Seed:
  """One seed's run."""

  config: ml_collections.ConfigDict  # with the seed
  workdir: str
  run: build.Run = dataclasses.field(init=False)  # its steps are those of all
  checkpoints: checkpoint.Checkpointer = dataclasses.field(init=False)
  log: log_lib.MetricsLog = dataclasses.field(init=False)
  # Of the checkpoint that training begins from, see `loop.save`.
  position: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  first_step: int = 0  # of that checkpoint, 0 without one
  # {"unevaluated": row} of a step whose evaluation SIGTERM has cut short.
  unevaluated: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  failure: errors.NonFiniteError | None = None  # why it is trained no more

  def previous_failure(self) -> errors.NonFiniteError | None:
    """Returns an error that says that the seed had diverged, None if not."""
    path = os.path.join(self.workdir, workdir_lib.DIVERGED)
    if not os.path.exists(path):
      return None
    return errors.NonFiniteError(
      f"{self.workdir} had diverged and was left out: see {path}. Train that "
      "seed by itself; or, once the others are done, remove this file to try "
      "it again."
    )


def of_config(
  config: ml_collections.ConfigDict, workdir: str, seeds: Sequence[int] | None
) -> list[Seed]:
  """Returns the run of each seed; None stands for the config's own seed.

  Raises ValueError if the config needs a program of its own for each seed.
  """
  if seeds is None:
    return [Seed(config, workdir)]
  wrong = not seeds or min(seeds) < 0 or max(seeds) >= 2**32
  if wrong or len({*seeds}) < len(seeds):
    raise ValueError(
      f"--seeds={','.join(map(str, seeds))}: expected different numbers in "
      "[0, 2**32), for example --seeds=0,1,2."
    )
  if PLACEHOLDER not in workdir:
    raise ValueError(
      f"--workdir={workdir}: with --seeds it must contain {PLACEHOLDER!r}, "
      "which stands for each of them."
    )
  if jax.process_count() > 1:
    raise ValueError("--seeds needs a single process; train them one by one.")
  for key in ("sharding_strategy", "wandb", "resume"):
    value = config.get(key)
    if value or (key == "wandb" and value is not None):
      raise ValueError(
        f"--seeds does not go with config.{key}; train the seeds one by one."
      )
  text = json.dumps(config.input.to_dict(), default=str)
  if re.search(rf'"(subset_)?seed": {config.get("seed", 0)}\b', text):
    raise ValueError(
      "--seeds: config.input has subset_seed or seed, which is the config's "
      "and would be that of all; train the seeds one by one, or set another."
    )
  if config.input.get("on_error") == "skip":
    raise ValueError("--seeds does not go with config.input.on_error='skip'.")
  found = []
  for seed in seeds:
    own = ml_collections.ConfigDict(config.to_dict())
    with own.unlocked():
      own.seed = seed
    found.append(Seed(own, workdir.replace(PLACEHOLDER, str(seed))))
  return found


class Together:
  """The state of some seeds, and the program that trains them."""

  def __init__(self, seeds: Sequence[Seed]):
    """Takes seeds that have a `run`; `restore` needs `checkpoints` as well."""
    self._seeds = seeds
    self.run = seeds[0].run  # whose periods and evaluators serve all
    self.state: Any = None  # a TrainState; of several seeds, stacked

  def __len__(self):
    return len(self._seeds)

  @property
  def step(self) -> int:
    return int(self.state.step if len(self) == 1 else self.state.step[0])

  @property
  def healthy(self) -> list[Seed]:
    """The seeds that have not diverged."""
    return [seed for seed in self._seeds if not seed.failure]

  def restore(self, *, extends: bool) -> str:
    """Restores the state to train from; returns where it came from.

    All seeds go on from the latest step of the one that is furthest behind.
    Others may be one checkpoint ahead, if a kill came between the saves of two
    seeds, or if a seed's last one is damaged; not if this `extends` finished
    runs.
    """
    states: list[update.TrainState] = []
    while len({seed.first_step for seed in self._seeds}) > 1 or not states:
      if len(self) > 1:
        drop_later_checkpoints(self._seeds, most=0 if extends else 1)
      states = []
      for seed in self._seeds:
        state, seed.position, source = restore.initial_state(
          seed.run, seed.checkpoints
        )
        if seed.checkpoints.latest is not None:
          config = seed.config.to_dict()
          workdir_lib.check_own(seed.workdir, config, seed.position)
        seed.first_step = int(state.step)
        states.append(state)
    if len(self) > 1:
      self.state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
      return f"with {len(self)} seeds together"
    [self.state], [seed] = states, self._seeds
    processes.agree(lambda: _restored(self.state, seed.position, source))
    return source

  def compile(self) -> Callable:
    """Returns the compiled step of all: (state, batch) → (state, values)."""
    step = self.run.step
    if len(self) == 1:
      return step.compile()
    seeds = np.array([seed.config.seed for seed in self._seeds], np.uint32)
    each = lambda seed, state, batch: step.make_update(seed)(state, batch)
    whole = sharding.replicated(self.run.mesh)
    program = jax.jit(
      jax.vmap(each),
      donate_argnums=1,
      in_shardings=(whole, whole, self._place),
      out_shardings=whole,
    )
    shapes = {
      name: jax.ShapeDtypeStruct((len(self), *s.shape), s.dtype)
      for name, s in step.batch_shapes.items()
    }
    compiled = program.lower(seeds, self.state, shapes).compile()
    return functools.partial(compiled, seeds)

  def batches(self) -> device.DeviceIterator | device.ResidentIterator:
    """Returns batches on the devices; with several seeds, (seeds, batch, …)."""
    run, seen = self.run, [s.position["examples_seen"] for s in self._seeds]
    if len(self) == 1:
      return run.batches(*seen)
    of_all = lambda read: zip(
      *(read(s.run.data)(n) for s, n in zip(self._seeds, seen, strict=True)),
      strict=True,
    )
    if run.data.on_device:
      indices = map(np.stack, of_all(lambda data: data.indices))
      everything = run.data.everything()
      return device.ResidentIterator(everything, indices, self._place)
    stack = lambda parts: {k: np.stack([p[k] for p in parts]) for k in parts[0]}
    stacked = map(stack, of_all(lambda data: data.batches))
    return device.DeviceIterator(stacked, self._place, prefetch=run.prefetch)

  def each(self, values) -> Iterator[tuple[Seed, Any]]:
    """Yields each healthy seed and its part of arrays stacked over seeds."""
    for i, seed in enumerate(self._seeds):
      if not seed.failure:
        part = lambda leaf, i=i: leaf[i]
        yield seed, values if len(self) == 1 else jax.tree.map(part, values)

  def states(self) -> Iterator[tuple[Seed, update.TrainState]]:
    """Yields each healthy seed and its state, sharded as in a separate run."""
    for seed, own in self.each(self.state):
      if len(self) > 1:
        shardings = jax.tree.map(lambda s: s.sharding, seed.run.step.shapes)
        own = jax.device_put(own, shardings)
      yield seed, own

  @contextlib.contextmanager
  def may_diverge(self, seed: Seed) -> Iterator[None]:
    """Lets the others go on if the numbers of a seed are not finite.

    Raises NonFiniteError, which names arrays, if no healthy seed is left.
    """
    try:
      yield
    except errors.NonFiniteError as e:
      [state] = [own for other, own in self.states() if other is seed]
      e.args = (f"{e}\n{not_finite(state)}",)
      seed.failure = e
      if jax.process_index() == 0:
        path = os.path.join(seed.workdir, workdir_lib.DIVERGED)
        atomic.write(path, f"{e}\n".encode())
      if not self.healthy:
        raise
      log_lib.say(f"{seed.workdir} diverged, the other seeds go on: {e}")

  @property
  def _place(self) -> jax.sharding.NamedSharding:
    """The sharding of batches of (seeds, batch, …)."""
    spec = jax.sharding.PartitionSpec(None, self.run.mesh.axis_names)
    return jax.sharding.NamedSharding(self.run.mesh, spec)


def not_finite(state: update.TrainState) -> str:
  """Returns which arrays of a state are to blame for numbers like NaN."""
  if leaves := trees.nonfinite(state):
    return f"Not finite now: {errors.some_of(leaves, 10)}."
  name, size = trees.largest(state.params)
  return f"Finite still, but largest: params/{name}, {size:.3g}."


def drop_later_checkpoints(seeds: Sequence[Seed], *, most: int):
  """Deletes the checkpoints of seeds that are ahead of others.

  Raises ValueError if a seed is ahead by more than `most` checkpoints.
  """
  latest = {s.workdir: s.checkpoints.latest or 0 for s in seeds}
  step = min(latest.values())
  started = (os.path.join(s.workdir, files.ENVIRONMENT) for s in seeds)
  if not all(map(os.path.exists, started)):
    most = 0  # not a kill between saves: a seed joins those that have begun
  for seed in seeds:
    steps = [0, *seed.checkpoints.steps]
    if step not in steps or sum(later > step for later in steps) > most:
      raise ValueError(
        f"The seeds stand at different steps: {latest}. Train those that are "
        "behind by themselves to their end, without --seeds (of a sweep, "
        "without --seeds_together); seeds that are done are left out."
      )
  for seed in seeds:
    seed.checkpoints.drop_after(step)


def _restored(state, position, source):
  """Returns what must be the same on all processes where training begins."""
  whole = (x for x in jax.tree.leaves(state) if x.is_fully_replicated)
  local = [x.addressable_data(0) for x in whole]
  checksum = trees.checksum(local)
  return {"position": position, "source": source, "checksum": checksum}
