"""Measures what every normalization costs in training, relative to pre-LN.

  python -m scripts.bench_norms [--json FILE] [--image_size 64] [--steps 10]

One run compiles one training step (forward, backward, SGD) per option and
times them in turn, again and again, so that whatever else the machine does
meets them all alike. Reported are the ratio of the median times, its quartiles
over the repetitions, and the ratio of the memory XLA reserves.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp

from dpn.models import norms, vit
from dpn.models.norms import power_norm

BASELINE = "pre-LN"
PER_TOKEN = ("layernorm", "standardize", "affine")  # not of the comparisons
PLACEMENTS = ("pre", "post", "pre+post")

ARMS = (
  {BASELINE: {}, "stem_ln=dpn": {"stem_ln": "dpn"}}
  | {
    f"sa={sa},mlp={mlp}": {"block_ln": f"sa={sa},mlp={mlp}"}
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


def compile_step(options: dict, variant: str, image):
  """Returns (step, variables, bytes) of one model.

  Args:
    options: of the model.
    variant: its size and patch.
    image: (batch, rows, cols, 3).

  Returns:
    A compiled function from variables to variables, what to start from, and
    the bytes that XLA reserves for arguments, results and temporaries.
  """
  model = vit.Model(10, variant=variant, head_zeroinit=False, **options)
  overwrite = power_norm.OVERWRITE_WITH_GRADIENT

  def step(variables):
    state = {k: v for k, v in variables.items() if k != "params"}

    def loss_fn(params, overwritten):
      (logits, _), new = model.apply(
        {**state, "params": params, **overwritten},
        image,
        train=True,
        mutable=list(state),
      )
      return jnp.square(logits).mean(), new

    overwritten = {k: v for k, v in state.items() if k == overwrite}
    (grads, overwritten), new = jax.grad(loss_fn, (0, 1), has_aux=True)(
      variables["params"], overwritten
    )
    params = jax.tree.map(lambda p, g: p - 1e-4 * g, variables["params"], grads)
    return {**new, **overwritten, "params": params}

  variables = jax.jit(model.init)(jax.random.key(0), image)
  compiled = jax.jit(step, donate_argnums=0).lower(variables).compile()
  memory = compiled.memory_analysis()
  reserved = memory.argument_size_in_bytes + memory.temp_size_in_bytes
  return compiled, variables, reserved


def interleave(steps: dict, repetitions: int) -> dict[str, list[float]]:
  """Returns the seconds of each step, taken in turn, without a first round."""
  seconds = {name: [] for name in steps}
  for repetition in range(repetitions + 1):
    for name, (step, variables, reserved) in steps.items():
      start = time.perf_counter()
      variables = jax.block_until_ready(step(variables))
      if repetition:
        seconds[name].append(time.perf_counter() - start)
      steps[name] = step, variables, reserved
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
  width = max(map(len, results))
  lines = [f"{'':<{width}}     ms   time (quartiles)     memory"]
  lines += [
    f"{name:<{width}} {1e3 * r['ours']:>6.1f}   {r['ratio']:.2f} "
    f"({r['ratio_q1']:.2f}–{r['ratio_q3']:.2f})"
    f"     {r['memory_ratio']:.2f}"
    for name, r in results.items()
  ]
  return "\n".join(lines)


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("--json", help="file to write the results to")
  parser.add_argument("--variant", default="Ti/16")
  parser.add_argument("--image_size", type=int, default=64)
  parser.add_argument("--batch_size", type=int, default=16)
  parser.add_argument("--steps", type=int, default=10)
  args = parser.parse_args()

  shape = (args.batch_size, args.image_size, args.image_size, 3)
  image = jax.random.uniform(jax.random.key(0), shape, minval=-1)
  scan = {"scan": True}  # each block is compiled once
  steps = {
    name: compile_step(scan | options, args.variant, image)
    for name, options in ARMS.items()
  }
  reserved = {name: step[2] for name, step in steps.items()}
  results = compare(interleave(steps, args.steps), reserved)
  print(f"{args.variant}, images {shape}, {jax.devices()[0].device_kind}")
  print(table(results))
  if args.json:
    with open(args.json, "w") as f:
      json.dump(results, f, indent=2)


if __name__ == "__main__":
  main()
