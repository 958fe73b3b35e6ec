"""Trains all arms of a config: a table of the paper, say.

  python -m scripts.sweep --config configs/stem_ablation.py --out runs/table6 \
    [--seeds 3] [--select 'dpn_*'] [--jobs 2] [--set total_steps=9] [--dry_run]

A config has arms if it has a function sweep(arg), which returns a list of
{"name", "arg", "seed"}: what to call it, the argument of get_config, its seed;
optionally "overrides", fields of the config by dotted name. Each is a run of
trainers.train in OUT/<name>-s<seed>, with its output in log.txt there;
OUT/sweep.json lists them.

Started again it leaves alone what is done and goes on with what was cut; an arm
that fails does not stop the others. Ctrl-C, or SIGTERM, lets the running ones
save. --print_commands and --slurm run nothing here: they print the commands of
what is not done, one a line or as a job array for sbatch.
"""

import argparse
import collections
import contextlib
import dataclasses
import fcntl
import fnmatch
import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpn import errors
from dpn.models import stem
from dpn.weights import checkpoint
from scripts.jobs import local
from scripts.results import output
from trainers import config_keys

INDEX = "sweep.json"
TRAINER = ("-m", "trainers.train")


@dataclasses.dataclass(frozen=True)
class Arm:
  """One run of a sweep.

  Attributes:
    name: of the arm, the same for all its seeds.
    arg: argument of the config.
    seed: of the run.
    overrides: values of the config's fields, by dotted name.
    workdir: of the run.
    cell: what the arm competes for with other candidates, if it does.
    candidate: what it is among them.
  """

  name: str
  arg: str
  seed: int
  overrides: Mapping[str, Any]
  workdir: str
  cell: str | None = None
  candidate: str | None = None

  @property
  def done(self) -> bool:
    return os.path.exists(os.path.join(self.workdir, "done.json"))

  @property
  def begun(self) -> bool:
    return os.path.exists(os.path.join(self.workdir, "config.json"))

  def command(self, config: str) -> list[str]:
    """Returns what to run, without the interpreter."""
    fields = [f"--config.{k}={v}" for k, v in self.overrides.items()]
    config = f"{config}:{self.arg}" if self.arg else config
    return [*TRAINER, "--config", config, "--workdir", self.workdir, *fields]


def find(
  config: str,
  arg: str,
  out: str,
  *,
  select: str | None = None,
  overrides: Mapping[str, str] | None = None,
) -> list[Arm]:
  """Returns the arms of a config.

  Args:
    config: path of its file.
    arg: argument of its sweep().
    out: folder of the run folders.
    select: pattern of names, with or without the seed, as for files.
    overrides: of every arm.

  Raises:
    ValueError: there is no such config, it has no sweep, an arm is wrong, or
      none is selected.
  """
  module = _load(config)
  arms = [
    _arm(module, entry, out, overrides or {}) for entry in _arms(module, arg)
  ]
  counts = collections.Counter(arm.workdir for arm in arms)
  if twice := [workdir for workdir, count in counts.items() if count > 1]:
    raise ValueError(
      f"{config}: two arms would use {twice[0]}. Let sweep() give each pair of "
      "name and seed once."
    )
  if select is None:
    return arms
  chosen = [
    arm
    for arm in arms
    if fnmatch.fnmatchcase(arm.name, select)
    or fnmatch.fnmatchcase(os.path.basename(arm.workdir), select)
  ]
  if not chosen:
    known = dict.fromkeys(arm.name for arm in arms)
    raise ValueError(errors.unknown("arm in --select:", select, known))
  return chosen


