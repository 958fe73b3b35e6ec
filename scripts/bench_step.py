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
import os
from collections.abc import Sequence

import numpy as np

from dpn.scripts.bench import harness, step_peers

OURS, TIMM, BIG_VISION = harness.OURS, "timm", "big_vision"
DEFAULT = "big_vision, default"
FIELDS = dataclasses.fields(step_peers.Setting)
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
  """Returns whom to compare, with the setting less what they lack."""
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
  """Returns the figures of several rounds of `step_peers.measure` together."""
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
  for key in ("attention", "versions"):
    if rounds[0][key]:
      result[key] = rounds[0][key]
  if reserved := rounds[0]["reserved"]:
    result["reserved_gb"] = reserved / 2**30
  if flops := rounds[0]["flops"]:
    per_sec = flops / result["step_secs_p50"]
    result |= {"flops": flops, "of_matmul": per_sec / result["matmul_flops"]}
    if peak := rounds[0]["peak"]:
      result["mfu"] = per_sec / peak
  return result


def name_of(setting: step_peers.Setting) -> str:
  """Returns a row's name."""
  return (
    f"{setting.variant} {setting.resolution}px batch {setting.batch_size} "
    f"{setting.dtype} stem_ln={setting.stem_ln}"
    + " scan" * setting.scan
    + f" remat={setting.remat}" * (setting.remat != "none")
    + f" attn={setting.attn_impl}" * (setting.attn_impl != "auto")
  )


def main():
  args = parse_args()
  # Peers take one GPU, where ours would take all.
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
    return harness.worker("dpn.scripts.bench.step_peers", arguments, python)

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
    print(harness.table(rows, COLUMNS))
  harness.write_json(args.json, results)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
  """Returns the options; those that are fields of a setting are lists."""
  parser = harness.parser(__doc__)
  for field in FIELDS:
    read = {bool: "True".__eq__}.get(field.type, field.type)
    parser.add_argument(
      f"--{field.name}",
      type=lambda text, read=read: [read(x) for x in text.split(",")],
      default=[field.default],
      help=f"list of {field.type.__name__} ({field.default})",
    )
  parser.add_argument("--steps", type=int, default=20, help="timed, a round")
  parser.add_argument(
    "--secs", type=float, default=0, help="timed at least, a round"
  )
  parser.add_argument("--rounds", type=int, default=2)
  parser.add_argument(
    "--only", nargs="+", choices=[OURS, TIMM, BIG_VISION, DEFAULT]
  )
  parser.add_argument("--big_vision", default="", help="folder of a checkout")
  parser.add_argument(
    "--keep_memory", action="store_true", help="for big_vision too"
  )
  parser.add_argument("--torch_python", help="a Python with torch and timm")
  return parser.parse_args(argv)


if __name__ == "__main__":
  main()
