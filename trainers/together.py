"""Trains several seeds of a config in one program, by jax.vmap.

Small models leave a device mostly idle; several at once fill it. Each seed has
a run folder of its own, with everything that a run of its own would have left
there, so that it can also be resumed by itself. The numbers are those of
separate runs, up to rounding.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from dpn import atomic, metrics, sharding, timing
from dpn.input_pipeline import device
from dpn.trainers import build, distributed, loop, update
from dpn.trainers import log as log_lib
from dpn.trainers import workdir as workdir_lib
from dpn.weights import checkpoint, files

SEED = "{seed}"


@dataclasses.dataclass
class Member:
  """One seed's run.

  Attributes:
    run: with the seed's config and data; its steps are those of all.
    workdir: of the run.
    checkpoints: of the run.
    log: of its metrics; None until it is known where training begins.
    position: of its checkpoint, see `loop.loop`.
    failure: why it is not logged any more, if it diverged.
  """

  run: build.Run
  workdir: str
  checkpoints: checkpoint.Checkpointer
  log: log_lib.MetricsLog | None = None
  position: Mapping[str, int] = dataclasses.field(default_factory=dict)
  failure: Exception | None = None

  @contextlib.contextmanager
  def diverging(self) -> Iterator[None]:
    """Ends the logging of this member alone if its numbers are not finite."""
    try:
      yield
    except metrics.NonFiniteError as e:
      log_lib.say(f"{self.workdir} diverged, the other seeds go on: {e}")
      path = os.path.join(self.workdir, workdir_lib.DIVERGED)
      atomic.write(path, f"{e}\n".encode())
      self.failure = e


def train(
  config: ml_collections.ConfigDict,
  pattern: str,
  seeds: Sequence[int],
  *,
  phases: timing.PhaseTimer,
  allow_config_change: bool = False,
):
  """Trains and evaluates all seeds from where they stand to the end.

  Args:
    config: of every run, but for its seed.
    pattern: of the runs' working directories, with "{seed}" in it.
    seeds: of the runs. Those that are done or have diverged are left out.
    phases: says where the time of this process went so far.
    allow_config_change: see `workdir.lock`.

  Raises:
    ValueError, OSError: see `loop.train`; or the config has what needs a
      program of its own, or the seeds stand at different steps.
    metrics.NonFiniteError: a seed diverged, now or before; the others are done.
  """
  _check(config, pattern)
  folders = {seed: pattern.replace(SEED, str(seed)) for seed in seeds}
  todo = {
    seed: folder for seed, folder in folders.items() if not loop.is_done(folder)
  }
  ended = not todo
  if ended and not allow_config_change:
    log_lib.say(f"{pattern} is done already, for all of {len(seeds)} seeds.")
    return
  failures = [_failure(f) for f in todo.values() if _has_diverged(f)]
  todo = {seed: f for seed, f in todo.items() if not _has_diverged(f)}
  if not todo and not ended:
    raise failures[0]
  log_lib.environment(config, pattern)
  with contextlib.ExitStack() as stack:
    with phases.phase("build"):
      members = [
        _member(stack, config, seed, folder, allow_config_change)
        for seed, folder in (todo or folders).items()
      ]
    preemption = stack.enter_context(distributed.PreemptionHandler())
    if ended:
      members = [m for m in members if loop.has_steps_left(m.run, m.workdir)]
    if not members or not _resume(stack, members, phases, preemption, ended):
      return
  failures += [m.failure for m in members if m.failure]
  if failures:
    raise failures[0]


def _resume(stack, members, phases, preemption, ended):
  """Trains members from where they stand; returns whether all is done.

  What it opens is closed with the stack. `ended`: they were at their end.
  """
  with phases.phase("state"):
    states = _states(members, apart=0 if ended else 1)
  first = members[0]
  step = int(states[0].step)
  loop.check_total(first.run, step, first.workdir)
  if ended:
    for member in members:
      loop.extend(member.run, member.workdir, step)
  log_lib.start(first.run)
  seeds = f"with {len(members)} seeds together"
  log_lib.begin(first.run, step, seeds, first.position["examples_seen"])
  progress = log_lib.Progress(
    first.run, first.workdir, step, phases, members=len(members)
  )
  stack.enter_context(contextlib.closing(progress))
  for member, own in zip(members, states, strict=True):
    log = loop.open_log(
      first.run,  # whose evaluators serve all
      member.run.config,
      member.workdir,
      own,
      member.position,
      progress,
    )
    member.log = stack.enter_context(log)
  state = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
  del states
  state, done = _loop(members, state, step, progress, preemption)
  if not _healthy(members):
    raise first.failure
  if not done:
    log_lib.say(preemption.report(f"step {int(state.step[0])} of all seeds"))
    return False
  for member, own in _unstacked(members, state):
    loop.finish(member.workdir, member.run, own, member.log)
  return True


def _has_diverged(folder):
  return os.path.exists(os.path.join(folder, workdir_lib.DIVERGED))


def _failure(folder):
  path = os.path.join(folder, workdir_lib.DIVERGED)
  return metrics.NonFiniteError(
    f"{folder} had diverged and was left out: see {path}. Train that seed by "
    "itself; or, once the others are done, remove this file to try it again."
  )


def _check(config, pattern):
  if SEED not in pattern:
    raise ValueError(
      f"--workdir={pattern}: with --seeds it must contain {SEED!r}, which "
      "stands for each of them."
    )
  if jax.process_count() > 1:
    raise ValueError("--seeds needs a single process; train them one by one.")
  for key in ("sharding_strategy", "wandb", "resume"):
    if config.get(key):
      raise ValueError(
        f"--seeds does not go with config.{key}; train the seeds one by one."
      )
  if config.input.get("on_error") == "skip":
    raise ValueError("--seeds does not go with config.input.on_error='skip'.")


def _member(stack, config, seed, folder, allow_config_change):
  """Returns a seed's run, its folder locked until the stack is closed."""
  own = ml_collections.ConfigDict(config.to_dict())
  with own.unlocked():
    own.seed = seed
  run = build.from_config(own)
  lock = workdir_lib.lock(
    folder, own.to_dict(), allow_config_change=allow_config_change
  )
  stack.enter_context(lock)
  checkpoints = loop.open_checkpoints(run, folder)
  stack.enter_context(contextlib.closing(checkpoints))
  return Member(run, folder, checkpoints)