def _load(path):
  if not os.path.isfile(path):
    raise ValueError(
      f"There is no config {path!r}. Give the path of its file, and arguments "
      "after a colon."
    )
  spec = importlib.util.spec_from_file_location("swept_config", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not hasattr(module, "sweep"):
    raise ValueError(
      f"{path} has no function sweep(): it describes a single run, for "
      "trainers.train."
    )
  return module


def _arms(module, arg):
  entries = module.sweep(arg or None)
  known = {"name", "arg", "seed", "overrides", "cell", "candidate"}
  for entry in entries:
    if not {"name", "arg", "seed"} <= entry.keys() <= known:
      raise ValueError(
        f"An arm of sweep() has the keys {sorted(entry)}; expected name, arg "
        "and seed, and perhaps overrides, cell, candidate."
      )
  return entries


def _arm(module, entry, out, overrides):
  """Returns an arm, after building its config: nothing fails hours later."""
  folder = f"{entry['name']}-s{entry['seed']}"
  if not re.fullmatch(r"[\w.+=,-]+", folder):
    raise ValueError(
      f"The arm {entry['name']!r} cannot name a folder: use letters, digits "
      "and . + = , - _."
    )
  fields = dict(entry.get("overrides") or {}) | dict(overrides)
  try:
    config = module.get_config(entry["arg"])
    _check_fields(config, fields)
  except (ValueError, KeyError) as e:
    raise ValueError(f"Arm {folder}: {e}") from e
  if config.get("seed") != entry["seed"]:
    raise ValueError(
      f"Arm {folder}: its config has seed {config.get('seed')}, its entry in "
      f"sweep() {entry['seed']}. Let them agree."
    )
  return Arm(**entry | {"overrides": fields}, workdir=os.path.join(out, folder))


def _check_fields(config, fields):
  """Raises on what would fail at a run's start for sure."""
  for field in fields:
    known = config_keys.known(config)
    if (top := field.partition(".")[0]) not in known:
      raise ValueError(errors.unknown("field", top, known))
  if stem_ln := (config.get("model") or {}).get("stem_ln"):
    stem.get_norms(stem_ln)


def write_index(config: str, arg: str, out: str, arms: Sequence[Arm]):
  """Adds arms to OUT/sweep.json.

  Raises:
    ValueError: OUT is another config's, or an arm there has begun otherwise.
  """
  path = os.path.join(out, INDEX)
  before = {}
  if os.path.exists(path):
    config_there, before = read_index(out)
    if os.path.realpath(config_there) != os.path.realpath(config):
      raise ValueError(
        f"{out} holds a sweep of {config_there}. Give another --out."
      )
  for arm in arms:
    there = before.get(arm.workdir)
    if there and arm.begun and there != arm:
      raise ValueError(
        f"{arm.workdir} began with {there.arg} {dict(there.overrides)}, now it "
        f"is {arm.arg} {dict(arm.overrides)}. Give another --out."
      )
  every = before | {arm.workdir: arm for arm in arms}
  entries = [dataclasses.asdict(arm) for arm in every.values()]
  for entry in entries:
    entry["workdir"] = os.path.basename(entry["workdir"])
  index = {"config": config, "arg": arg, "arms": entries}
  with output.made(out):
    checkpoint.write_json(path, index)


def read_index(out: str) -> tuple[str, dict[str, Arm]]:
  """Returns the config of OUT/sweep.json, and its arms by workdir.

  Raises:
    ValueError: there is none.
  """
  path = os.path.join(out, INDEX)
  if not os.path.isfile(path):
    raise ValueError(
      f"{path} is missing: give the --out folder of a sweep, as python -m "
      "scripts.sweep makes it."
    )
  with open(path) as f:
    index = json.load(f)
  arms = [
    Arm(**entry | {"workdir": os.path.join(out, entry["workdir"])})
    for entry in index["arms"]
  ]
  return index["config"], {arm.workdir: arm for arm in arms}


@contextlib.contextmanager
def hold(out: str) -> Iterator[int]:
  """Keeps OUT to one sweep and its arms; yields a file to hand to them.

  The arms inherit the lock: should the sweep be killed, the next one waits for
  what still runs.
  """
  with output.made(out):
    f = open(os.path.join(out, "sweep.lock"), "a")  # noqa: SIM115, see below
  with f:
    try:
      fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
      raise ValueError(
        f"Another sweep is using {out}, or runs that it started still do. Wait "
        "for their end, or give another --out."
      ) from e
    yield f.fileno()


def slurm(commands: Sequence[str], name: str, at_once: int | None) -> str:
  """Returns a script for sbatch that runs each command as a task of an array.

  Two minutes before its time is over a task is told to save. Submitted again,
  the script goes on with what is not done.
  """
  limit = f"%{at_once}" if at_once else ""
  lines = "\n".join(f"  {shlex.quote(command)}" for command in commands)
  return f"""#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{len(commands) - 1}{limit}
#SBATCH --signal=TERM@120
#SBATCH --requeue
# Add --time, --partition, --gres and so on for your cluster.
cd {shlex.quote(os.getcwd())}
commands=(
{lines}
)
srun bash -c "exec ${{commands[$SLURM_ARRAY_TASK_ID]}}"
"""


def run(
  config: str, arms: Sequence[Arm], out: str, *, at_once: int, lock: int
) -> bool:
  """Runs what is not done, prints a table, returns whether all is done."""
  todo = [
    local.Job(
      os.path.basename(arm.workdir),
      (sys.executable, *arm.command(config)),
      log=os.path.join(arm.workdir, "log.txt"),
      done=os.path.join(arm.workdir, "done.json"),
    )
    for arm in arms
    if not arm.done
  ]
  print(
    f"{len(arms)} arms, {len(arms) - len(todo)} of them done; folders in {out}",
    flush=True,
  )
  outcomes = {os.path.basename(arm.workdir): "done before" for arm in arms}
  outcomes |= local.run(todo, at_once, keep_open=lock)
  width = max(map(len, outcomes))
  for name, outcome in outcomes.items():
    print(f"{name:<{width}}  {outcome}")
  counts = collections.Counter(
    "not run" if o == local.NOT_RUN else o.split()[0] for o in outcomes.values()
  )
  print(
    ", ".join(f"{n} {outcome.rstrip(':;')}" for outcome, n in counts.items())
  )
  return set(counts) <= {"done"}


def _pair(text):
  key, equals, value = text.partition("=")
  if not key or not equals:
    raise argparse.ArgumentTypeError(f"expected field=value, got {text!r}")
  return key.removeprefix("config."), value


def _parser():
  parser = argparse.ArgumentParser(
    prog="python -m scripts.sweep", description=__doc__.splitlines()[0]
  )
  add = parser.add_argument
  add("--config", required=True, help="its path, and :arguments of its sweep()")
  add("--out", required=True, help="folder of the run folders")
  add("--seeds", type=int, help="how many of each arm, from 0")
  add("--select", help="pattern of the arms to run, such as 'dpn_*'")
  add("--jobs", type=int, help="how many at a time; 1 without it")
  add(
    "--set",
    type=_pair,
    action="append",
    default=[],
    metavar="FIELD=VALUE",
    help="a field of every arm's config; may be repeated",
  )
  what = parser.add_mutually_exclusive_group()
  flag = lambda name, text: what.add_argument(
    name, action="store_true", help=text
  )
  flag("--dry_run", "list the arms and what is to be done")
  flag("--print_commands", "print what to run, one command a line")
  flag("--slurm", "print a job array for sbatch")
  return parser


def _print_plan(arms):
  width = max(len(os.path.basename(arm.workdir)) for arm in arms)
  for arm in arms:
    state = "done" if arm.done else "begun" if arm.begun else "not begun"
    name = os.path.basename(arm.workdir)
    print(f"{name:<{width}}  {state:<9}  {arm.arg}")


def main(argv: Sequence[str] | None = None):
  args = _parser().parse_args(argv)
  config, _, arg = args.config.partition(":")
  if args.seeds is not None:
    arg = ",".join(filter(None, (arg, f"seeds={args.seeds}")))
  if min(1 if n is None else n for n in (args.jobs, args.seeds)) < 1:
    raise ValueError("--jobs and --seeds must be 1 or more.")
  overrides = dict(args.set)
  args.out = os.path.normpath(args.out)
  arms = find(config, arg, args.out, select=args.select, overrides=overrides)
  if args.dry_run:
    return _print_plan(arms)
  if args.print_commands or args.slurm:
    write_index(config, arg, args.out, arms)
    commands = [
      shlex.join(["python", *arm.command(config)])
      for arm in arms
      if not arm.done
    ]
    if not commands:
      raise ValueError(f"All {len(arms)} arms are done: nothing to print.")
    if args.slurm:
      name = os.path.basename(args.out)
      return print(slurm(commands, name, args.jobs), end="")
    return print("\n".join(commands))
  with hold(args.out) as lock:
    write_index(config, arg, args.out, arms)
    if not run(config, arms, args.out, at_once=args.jobs or 1, lock=lock):
      sys.exit(1)


if __name__ == "__main__":
  try:
    main()
  except (ValueError, OSError) as e:
    sys.exit(f"Error: {e}")
