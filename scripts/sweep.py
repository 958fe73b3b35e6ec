"""Trains all arms of a config, for example those of one of the paper's tables.

  python -m scripts.sweep --config configs/stem_ablation.py --out runs/table6 \
    [--seeds 3] [--select 'dpn_*'] [--jobs 2] [--set total_steps=9] \
    [--seeds_together] [--dry_run]

A config's function sweep(arg) lists its arms, see `dpn.scripts.jobs.arms`. Each
is a run of trainers.train in OUT/<name>-s<seed>, with its output in log.txt
there; OUT/sweep.json lists them.

The same command again skips finished arms and resumes the others; an arm that
fails does not stop the rest. At the end it prints what each arm has reached.
Ctrl-C and SIGTERM let running arms save (exit status 130); a second Ctrl-C
kills them. --print_commands and --slurm run nothing: they print the commands of
unfinished arms, one per line or as a job array for sbatch. --seeds_together
trains all seeds of an arm in one process, because small models fill a GPU only
together.
"""

import argparse
import collections
import contextlib
import fcntl
import functools
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence

from dpn.scripts.jobs import arms as arms_lib
from dpn.scripts.jobs import local, slurm, summary
from dpn.scripts.results import output
from dpn.trainers import distributed


@contextlib.contextmanager
def lock(out: str) -> Iterator[int]:
  """Locks OUT for one sweep and its runs; yields a descriptor they inherit.

  Runs hold the lock too: if the sweep is killed, the next one is refused while
  any of them is still training.
  """
  os.makedirs(out, exist_ok=True)
  with open(os.path.join(out, "sweep.lock"), "a") as f:
    try:
      fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
      raise ValueError(
        f"Another sweep is using {out}, or runs that it started still do. Wait "
        "for them to end, or give another --out."
      ) from e
    except OSError as e:
      told = f"Warning: {out}: no locks here ({e}); start one sweep only."
      output.say(told, sys.stderr)
    yield f.fileno()


def run(
  config: str,
  arms: Sequence[arms_lib.Arm],
  workers: int,
  keep_open: int,
  together: bool = False,
) -> int:
  """Runs unfinished arms; prints how all of them ended and what they reached.

  If `together`, the seeds of an arm train in one process.

  Returns:
    The exit status: 0 if all are done, 130 if they were stopped, else 1.
  """
  jobs = arms_lib.jobs(config, arms, together)
  outcomes = {arm.run_name: "done before" for arm in arms if arm.done}
  print(f"{len(arms)} arms, {len(outcomes)} of them done", flush=True)
  outcomes |= local.run(jobs, workers, keep_open=keep_open)
  width = max(map(len, outcomes))
  for name, outcome in outcomes.items():
    print(f"{name:<{width}}  {outcome}")
  kinds = [re.match(r"not run|\w+", o)[0] for o in outcomes.values()]
  counts = collections.Counter(kinds)
  if reached := summary.table(arms):
    print(f"\n{reached}\n")
  print(", ".join(f"{n} {outcome}" for outcome, n in counts.items()))
  if {"stopped", "not run"} & counts.keys():
    return distributed.INTERRUPTED
  return int(counts.keys() != {"done"})


def _field(text):
  key, equals, value = text.partition("=")
  if not key or not equals:
    raise argparse.ArgumentTypeError(f"expected field=value, got {text!r}")
  return key.removeprefix("config."), value


def _folder(text):
  if "://" in text:
    raise argparse.ArgumentTypeError(
      f"{text} is an address; mount the bucket, as docs/launch.md says"
    )
  return os.path.normpath(text)


def _parser():
  parser = output.parser(__doc__)
  add = parser.add_argument
  add("--config", required=True, help="path:ARGUMENTS of its sweep()")
  add("--out", required=True, type=_folder, help="folder of the runs")
  add("--seeds", type=output.positive, help="seeds of each arm, from 0")
  add("--select", default="*", help="arms to train, such as 'dpn_*'")
  add("--jobs", type=output.positive, help="runs at a time (1)")
  help_ = "set a field in the config of every arm; may be repeated"
  kw = {"type": _field, "metavar": "FIELD=VALUE", "help": help_}
  add("--set", action="append", default=[], **kw)
  help_ = "train the seeds of an arm in one process, with jax.vmap"
  add("--seeds_together", action="store_true", help=help_)
  one = parser.add_mutually_exclusive_group()
  flag = functools.partial(one.add_argument, action="store_true")
  flag("--dry_run", help="only list the arms and their state")
  flag("--print_commands", help="only print the commands, one per line")
  flag("--slurm", help="only print a job array for sbatch")
  return parser


def _print_commands(config, arms, args):
  jobs = arms_lib.jobs(config, arms, args.seeds_together)
  commands = [shlex.join(["python", *job.command]) for job in jobs]
  if not commands:
    raise ValueError(f"All {len(arms)} arms are done: nothing to print.")
  if args.slurm:
    name = os.path.basename(args.out)
    print(slurm.array(commands, name, args.jobs), end="")
  else:
    print("\n".join(commands))


def main(argv: Sequence[str] | None = None):
  args = _parser().parse_args(argv)
  if os.path.exists(os.path.join(args.out, "config.json")):
    raise ValueError(
      f"{args.out} is the folder of a run, in which reports look for no other. "
      "Give another --out."
    )
  config, _, arg = args.config.partition(":")
  if args.seeds is not None:
    arg = ",".join(filter(None, (arg, f"seeds={args.seeds}")))
  arms = arms_lib.find(
    config, arg, args.out, select=args.select, overrides=dict(args.set)
  )
  if args.dry_run:
    width = max(len(arm.run_name) for arm in arms)
    for arm in arms:
      begun = "started" if arm.started else "not started"
      state = "done" if arm.done else begun
      print(f"{arm.run_name:<{width}}  {state:<11}  {arm.arg}")
  elif args.print_commands or args.slurm:
    arms_lib.write_index(config, arg, args.out, arms)
    _print_commands(config, arms, args)
  else:
    with lock(args.out) as fd:
      arms_lib.write_index(config, arg, args.out, arms)
      jobs, together = args.jobs or 1, args.seeds_together
      if status := run(config, arms, jobs, fd, together):
        sys.exit(status)


if __name__ == "__main__":
  with output.errors_in_a_line():
    main()