def _states(members, *, apart: int) -> list[update.TrainState]:
  """Returns the states from which all can go on: of the earliest's step.

  The others may have so many later checkpoints: one, where a kill came between
  the members' saves, or where the earliest's last one is damaged.
  """
  while True:
    _to_common_step(members, apart)
    states = [_restore(member) for member in members]
    if len({int(state.step) for state in states}) == 1:
      return states


def _to_common_step(members, apart):
  """Deletes the checkpoints of members that are ahead of others."""
  latest = {m.workdir: m.checkpoints.latest or 0 for m in members}
  step = min(latest.values())
  started = (os.path.join(m.workdir, files.ENVIRONMENT) for m in members)
  if not all(map(os.path.exists, started)):
    apart = 0  # no kill between saves: a seed joins those that have begun
  for member in members:
    steps = [0, *member.checkpoints.steps]
    if step not in steps or sum(later > step for later in steps) > apart:
      raise ValueError(
        f"The seeds stand at different steps: {latest}. Train those that are "
        "behind by themselves to their end, without --seeds (of a sweep, "
        "without --seeds_together); seeds that are done are left out."
      )
  for member in members:
    member.checkpoints.drop_after(step)


def _restore(member):
  """Returns the state of a member's latest checkpoint that is whole."""
  if member.checkpoints.latest is None:
    state, member.position, _ = build.first_state(member.run)
    return state
  shapes = member.run.step.shapes
  state, member.position = member.checkpoints.restore(shapes)
  own_config = member.run.config.to_dict()
  workdir_lib.check_own(member.workdir, own_config, member.position)
  return state


