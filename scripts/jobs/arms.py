"""The arms of a sweep: which runs a config asks for, and their index file.

A config has arms if it has a function sweep(arg), which returns a list of
{"name", "arg", "seed"}: what to call the arm, the argument of get_config, its
seed; optionally "overrides", fields of the config by dotted name, and "cell"
and "candidate", see `dpn.scripts.select_best`. `configs/common.py:grid` makes
such a list.
"""

import collections
import dataclasses
import fnmatch
import json
import os
import re
import runpy
import sys
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from absl import flags

import dpn.tasks
from dpn import atomic, errors, paths, schema
from dpn.scripts.results import arms as result_arms
from dpn.scripts.results import output
from dpn.trainers import cli, config_keys
from dpn.trainers import workdir as workdir_lib

INDEX = "sweep.json"


class Index(TypedDict):
  """sweep.json; an arm has the fields of `Arm`."""

  config: str
  arms: list[dict]


TRAINER = ("-m", "dpn.trainers.train")


@dataclasses.dataclass(frozen=True)
class Arm:
  """One run of a sweep.

  Attributes:
    name: of the arm, the same for all its seeds.
    arg: argument of the config.
    seed: of the run.
    overrides: values of the config's fields, by dotted name.
    workdir: of the run.
    cell: the table cell for which the arm competes with other candidates.
    candidate: its name among them.
  """

  name: str
  arg: str
  seed: int
  overrides: Mapping[str, Any]
  workdir: str
  cell: str | None = None
  candidate: str | None = None

  @property
  def run_name(self) -> str:
    return os.path.basename(self.workdir)

  @property
  def title(self) -> str:
    """Returns the name and what was set: "none+qk_norm=layernorm"."""
    fields = {k.replace(".", "/"): str(v) for k, v in self.overrides.items()}
    return result_arms.extended(self.name, fields, {})

  @property
  def done(self) -> bool:
    return os.path.exists(os.path.join(self.workdir, "done.json"))

  @property
  def diverged(self) -> bool:
    return os.path.exists(os.path.join(self.workdir, workdir_lib.DIVERGED))

  @property
  def started(self) -> bool:
    return os.path.exists(os.path.join(self.workdir, "config.json"))

  @property
  def flags(self) -> list[str]:
    return [f"--config.{k}={v}" for k, v in self.overrides.items()]

  def command(self, config: str) -> list[str]:
    """Returns the training command, without the interpreter."""
    config = f"{config}:{self.arg}" if self.arg else config
    run = ["--config", config, "--workdir", self.workdir]
    return [*TRAINER, *run, *self.flags]


@dataclasses.dataclass(frozen=True)
class Job:
  """A process that trains one arm, or the seeds of an arm together.

  Attributes:
    name: for messages.
    command: without the interpreter.
    arms: the runs; the log is in the first one's folder.
  """

  name: str
  command: Sequence[str]
  arms: Sequence[Arm]

  @property
  def log(self) -> str:
    return os.path.join(self.arms[0].workdir, "log.txt")


def jobs(config: str, arms: Sequence[Arm], together: bool = False) -> list[Job]:
  """Returns the jobs that train those of some arms that are not done.

  Args:
    config: of the sweep.
    arms: in the order to run them in.
    together: whether the seeds of an arm train in one process, see
      `dpn.trainers.seeds`.

  Raises:
    ValueError: seeds that are to train together differ in more than the seed.
  """
  arms = [arm for arm in arms if not arm.done]
  if not together:
    return [Job(arm.run_name, arm.command(config), [arm]) for arm in arms]
  get_config = runpy.run_path(config)["get_config"]
  groups, result = {}, []
  for arm in arms:
    groups.setdefault(arm.name, []).append(arm)
  for name, group in groups.items():
    settings = [
      (get_config(arm.arg).to_dict() | {"seed": 0}, arm.overrides)
      for arm in group
    ]
    if any(other != settings[0] for other in settings):
      raise ValueError(
        f"The configs of {name} differ in more than their seeds, which cannot "
        "be trained together. Leave out --seeds_together."
      )
    first, seeds = group[0], ",".join(str(arm.seed) for arm in group)
    pattern = re.sub(rf"-s{first.seed}$", "-s{seed}", first.workdir)
    command = dataclasses.replace(first, workdir=pattern).command(config)
    command.append(f"--seeds={seeds}")
    result.append(Job(f"{name}-s{seeds}", command, group))
  return result


def find(
  config: str,
  arg: str,
  out: str,
  *,
  select: str = "*",
  overrides: Mapping[str, str] | None = None,
) -> list[Arm]:
  """Returns the arms of a config's sweep(arg), whose run folders are in `out`.

  Args:
    config: path of its file.
    arg: of sweep().
    out: folder of the sweep.
    select: shell pattern of names, with or without the seed.
    overrides: config fields of every arm.

  Raises:
    ValueError: the config has no sweep, an arm is wrong, or none is selected.
  """
  module = runpy.run_path(config)
  if "sweep" not in module:
    raise ValueError(
      f"{config} has no function sweep(): it describes a single run, for "
      "dpn.trainers.train."
    )
  arms = [
    _arm(module["get_config"], entry, out, overrides or {})
    for entry in module["sweep"](arg or None)
  ]
  matches = lambda name: fnmatch.fnmatchcase(name, select)
  counts = collections.Counter(arm.run_name for arm in arms)
  if twice := [name for name, count in counts.items() if count > 1]:
    raise ValueError(
      f"The sweep has more than one run of {errors.some_of(twice)}: they would "
      "share a folder. Name each arm once, each seed once."
    )
  chosen = [arm for arm in arms if matches(arm.name) or matches(arm.run_name)]
  if not chosen:
    known = {arm.name for arm in arms}
    if not known:
      raise ValueError(f"{config}: sweep({arg!r}) lists no arm.")
    raise ValueError(errors.unknown("arm in --select:", select, known))
  return chosen


