"""Compares the training cost of every normalization with pre-LN's.

  python -m benchmarks.norms [--json FILE] [--image_size 64] [--steps 10] \
    [--arms dtn lape]

Compiles a training step with Adam for each option, then times them in turn, so
that other load on the machine affects all alike. As in trainers.train, CPUs
keep memory from step to step. Reported are the median and the fastest step in
milliseconds, the ratio to pre-LN's time with its quartiles over the
repetitions, and the ratio of the memory that XLA reserves. "pre-LN again" shows
how far the same step differs from itself.
"""

import timeit

import jax
import pandas as pd

from benchmarks import harness, step_peers
from dpn import host_memory
from dpn.configs import norm_zoo
from dpn.models import norms, placement, stem

BASELINE, AGAIN = "pre-LN", "pre-LN again"
# Variants of LayerNorm; their cost is not of interest.
PER_TOKEN = ("layernorm", "layernorm_no_bias", "standardize", "affine")
PLACEMENTS = ("pre", "post", "pre+post")
# Blocks differ, so they cannot be scanned as the baseline is.
UNEQUAL = ("mix_ln", "keel", "specialized_cls")
ARMS = (
  {BASELINE: {}, "stem_ln=dpn": {"stem_ln": "dpn"}}
  | {
    f"sa={sa},mlp={mlp}": {"block_ln_kw": {"sa": sa, "mlp": mlp}}
    for sa in PLACEMENTS
    for mlp in PLACEMENTS
    if (sa, mlp) != ("pre", "pre")
  }
  | {
    block: {"block_ln": block}
    for block in placement.PLACEMENTS
    if block != "placement"
  }
  | {kind: {"norm": kind} for kind in norms.NORMS if kind not in PER_TOKEN}
  | {
    "qk_norm=layernorm": {"qk_norm": "layernorm"},
    "qk_norm=rmsnorm": {"qk_norm": "rmsnorm"},
    "qkv norm=rmsnorm": {"qk_norm": "rmsnorm", "v_norm": "rmsnorm"},
    "mlp=swiglu": {"mlp": "swiglu"},
    "rope=axial": {"rope": "axial"},
    "sigma_reparam": norm_zoo.METHODS["sigma_reparam"],
    "nGPT": norm_zoo.METHODS["ngpt"],  # the step lacks its projection
    "layer_scale": {"layer_scale": 1e-4},
    "registers=4": {"registers": 4},
    "prefix_norm=own": {"registers": 4, "prefix_norm": "own"},
    "stem_ln=whiten": {"stem_ln": "whiten"},
    "stem_ln=patch_stats": {"stem_ln": "dpn", "stem": "patch_stats"},
  }
  | {
    f"stem={name}": {"stem": name}
    for name in stem.STEMS
    if name not in ("patch", "conv")
  }
  | {
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
  """Returns the seconds of each step, timed in turn after a warmup round."""

  def measure(name):
    step = steps[name]
    return {"secs": timeit.timeit(lambda: step.wait(step.run()), number=1)}

  found = harness.in_turn(measure, steps, repetitions + 1)
  return {
    name: [r["secs"] for r in rounds[1:]] for name, rounds in found.items()
  }


def compare(seconds: dict, reserved: dict) -> dict[str, dict[str, float]]:
  """Returns each arm's seconds, and its time and memory over the baseline's.

  Each repetition is compared with the baseline's step of the same round.
  """
  frame = pd.DataFrame(seconds)
  base = frame[BASELINE]
  quartiles = frame.div(base, axis=0).quantile([0.25, 0.5, 0.75])
  columns = {
    "ours": frame.median(),
    "fastest": frame.min(),
    "ratio": quartiles.loc[0.5],
    "ratio_q1": quartiles.loc[0.25],
    "ratio_q3": quartiles.loc[0.75],
    "memory_ratio": pd.Series(reserved) / reserved[BASELINE],
  }
  return pd.DataFrame(columns).to_dict("index")


def table(results: dict) -> pd.DataFrame:
  """Returns the results of `compare` as a table of text, in milliseconds."""
  rows = {
    name: row | {"ms": 1e3 * row["ours"], "fastest_ms": 1e3 * row["fastest"]}
    for name, row in results.items()
  }
  return harness.table(rows, COLUMNS)


def main():
  parser = harness.parser(__doc__)
  add = parser.add_argument
  add("--variant", default="Ti/16")
  add("--image_size", type=int, default=64)
  add("--batch_size", type=int, default=16)
  add("--steps", type=int, default=10)
  add("--dtype", default="float32", help="of matrix products")
  add("--arms", nargs="+", choices=ARMS, metavar="ARM",
      help="beside pre-LN; by default all that can run")  # fmt: skip
  add("--pool_type", default="gap", help="see docs/config.md")
  add("--unrolled", action="store_true", help="compile each block separately")
  args = parser.parse_args()

  setting = step_peers.Setting(
    args.variant,
    args.image_size,
    args.batch_size,
    args.dtype,
    scan=not args.unrolled,
  )
  host_memory.keep_between_steps()
  able = [arm for arm in ARMS if args.unrolled or arm not in UNEQUAL]
  arms = {name: ARMS[name] for name in [BASELINE, *(args.arms or able)]}
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
  print(table(results).to_string(na_rep="-"))
  harness.write_json(args.json, results)


if __name__ == "__main__":
  main()
