"""Injects faults into small training runs and prints which ones they survive.

  python -m scripts.chaos --kills 20 --json chaos.json
  python -m scripts.chaos --soak 60
  python -m scripts.chaos --without checksum
  python -m scripts.chaos --data

A run survives a fault if it does what docs/fault_tolerance.md promises: it
continues to the same bits as the undisturbed run, or it ends with a message and
its last checkpoint is intact. Each fault is a function of scripts/faults, and
every run a process of its own. A full disk is simulated by a limit on the size
of files.
"""

import contextlib
import inspect
import pathlib
import subprocess
import sys
import tempfile

from dpn.scripts.bench import harness
from dpn.scripts.faults import (
  between_processes,
  builds,
  data,
  in_a_run,
  on_disk,
  soak,
)
from dpn.scripts.faults.runs import Runs

FAULTS = {
  name: value
  for module in (in_a_run, on_disk, between_processes)
  for name, value in vars(module).items()
  if inspect.isfunction(value)
  and [*inspect.signature(value).parameters] == ["runs"]
}


def outcome(fault, runs: Runs) -> str:
  """Returns "survived", or what went wrong."""
  try:
    fault(runs)
  except (AssertionError, OSError, subprocess.SubprocessError) as e:
    return f"NOT survived: {e}"
  return "survived"


@contextlib.contextmanager
def _or_exit(verdict: str):
  """Ends the process where something is not as it should be."""
  try:
    yield
  except AssertionError as e:
    sys.exit(f"{verdict}: {e}")


def main():
  parser = harness.parser(__doc__)
  parser.add_argument("--kills", type=int, default=20, help="of SIGKILL")
  parser.add_argument("--seed", type=int, default=0, help="of their moments")
  parser.add_argument("--dtype", default="float32", help="of matrix products")
  parser.add_argument(
    "--only", action="append", choices=FAULTS, help="this fault; repeatable"
  )
  parser.add_argument(
    "--without", choices=builds.BUILDS, help="a safety; a fault must notice it"
  )
  parser.add_argument(
    "--soak", type=float, metavar="MINUTES", help="train so long, and no fault"
  )
  parser.add_argument(
    "--data", action="store_true", help="is each example used once? No fault"
  )
  args = parser.parse_args()
  if args.data:
    with _or_exit("NOT once"):
      used = data.check(args.seed)
    for name, count in used.items():
      print(f"{name:<20}{count} examples, in every epoch each once")
    harness.write_json(args.json, used)
    return
  names, build = args.only or FAULTS, {}
  if args.without:
    build, name = builds.BUILDS[args.without]
    names = args.only or [name]
  with tempfile.TemporaryDirectory() as root:
    root = pathlib.Path(root)
    kw = {"kills": args.kills, "seed": args.seed, "dtype": args.dtype}
    runs = Runs(root, build=build, **kw)
    if args.soak:
      with _or_exit("NOT flat"):
        used = soak.soak(runs, args.soak)
      for name, (before, after) in used.items():
        print(f"{name:<20}{before:g} → {after:g}")
      harness.write_json(args.json, used)
      return
    outcomes = {}
    for name in names:
      outcomes[name] = outcome(FAULTS[name], runs)
      print(f"{name:<24}{outcomes[name]}", flush=True)
  survived = sum(outcome == "survived" for outcome in outcomes.values())
  print(f"{survived} of {len(outcomes)} faults survived.")
  harness.write_json(args.json, outcomes)
  sys.exit(survived < len(outcomes))


if __name__ == "__main__":
  main()
