"""Measures what every normalization costs in training, relative to pre-LN.

  python -m scripts.bench_norms [--json FILE] [--image_size 64] [--steps 10]

One run compiles a training step per option, with Adam, and times them in turn,
again and again, so that other load on the machine affects them all alike.
Reported are the milliseconds, the ratio to pre-LN's time with its quartiles
over the repetitions, and the ratio of the memory that XLA reserves.
"""

import argparse
import json
import statistics
import time

import jax
import pandas as pd

from dpn.models import norms
from scripts.bench import step_peers

BASELINE = "pre-LN"
PER_TOKEN = ("layernorm", "standardize", "affine")  # not of the comparisons
PLACEMENTS = ("pre", "post", "pre+post")

ARMS = (
  {BASELINE: {}, "stem_ln=dpn": {"stem_ln": "dpn"}}
  | {
    f"sa={sa},mlp={mlp}": {"block_ln_kw": {"sa": sa, "mlp": mlp}}
    for sa in PLACEMENTS
    for mlp in PLACEMENTS
    if (sa, mlp) != ("pre", "pre")
  }
  | {block: {"block_ln": block} for block in ("normformer", "sub_ln", "cct")}
  | {kind: {"norm": kind} for kind in norms.NORMS if kind not in PER_TOKEN}
  | {
    "posemb=rpe": {"posemb": "rpe"},
    "lape": {"posemb_join": "lape"},
    "lape, posemb=rpe": {"posemb_join": "lape", "posemb": "rpe"},
  }
)


def compile_step(
  options: dict, variant: str, image_size: int, batch_size: int
) -> tuple[step_peers.Step, int]:
  """Returns a model's training step and the bytes that XLA reserves for it.

  Args:
    options: of the model.
    variant: its size and patch.
    image_size: rows and columns.
    batch_size: images of a step.
  """
  config = step_peers.config_of({"variant": variant, **options}, batch_size)
  step, program = step_peers.trainer_step(config, image_size)
  memory = program.memory_analysis()
  return step, memory.argument_size_in_bytes + memory.temp_size_in_bytes


def interleave(
  steps: dict[str, step_peers.Step], repetitions: int
) -> dict[str, list[float]]:
  """Returns the seconds of each step, taken in turn, without a first round."""
  seconds = {name: [] for name in steps}
  for repetition in range(repetitions + 1):
    for name, step in steps.items():
      start = time.perf_counter()
      step.wait(step.run())
      if repetition:
        seconds[name].append(time.perf_counter() - start)
  return seconds


def compare(seconds: dict, reserved: dict) -> dict[str, dict[str, float]]:
  """Returns each arm's seconds, and its time and memory by the baseline's.

  A repetition's ratio is that of its own baseline, measured next to it.
  """
  base, results = seconds[BASELINE], {}
  for name, mine in seconds.items():
    ratios = [a / b for a, b in zip(mine, base, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    results[name] = {
      "ours": statistics.median(mine),
      BASELINE: statistics.median(base),
      "ratio": middle,
      "ratio_q1": low,
      "ratio_q3": high,
      "memory_ratio": reserved[name] / reserved[BASELINE],
    }
  return results


def table(results: dict) -> str:
  """Returns the results as an aligned table."""
  frame = pd.DataFrame(results).T
  frame["ms"] = 1e3 * frame["ours"]
  columns = {"ms": "{:.1f}", "ratio": "{:.2f}", "ratio_q1": "{:.2f}"}
  columns |= {"ratio_q3": "{:.2f}", "memory_ratio": "{:.2f}"}
  formats = {name: text.format for name, text in columns.items()}
  return frame.to_string(columns=list(columns), formatters=formats)


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--json", help="file to write the results to")
  parser.add_argument("--variant", default="Ti/16")
  parser.add_argument("--image_size", type=int, default=64)
  parser.add_argument("--batch_size", type=int, default=16)
  parser.add_argument("--steps", type=int, default=10)
  args = parser.parse_args()

  steps, reserved = {}, {}
  for name, options in ARMS.items():
    steps[name], reserved[name] = compile_step(
      {"scan": True, **options},  # a scanned block is compiled once
      args.variant,
      args.image_size,
      args.batch_size,
    )
  results = compare(interleave(steps, args.steps), reserved)
  size = f"{args.batch_size} images of {args.image_size} px"
  print(f"{args.variant}, {size}, {jax.devices()[0].device_kind}")
  print(table(results))
  if args.json:
    with open(args.json, "w") as f:
      json.dump(results, f, indent=2)


if __name__ == "__main__":
  main()