def _loop(members, state, step, progress, preemption):
  """Trains all members; returns the last state, and whether all is done.

  As `loop.loop`, but a signal to stop waits for an evaluation's end.
  """
  run = members[0].run
  if step == run.total_steps:
    return state, True
  first, make_update, total = step, run.step.make_update, len(members)
  seeds = np.array([member.run.config["seed"] for member in members], np.uint32)
  each = lambda seed, state, batch: make_update(seed)(state, batch)
  whole, place = sharding.replicated(run.mesh), _place(run)
  together = jax.jit(
    jax.vmap(each),
    donate_argnums=1,
    in_shardings=(whole, whole, place),
    out_shardings=whole,
  )
  shapes = {
    name: jax.ShapeDtypeStruct((total, *s.shape), s.dtype)
    for name, s in run.step.batch_shapes.items()
  }
  with progress.compiling():
    together = together.lower(seeds, state, shapes).compile()
  values, stop, batches = None, False, _batches(members)
  with contextlib.closing(batches):
    while step < run.total_steps and not stop and _healthy(members):
      previous, batch = values, next(batches)
      if step == 0:
        for i, member in enumerate(members):
          member.log.show_pictures({k: x[i] for k, x in batch.items()})
      state, values = together(seeds, state, batch)
      step += 1
      jax.block_until_ready(previous)
      progress.tick(step)
      if run.due(run.log_steps, step):
        lap = _share(progress.lap(batches.wait_secs), total)
        _log(members, step, values, lap, progress)
      if due := run.evaluators_due(step):
        for member, own in _of_each(members, values):
          with member.diverging():
            member.log.fetch()
            member.log.check_finite(step, own)
        for member, own in _unstacked(members, state):
          with member.diverging():
            found = loop.evaluate(run, due, own, progress)
            member.log.add(step, found)
      stop = preemption.should_stop(step)
      if stop or run.checkpoint_due(step):
        with progress.phases.phase("checkpoint"):
          seen = (step - first) * run.batch_size
          _save(members, step, seen, state, values)
  return state, step == run.total_steps


def _place(run):
  """Returns the sharding of batches of (seeds, batch, …)."""
  spec = jax.sharding.PartitionSpec(None, run.mesh.axis_names)
  return jax.sharding.NamedSharding(run.mesh, spec)


def _batches(members) -> device.DeviceIterator | device.ResidentIterator:
  """Returns batches of (seeds, batch, …) on the devices."""
  run, place = members[0].run, _place(members[0].run)
  of_all = lambda read: zip(
    *(read(m.run.data)(m.position["examples_seen"]) for m in members),
    strict=True,
  )
  if run.data.on_device:
    indices = map(np.stack, of_all(lambda data: data.indices))
    return device.ResidentIterator(run.data.everything(), indices, place)
  stack = lambda parts: {k: np.stack([p[k] for p in parts]) for k in parts[0]}
  stacked = map(stack, of_all(lambda data: data.batches))
  prefetch = run.config.get("prefetch_to_device") or 2
  return device.DeviceIterator(stacked, place, prefetch=prefetch)


def _log(members, step, values, lap, progress):
  shown = _healthy(members)[0]
  for member, own in _of_each(members, values):
    show = progress.show if member is shown else lambda *unused: None
    with member.diverging():
      member.log.add(step, loop.deferred_row(member.run, step, own, show))
      member.log.add_timing(step, lap)


def _share(lap, total):
  """Returns a row of timing.jsonl for one of so many members."""
  cost = {k: lap[k] / total for k in ("seconds", "core_hours") if k in lap}
  use = {"mfu": lap["mfu"] * total} if "mfu" in lap else {}
  return lap | cost | use


def _save(members, step, seen, state, values):
  """Saves all members, which have `seen` so many examples since the start."""
  for member, own in _of_each(members, values):
    with member.diverging():
      member.log.flush()
      member.log.check_finite(step, own)
  for member in members:  # none may be two saves ahead of one that failed
    member.checkpoints.wait()
  for member, own in _unstacked(members, state):
    so_far = member.position["examples_seen"] + seen
    counts = loop.saved_position(member.run, so_far, member.log)
    member.checkpoints.save(step, own, counts)


def _healthy(members):
  return [member for member in members if not member.failure]


def _of_each(members, values) -> Iterator[tuple[Member, Any]]:
  """Yields the members that have not failed, and the part of each."""
  for i, member in enumerate(members):
    if not member.failure:
      yield member, jax.tree.map(lambda leaf, i=i: leaf[i], values)


def _unstacked(members, state) -> Iterator[tuple[Member, Any]]:
  """Yields the same of the state, with the shardings of a run alone."""
  for member, own in _of_each(members, state):
    shardings = jax.tree.map(lambda s: s.sharding, member.run.step.shapes)
    yield member, jax.device_put(own, shardings)
