"""Measures the training step, beside others' and the device's own limit.

  python -m scripts.bench_step --variant S/16 --batch_size 16 --dtype float32 \
    --big_vision ~/big_vision --json step.json

Random data lie on the device, so that nothing but the step is measured. Options
with commas are lists, and every combination is measured. Every measurement is a
process of its own, and they take turns for `--rounds` rounds. A step's time is
that from its predecessor's end to its own, with one step in advance, as in
training. MFU is the model's FLOPs (`dpn.flops`) by the device's data sheet; "of
matmul" is by the product of two square matrices of the same dtype, measured in
the same process.

Peers: timm's model with torch.compile and AdamW, where both are installed (or
in the environment of `--torch_python`), and big_vision's own update step. If
dtype is not float32, big_vision is also measured with its default, float32.

On CPUs trainers.train keeps memory from step to step (`dpn.host_memory`) and
its peers do not; with `--keep_memory` big_vision does so too.
"""

import argparse
import dataclasses
import importlib.util
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

import numpy as np

from dpn import host_memory
from scripts.bench import step_peers as arms

OURS, TIMM, BIG_VISION = "ours", "timm", "big_vision"
DEFAULT = "big_vision, default"
MATMUL_SIZE = {"cpu": 2048}
MATMUL_SIZE_ELSEWHERE = 8192
COLUMNS = {
  "img_per_sec": ("img/s", "{:.1f}"),
  "step_secs_p50": ("p50 s", "{:.4f}"),
  "step_secs_p95": ("p95 s", "{:.4f}"),
  "compile_secs": ("compile s", "{:.1f}"),
  "peak_memory_gb": ("GiB", "{:.1f}"),
  "flops": ("FLOP", "{:.2e}"),
  "matmul_flops": ("matmul FLOP/s", "{:.2e}"),
  "of_matmul": ("of matmul", "{:.0%}"),
  "mfu": ("MFU", "{:.0%}"),
}


def settings(args: argparse.Namespace) -> list[arms.Setting]:
  """Returns every combination of the lists."""
  names = [field.name for field in dataclasses.fields(arms.Setting)]
  combinations = itertools.product(*(getattr(args, name) for name in names))
  return [arms.Setting(*values) for values in combinations]


def peers(
  args: argparse.Namespace, setting: arms.Setting
) -> dict[str, arms.Setting]:
  """Returns whom to compare with, and the setting without what they lack."""
  plain = dataclasses.replace(setting, stem_ln="none", attn_impl="auto")
  found = {}
  has_torch = all(map(importlib.util.find_spec, ("torch", "timm")))
  if args.torch_python or has_torch:
    found[TIMM] = dataclasses.replace(plain, scan=False, remat="none")
  if args.big_vision:
    found[BIG_VISION] = plain
    if setting.dtype != "float32":
      found[DEFAULT] = dataclasses.replace(plain, dtype="float32")
  return found


def measure(who: str, setting: arms.Setting, steps: int, folder: str) -> dict:
  """Returns what a process that does nothing else finds out.

  Args:
    who: whose step.
    setting: of the step.
    steps: how many to time, after two that are not.
    folder: of big_vision.
  """
  if who in (BIG_VISION, DEFAULT):
    step = arms.big_vision(setting, folder)
  else:
    step = {OURS: arms.ours, TIMM: arms.timm}[who](setting)
  secs = time_steps(step, steps)
  size = MATMUL_SIZE.get(step.device, MATMUL_SIZE_ELSEWHERE)
  return {
    "secs": secs,
    "compile_secs": step.compile_secs,
    "memory": step.memory(),
    "device": step.device,
    "flops": step.flops,
    "peak": step.peak,
    "matmul": matmul_ceiling(step, size),
  }


def time_steps(step: arms.Step, steps: int) -> list[float]:
  """Returns the seconds from the end of each step to the end of the next."""
  ends, previous = [], step.run()
  for _ in range(steps + 2):
    current = step.run()
    step.wait(previous)
    ends.append(time.perf_counter())
    previous = current
  step.wait(previous)
  return np.diff(ends)[1:].tolist()


def matmul_ceiling(step: arms.Step, size: int) -> float:
  """Returns the FLOP/s of the fastest of ten products of square matrices."""
  multiply = step.matmul(size)
  multiply()
  secs = []
  for _ in range(10):
    begin = time.perf_counter()
    multiply()
    secs.append(time.perf_counter() - begin)
  return 2 * size**3 / min(secs)


def in_process(who: str, setting: arms.Setting, args) -> dict:
  """Returns what `measure` does, or {"error": …}, from a process of its own."""
  python = (args.torch_python if who == TIMM else None) or sys.executable
  command = [python, "-m", "scripts.bench_step", "--worker", who]
  command += ["--steps", str(args.steps), "--big_vision", args.big_vision]
  command += ["--setting", json.dumps(dataclasses.asdict(setting))]
  command += ["--keep_memory"] * args.keep_memory
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode:
    lines = done.stderr.strip().splitlines() or [f"ended: {done.returncode}"]
    return {"error": lines[-1]}
  return json.loads(done.stdout.strip().rpartition("\n")[2])