def _arm(get_config, entry, out, overrides):
  """Returns an arm, after building its config so that mistakes show now."""
  keys = {x.name for x in dataclasses.fields(Arm)} - {"workdir"}
  if not {"name", "arg", "seed"} <= entry.keys() <= keys:
    raise ValueError(
      "sweep() returns entries with name, arg and seed, and optionally "
      f"overrides, cell and candidate; got {[*entry]}."
    )
  folder = f"{entry['name']}-s{entry['seed']}"
  if not re.fullmatch(r"[\w.+=,-]+", folder):
    raise ValueError(
      f"The arm {entry['name']!r} cannot name a folder: use letters, digits "
      "and . + = , - _."
    )
  if "seed" in overrides:
    raise ValueError(
      f"--set seed={overrides['seed']}: all seeds would be the same run. Give "
      "--seeds, how many, or the sweep's own argument for seeds."
    )
  entry = entry | {"overrides": {**entry.get("overrides", {}), **overrides}}
  arm = Arm(**entry, workdir=os.path.join(out, folder))
  try:
    config = get_config(arm.arg)
    known = config_keys.known(config)
    for field in arm.overrides:
      errors.check_known("field", field.partition(".")[0], known)
    cli.with_fields(config, arm.flags)
    if "model" in config:
      dpn.tasks.make(config)
  except (ValueError, KeyError, flags.Error) as e:
    raise ValueError(f"Arm {folder}: {e}") from e
  if config.get("seed") != arm.seed:
    raise ValueError(
      f"Arm {folder}: its config has seed {config.get('seed')}, its entry in "
      f"sweep() {arm.seed}. They must agree."
    )
  return arm


def write_index(config: str, arg: str, out: str, arms: Sequence[Arm]):
  """Adds arms to OUT/sweep.json.

  Raises:
    ValueError: OUT belongs to another config, or an arm has already started
      with other settings.
  """
  path = os.path.join(out, INDEX)
  before = {}
  if os.path.exists(path):
    config_there, before = read_index(out)
    # It may have moved, with its checkout, machine or Python.
    same = os.path.basename(config_there) == os.path.basename(config)
    if os.path.exists(config_there):
      same = os.path.samefile(config_there, config)
    if not same:
      raise ValueError(
        f"{out} holds a sweep of {config_there}. Give another --out."
      )
  get_config = runpy.run_path(config)["get_config"]
  for arm in arms:
    there = before.get(arm.workdir)
    if there and arm.started and not _same(get_config, there, arm):
      raise ValueError(
        f"{arm.workdir} started with {there.arg} {dict(there.overrides)}, now "
        f"it is {arm.arg} {dict(arm.overrides)}. Give another --out."
      )
    if arm.done:
      config_now = get_config(arm.arg)
      cli.with_fields(config_now, arm.flags)
      if changed := workdir_lib.changes(arm.workdir, config_now.to_dict()):
        told = f"{arm.workdir} is done, but began with another config:"
        if not there:
          raise ValueError(f"The run in {told}\n{changed}\nGive another --out.")
        output.say(f"Warning: the run in {told}\n{changed}", sys.stderr)
  every = before | {arm.workdir: arm for arm in arms}
  entries = [
    dataclasses.asdict(arm) | {"workdir": arm.run_name}
    for arm in every.values()
  ]
  with output.ensure_folder(out):
    atomic.write_json(path, {"config": config, "arg": arg, "arms": entries})


def _same(get_config, one, other):
  """Returns whether arms train alike, however their arguments are written."""
  told = lambda arm: json.loads(json.dumps(arm.overrides))  # as in the file
  if told(one) != told(other):
    return False
  try:
    return get_config(one.arg).to_dict() == get_config(other.arg).to_dict()
  except ValueError:  # an argument that the config no longer has
    return False


def read_index(out: str) -> tuple[str, dict[str, Arm]]:
  """Returns the config of OUT/sweep.json, and its arms by workdir."""
  path = os.path.join(out, INDEX)
  if not os.path.isfile(path):
    raise ValueError(f"{path} is missing: {out} is not the --out of a sweep.")
  index = schema.read_json(path, Index)
  arms = {}
  for entry in index["arms"]:
    for name, hint in typing.get_type_hints(Arm).items():
      schema.check(path, name, entry.get(name), hint)
    fields = {x.name: entry.get(x.name) for x in dataclasses.fields(Arm)}
    fields["workdir"] = paths.join(out, fields["workdir"])
    arms[fields["workdir"]] = Arm(**fields)
  return index["config"], arms
