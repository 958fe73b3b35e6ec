"""Compares our training step with timm's and big_vision's.

  python -m benchmarks.step --variant S/16 --batch_size 16 --dtype float32 \
    --big_vision ~/big_vision --json step.json

Options with commas are lists, and every combination is measured, each in its
own process; they take turns for `--rounds` rounds. Random data lie on the
device, so that only the step is measured. A step's time is from the previous
step's end to its own; each is dispatched one step in advance, as in training.
MFU is the model's FLOPs (`dpn.flops`) relative to the device's data sheet; "of
matmul" is relative to the product of two square matrices of the same dtype,
measured in the same process; "of the bound" to what the compiled program needs
by the data sheet, if nothing stays in caches, see scripts.compile.

Peers: timm's model with torch.compile and AdamW, if both are installed (or in
the environment of `--torch_python`), and big_vision's own update step. If
dtype is not float32, big_vision is also measured with its default, float32.

On CPUs trainers.train keeps memory from step to step (`dpn.host_memory`); the
peers do not, except big_vision with `--keep_memory`.
"""

import argparse
import dataclasses
import importlib.util
import itertools
import os
from collections.abc import Sequence

import numpy as np

from benchmarks import harness, step_peers

OURS, TIMM, BIG_VISION = harness.OURS, "timm", "big_vision"
DEFAULT = "big_vision, default"
FIELDS = dataclasses.fields(step_peers.Setting)
COLUMNS = {
  "img_per_sec": ("img/s", "{:.1f}"),
  "step_secs_p50": ("p50 s", "{:.4f}"),
  "step_secs_p95": ("p95 s", "{:.4f}"),
  "compile_secs": ("compile s", "{:.1f}"),
  "peak_memory_gb": ("GiB", "{:.1f}"),
  "reserved_gb": ("GiB reserved", "{:.1f}"),
  "flops": ("FLOP", "{:.2e}"),
  "matmul_flops": ("matmul FLOP/s", "{:.2e}"),
  "of_matmul": ("of matmul", "{:.0%}"),
  "mfu": ("MFU", "{:.0%}"),
  "bound_secs": ("bound s", "{:.4f}"),
  "of_bound": ("of the bound", "{:.0%}"),
  "attention": ("attention", "{}"),
  "versions": ("versions", "{}"),
}


def settings(args: argparse.Namespace) -> list[step_peers.Setting]:
  """Returns every combination of the lists."""
  lists = (getattr(args, field.name) for field in FIELDS)
  return [step_peers.Setting(*values) for values in itertools.product(*lists)]


def arms(
  args: argparse.Namespace, setting: step_peers.Setting
) -> dict[str, step_peers.Setting]:
  """Returns the steps to compare by name, each with the options it supports."""
  plain = dataclasses.replace(setting, stem_ln="none", attn_impl="auto")
  found = {OURS: setting}
  has_torch = all(map(importlib.util.find_spec, ("torch", "timm")))
  if args.torch_python or has_torch:
    found[TIMM] = dataclasses.replace(plain, scan=False, remat="none")
  if args.big_vision:
    found[BIG_VISION] = plain
    if setting.dtype != "float32":
      found[DEFAULT] = dataclasses.replace(plain, dtype="float32")
  return {who: arm for who, arm in found.items() if who in (args.only or found)}


def figures(rounds: list[dict], batch_size: int) -> dict:
  """Returns the figures over all rounds of `step_peers.measure`."""
  first = rounds[0]
  if "error" in rounds[-1]:
    return rounds[-1]
  secs = np.concatenate([r["secs"] for r in rounds])
  median = float(np.median(secs))
  matmul_flops = max(r["matmul"] for r in rounds)
  result = {
    "img_per_sec": batch_size / median,
    "step_secs_p50": median,
    "step_secs_p95": float(np.percentile(secs, 95)),
    "compile_secs": first["compile_secs"],
    "peak_memory_gb": max(r["memory"] for r in rounds) / 2**30,
    "reserved_gb": first["reserved"] / 2**30,
    "matmul_flops": matmul_flops,
    "flops": first["flops"],
    "bound_secs": first["bound"],
    "of_bound": first["bound"] / median,
    **{key: first[key] for key in ("device", "attention", "versions")},
  }
  if first["flops"]:
    result["of_matmul"] = first["flops"] / median / matmul_flops
    if first["peak"]:
      result["mfu"] = first["flops"] / median / first["peak"]
  return {key: value for key, value in result.items() if value}


def name_of(setting: step_peers.Setting) -> str:
  """Returns a setting's name in the results."""
  return (
    f"{setting.variant} {setting.resolution}px batch {setting.batch_size} "
    f"{setting.dtype} stem_ln={setting.stem_ln}"
    + " scan" * setting.scan
    + f" remat={setting.remat}" * (setting.remat != "none")
    + f" attn={setting.attn_impl}" * (setting.attn_impl != "auto")
  )


def main():
  args = parse_args()
  # Peers use one GPU; ours would use all.
  os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")

  def measure(arm):
    who, setting = arm
    arguments = {
      "who": who,
      "setting": dataclasses.asdict(setting),
      "steps": args.steps,
      "secs": args.secs,
      "folder": args.big_vision,
      "keep_memory": who == OURS or (args.keep_memory and who != TIMM),
    }
    python = args.torch_python if who == TIMM else None
    return harness.worker(step_peers.__name__, arguments, python)

  groups = {name_of(s): arms(args, s) for s in settings(args)}
  every = [arm for group in groups.values() for arm in group.items()]
  rounds = harness.in_turn(measure, every, args.rounds)
  results = {}
  for name, group in groups.items():
    rows = {
      who: figures(rounds[who, s], s.batch_size) for who, s in group.items()
    }
    speeds = harness.compare(rows, "img_per_sec")
    results[name] = speeds | {"figures": rows}
    ratio = speeds.get("ratio")
    print(name + (f": {ratio:.2f} x the best peer" if ratio else ""))
    print(harness.table(rows, COLUMNS).to_string(na_rep="-"))
  harness.write_json(args.json, results)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
  """Returns the options; those that are fields of a setting are lists."""
  parser = harness.parser(__doc__)
  add = parser.add_argument
  for field in FIELDS:
    read = {bool: _bool}.get(field.type, field.type)
    add(
      f"--{field.name}",
      type=lambda text, read=read: [read(x) for x in text.split(",")],
      default=[field.default],
      help=f"list of {field.type.__name__} ({field.default})",
    )
  add("--steps", type=int, default=20, help="timed, a round")
  add("--secs", type=float, default=0, help="timed at least, a round")
  add("--rounds", type=int, default=2)
  add("--only", nargs="+", choices=[OURS, TIMM, BIG_VISION, DEFAULT])
  add("--big_vision", default="", help="folder of a checkout")
  add("--keep_memory", action="store_true", help="for big_vision too")
  add("--torch_python", help="a Python with torch and timm")
  return parser.parse_args(argv)


def _bool(text):
  return ["False", "True"].index(text) == 1


if __name__ == "__main__":
  main()
