"""Measures what every normalization costs in training, relative to pre-LN.

  python -m scripts.bench_norms [--json FILE] [--image_size 64] [--steps 10] \
    [--arms dtn lape]

One run compiles a training step per option, with Adam, and times them in turn,
again and again, so that other load on the machine affects them all alike. As in
trainers.train memory is kept from step to step on CPUs. Reported are the median
and the fastest step in milliseconds, the ratio to pre-LN's time with its
quartiles over the repetitions, and the ratio of the memory that XLA reserves.
The row "pre-LN again" is what the same step differs from itself by.
"""

import timeit

import jax
import pandas as pd

from dpn import host_memory
from dpn.models import norms
from dpn.scripts.bench import harness, step_peers

BASELINE, AGAIN = "pre-LN", "pre-LN again"
# Variants of LayerNorm, which are not compared.
PER_TOKEN = ("layernorm", "layernorm_no_bias", "standardize", "affine")
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
    "qk_norm=layernorm": {"qk_norm": "layernorm"},
    "qk_norm=rmsnorm": {"qk_norm": "rmsnorm"},
    "posemb=rpe": {"posemb": "rpe"},
    "lape": {"posemb_join": "lape"},
    "lape, posemb=rpe": {"posemb_join": "lape", "posemb": "rpe"},
  }
)
COLUMNS = {
  "ms": ("ms", "{:.1f}"),
  "fastest_ms": ("fastest", "{:.1f}"),
  "ratio": ("ratio", "{:.3f}"),
  "ratio_q1": ("quartile 1", "{:.3f}"),
  "ratio_q3": ("quartile 3", "{:.3f}"),
  "memory_ratio": ("memory", "{:.2f}"),
}


def time_in_turn(
  steps: dict[str, step_peers.Step], repetitions: int
) -> dict[str, list[float]]:
  """Returns the seconds of each step, taken in turn, without a first round."""

  def measure(name):
    step = steps[name]
    return {"secs": timeit.timeit(lambda: step.wait(step.run()), number=1)}

  found = harness.in_turn(measure, steps, repetitions + 1)
  return {
    name: [r["secs"] for r in rounds[1:]] for name, rounds in found.items()
  }


def compare(seconds: dict, reserved: dict) -> dict[str, dict[str, float]]:
  """Returns each arm's seconds, and its time and memory by the baseline's.

  A repetition's ratio is that of its own baseline, measured next to it.
  """
  frame = pd.DataFrame(seconds)
  base = frame[BASELINE]
  quartiles = frame.div(base, axis=0).quantile([0.25, 0.5, 0.75])
  columns = {
    "ours": frame.median(),
    "fastest": frame.min(),
    BASELINE: base.median(),
    "ratio": quartiles.loc[0.5],
    "ratio_q1": quartiles.loc[0.25],
    "ratio_q3": quartiles.loc[0.75],
    "memory_ratio": pd.Series(reserved) / reserved[BASELINE],
  }
  return pd.DataFrame(columns).to_dict("index")


def in_ms(results: dict) -> dict[str, dict[str, float]]:
  """Returns what `compare` found with all that `COLUMNS` show."""
  return {
    name: row | {"ms": 1e3 * row["ours"], "fastest_ms": 1e3 * row["fastest"]}
    for name, row in results.items()
  }


def main():
  parser = harness.parser(__doc__)
  parser.add_argument("--variant", default="Ti/16")
  parser.add_argument("--image_size", type=int, default=64)
  parser.add_argument("--batch_size", type=int, default=16)
  parser.add_argument("--steps", type=int, default=10)
  parser.add_argument("--dtype", default="float32", help="of matrix products")
  parser.add_argument(
    "--arms", nargs="+", default=list(ARMS), choices=ARMS, metavar="ARM",
    help="beside pre-LN; all without it",
  )  # fmt: skip
  parser.add_argument("--pool_type", default="gap", help="see docs/config.md")
  parser.add_argument(
    "--unrolled", action="store_true", help="each block compiled for itself"
  )
  args = parser.parse_args()

  setting = step_peers.Setting(
    args.variant,
    args.image_size,
    args.batch_size,
    args.dtype,
    scan=not args.unrolled,  # compiles a block once
  )
  host_memory.keep_between_steps()
  arms = {name: ARMS[name] for name in [BASELINE, *args.arms]}
  steps = {
    name: step_peers.ours(setting, pool_type=args.pool_type, **options)
    for name, options in (arms | {AGAIN: ARMS[BASELINE]}).items()
  }
  reserved = {
    name: step_peers.reserved_bytes(step) for name, step in steps.items()
  }
  results = compare(time_in_turn(steps, args.steps), reserved)
  size = f"{args.batch_size} images of {args.image_size} px"
  print(f"{args.variant}, {size}, {args.dtype}, {jax.devices()[0].device_kind}")
  print(harness.table(in_ms(results), COLUMNS))
  harness.write_json(args.json, results)


if __name__ == "__main__":
  main()