def collect(plan: Iterable[tuple[str, arms.Setting]], args) -> dict:
  """Returns the figures of each (who, setting), measured in turn."""
  found = {key: [] for key in plan}
  for _ in range(args.rounds):
    for key, rounds in found.items():
      if not any("error" in r for r in rounds):
        rounds.append(in_process(*key, args))
        print(".", end="", file=sys.stderr, flush=True)
  print(file=sys.stderr)
  return {
    key: figures(rounds, key[1].batch_size) for key, rounds in found.items()
  }


def figures(rounds: list[dict], batch_size: int) -> dict:
  """Returns the figures of several rounds of `measure` together."""
  if "error" in rounds[-1]:
    return rounds[-1]
  secs = np.concatenate([r["secs"] for r in rounds])
  result = {
    "img_per_sec": batch_size / float(np.median(secs)),
    "step_secs_p50": float(np.median(secs)),
    "step_secs_p95": float(np.percentile(secs, 95)),
    "compile_secs": rounds[0]["compile_secs"],
    "peak_memory_gb": max(r["memory"] for r in rounds) / 2**30,
    "matmul_flops": max(r["matmul"] for r in rounds),
    "device": rounds[0]["device"],
  }
  if flops := rounds[0]["flops"]:
    per_sec = flops / result["step_secs_p50"]
    result |= {"flops": flops, "of_matmul": per_sec / result["matmul_flops"]}
    if peak := rounds[0]["peak"]:
      result["mfu"] = per_sec / peak
  return result


def compare(mine: dict, others: dict[str, dict]) -> dict:
  """Returns img/s of all, our share of the best peer's, and all figures."""
  speeds = {
    who: found["img_per_sec"]
    for who, found in {OURS: mine, **others}.items()
    if "error" not in found
  }
  result = dict(speeds)
  if OURS in speeds and len(speeds) > 1:
    best = max(speed for who, speed in speeds.items() if who != OURS)
    result["ratio"] = speeds[OURS] / best
  return result | {"figures": {OURS: mine, **others}}


def name_of(setting: arms.Setting) -> str:
  """Returns a row's name."""
  return (
    f"{setting.variant} {setting.resolution}px batch {setting.batch_size} "
    f"{setting.dtype} stem_ln={setting.stem_ln}"
    + " scan" * setting.scan
    + f" remat={setting.remat}" * (setting.remat != "none")
    + f" attn={setting.attn_impl}" * (setting.attn_impl != "auto")
  )


def table(results: dict[str, dict]) -> str:
  """Returns the results as aligned tables, a line for each who."""
  import pandas as pd  # workers do without: PyTorch's may lack it

  texts = []
  for name, result in results.items():
    ratio = result.get("ratio")
    texts.append(name + (f": {ratio:.2f} x the best peer" if ratio else ""))
    found = pd.DataFrame.from_dict(result["figures"], orient="index")
    columns = {k: v for k, v in COLUMNS.items() if k in found}
    shown = pd.DataFrame(
      {
        title: found[key].map(pattern.format, na_action="ignore")
        for key, (title, pattern) in columns.items()
      }
    )
    if "error" in found:
      shown["error"] = found["error"].str[:120]
    texts.append(shown.to_string(na_rep="-"))
  return "\n".join(texts)


def main():
  args = parse_args()
  if args.worker:
    if args.worker == OURS or (args.keep_memory and args.worker != TIMM):
      host_memory.keep_between_steps()  # as trainers.train does
    setting = arms.Setting(**json.loads(args.setting))
    found = measure(args.worker, setting, args.steps, args.big_vision)
    print(json.dumps(found), flush=True)
    return
  mine = settings(args)
  against = {s: peers(args, s) for s in mine}
  plan = [(OURS, s) for s in mine]
  plan += [pair for others in against.values() for pair in others.items()]
  found = collect(dict.fromkeys(plan), args)
  results = {
    name_of(s): compare(
      found[OURS, s], {who: found[who, p] for who, p in against[s].items()}
    )
    for s in mine
  }
  print(table(results))
  if args.json:
    with open(args.json, "w") as f:
      json.dump(results, f, indent=2)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
  """Returns the options; those that are fields of a setting are lists."""
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  for field in dataclasses.fields(arms.Setting):
    read = {bool: "True".__eq__}.get(field.type, field.type)
    parser.add_argument(
      f"--{field.name}",
      type=lambda text, read=read: [read(x) for x in text.split(",")],
      default=[field.default],
      help=f"list of {field.type.__name__} ({field.default})",
    )
  parser.add_argument("--steps", type=int, default=20, help="timed, a round")
  parser.add_argument("--rounds", type=int, default=2)
  parser.add_argument("--big_vision", default="", help="folder of a checkout")
  parser.add_argument(
    "--keep_memory", action="store_true", help="for big_vision too"
  )
  parser.add_argument("--torch_python", help="a Python with torch and timm")
  parser.add_argument("--json", help="file for the numbers")
  parser.add_argument("--worker", help=argparse.SUPPRESS)
  parser.add_argument("--setting", help=argparse.SUPPRESS)
  return parser.parse_args(argv)


if __name__ == "__main__":
  main()
