"""Says how much memory a config's training step needs on each device.

  python -m scripts.estimate_memory --devices 8 --memory_gb 80 \
    --config configs/augreg_i1k.py:variant=B/16

Nothing is run: the step is compiled for so many simulated CPU devices, and XLA
says what it would allocate. Parameters, optimizer and batch are exact; the rest
(activations, gradients, copies) is what XLA's CPU compiler plans. Accelerators'
compilers fuse more, so they mostly need less.
"""

import json
import math
from collections.abc import Mapping

import jax
from absl import flags

import dpn.tasks
from dpn import sharding
from dpn.scripts import fake_data
from dpn.scripts.results import output
from dpn.trainers import build, cli, config_keys

REST = "activations, gradients"


def estimate(config) -> dict[str, int]:
  """Returns the bytes that each device of this process's mesh needs, by use."""
  config_keys.check(config)
  mesh = sharding.make_mesh(config.get("mesh") or [("data", -1)])
  task = dpn.tasks.make(config)
  step = build.train_step(
    config, task, fake_data.spec(config), mesh, data_size=fake_data.EXAMPLES
  )
  analysis = step.compile().memory_analysis()
  shapes = step.shapes
  return {
    "parameters": per_device(shapes.params),
    "optimizer": per_device(shapes.opt_state),
    "average": per_device(shapes.ema),
    "other state": per_device((shapes.model_state, shapes.grad_norms)),
    "batch": per_device(step.batch_shapes),
    REST: analysis.temp_size_in_bytes,
  }


def per_device(shapes) -> int:
  """Returns the bytes that arrays of these shapes take on one device."""
  return sum(
    math.prod(s.sharding.shard_shape(s.shape)) * s.dtype.itemsize
    for s in jax.tree.leaves(shapes)
  )


def advice(parts: Mapping[str, int], memory: int, grad_accum: int) -> str:
  """Returns whether `parts` fit in `memory` bytes, and what would help."""
  total = sum(parts.values())
  if total <= memory:
    return f"It fits: {total / memory:.0%} of a device's memory."
  text = f"It does not fit: {total / memory:.1f} times a device's memory. Try "
  if (room := memory - total + parts[REST]) > 0:
    factor = 2 ** math.ceil(math.log2(parts[REST] / room))
    text += f"config.grad_accum={factor * grad_accum}, "
  return (
    f"{text}config.sharding_strategy=[('.*', 'fsdp(axis=\"data\")')], or "
    'config.model.remat_policy="nothing_saveable".'
  )


def main():
  jax.config.update("jax_platforms", "cpu")
  jax.config.update("jax_num_cpu_devices", _DEVICES.value)
  config = _CONFIG.value
  parts = estimate(config)
  for name, size in [*parts.items(), ("total", sum(parts.values()))]:
    print(f"{name:<24}{size / 2**30:10.3f} GiB per device")
  if _JSON.value:
    output.write(_JSON.value, json.dumps(parts, indent=2))
  if _MEMORY_GB.value:
    memory = int(_MEMORY_GB.value * 2**30)
    print(advice(parts, memory, config.get("grad_accum") or 1))


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _DEVICES = flags.DEFINE_integer("devices", 1, "How many devices to simulate.")
  _MEMORY_GB = flags.DEFINE_float("memory_gb", None, "What each of them has.")
  _JSON = flags.DEFINE_string("json", None, "File for the bytes by use.")
  cli.run(main)
