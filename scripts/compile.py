"""Compiles a config's training step for devices that are not here.

  python -m scripts.compile --target v5e:16x16 \
    --config configs/augreg_i1k.py:variant=B/16
  python -m scripts.compile --target cpu:8 --memory_gb 80 \
    --config configs/augreg_i1k.py:variant=B/16

Nothing is run. For a TPU of a given topology it is the real compiler that says
how much memory a chip needs and which collectives a step has; it takes minutes.
Bounds of the step's time are from data sheets, and no measurement: real steps
take longer. For cpu:8, eight simulated devices, parameters, optimizer and batch
are exact; the rest (activations, gradients, copies) is what XLA plans for CPUs,
and accelerators' compilers mostly need less.
"""

import json
import math
from collections.abc import Mapping, Sequence

import jax
from absl import flags

import dpn.tasks
from dpn import sharding
from dpn.scripts import fake_data
from dpn.scripts.compilation import hlo, targets
from dpn.scripts.results import output
from dpn.trainers import build, cli, config_keys

REST = "activations, gradients"
_GIB = 2**30


def compile_step(config, devices: Sequence[jax.Device] | None = None):
  """Returns a config's `build.TrainStep`, and it compiled for these devices.

  Raises:
    ValueError: it does not fit their memory, by the compiler's own words.
  """
  config_keys.check(config)
  mesh = sharding.make_mesh(config.get("mesh") or [("data", -1)], devices)
  task = dpn.tasks.make(config)
  step = build.train_step(
    config, task, fake_data.spec(config), mesh, data_size=fake_data.EXAMPLES
  )
  try:
    return step, step.compile()
  except jax.errors.JaxRuntimeError as e:
    if "RESOURCE_EXHAUSTED" not in str(e):
      raise
    said = next(line for line in str(e).splitlines() if "memory" in line)
    raise ValueError(
      f"It does not compile: {said} Try config.grad_accum=4, {_remedies()}."
    ) from e


def memory(step: build.TrainStep, compiled) -> dict[str, int]:
  """Returns the bytes that a step needs on each device, by use."""
  shapes, said = step.shapes, compiled.memory_analysis()
  parts = {
    "parameters": per_device(shapes.params),
    "optimizer": per_device(shapes.opt_state),
    "average": per_device(shapes.ema),
    "other state": per_device((shapes.model_state, shapes.grad_norms)),
    "batch": per_device(step.batch_shapes),
  }
  # TPUs pad the last two dimensions of arrays.
  padding = said.argument_size_in_bytes - sum(parts.values())
  return parts | {"padding": max(padding, 0), REST: said.temp_size_in_bytes}


def estimate(config) -> dict[str, int]:
  """Returns `memory` of a config on the devices that JAX has."""
  return memory(*compile_step(config))


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
  return f"{text}{_remedies()}."


def _remedies():
  return (
    "config.sharding_strategy=[('.*', 'fsdp(axis=\"data\")')], or "
    'config.model.remat_policy="nothing_saveable"'
  )


def bounds(
  step_flops: float,
  kept: int,
  traffic: Mapping[str, hlo.Traffic],
  chip: targets.Chip,
  devices: int,
) -> dict[str, float]:
  """Returns the least seconds of a step by what it is bound by.

  Args:
    step_flops: of a step on all devices.
    kept: bytes of state on a device, which are read once and written once.
    traffic: of `hlo.collectives`. On a ring of n devices an all-reduce sends
      2 (n - 1) / n of its bytes, the others (n - 1) / n.
    chip: its peaks.
    devices: how many there are.
  """
  ring = (devices - 1) / devices
  twice = {"all-reduce": 2}
  # A reduce-scatter's result is a part of what is sent.
  parts = {"reduce-scatter": devices, "collective-permute": 1 / (ring or 1)}
  sent = sum(
    t.size * ring * twice.get(kind, 1) * parts.get(kind, 1)
    for kind, t in traffic.items()
  )
  return {
    "compute": step_flops / devices / chip.flops,
    "memory of state alone": 2 * kept / chip.hbm,
    "interconnect": sent / chip.link,
  }


def main():
  jax.config.update("jax_platforms", "cpu")
  config = _CONFIG.value
  chip, devices = targets.parse(_TARGET.value)
  if isinstance(devices, int):
    jax.config.update("jax_num_cpu_devices", devices)
    devices = None
  step, compiled = compile_step(config, devices)
  parts = memory(step, compiled)
  for name, size in [*parts.items(), ("total", sum(parts.values()))]:
    print(f"{name:<24}{size / _GIB:10.3f} GiB per device")
  report = {"memory": parts}
  room = _MEMORY_GB.value or chip.memory_gb
  if room:
    print(advice(parts, int(room * _GIB), config.get("grad_accum") or 1))
  if devices is not None:
    report |= _time(config, step, compiled, parts, chip, len(devices))
  if _JSON.value:
    output.write(_JSON.value, json.dumps(report, indent=2))


def _time(config, step, compiled, parts, chip, devices):
  """Prints collectives and bounds of a step's time; returns them as JSON."""
  traffic = hlo.collectives(compiled.as_text())
  for kind, t in traffic.items():
    print(f"{kind:<24}{t.size / _GIB:10.3f} GiB per device, {t.count} a step")
  kept = sum(v for k, v in parts.items() if k not in (REST, "batch", "padding"))
  found = bounds(step.flops(), kept, traffic, chip, devices)
  for name, secs in found.items():
    print(f"{name:<24}{secs * 1e3:10.2f} ms at least")
  least = max(found.values())
  rate = config.input.batch_size / least
  hours = least * step.sizes["total_steps"] / 3600
  print(
    f"Estimate, from data sheets: at most {rate:,.0f} images/s; all "
    f"{step.sizes['total_steps']:,} steps take {hours:.2f} hours or more."
  )
  rows = {kind: [t.count, t.size] for kind, t in traffic.items()}
  return {"collectives": rows, "seconds_at_least": found}


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _TARGET = flags.DEFINE_string(
    "target", "cpu:1", "Devices: v5e, v5p, v6e with topology, or cpu:N."
  )
  _MEMORY_GB = flags.DEFINE_float("memory_gb", None, "What each of them has.")
  _JSON = flags.DEFINE_string("json", None, "File for all numbers.")
  cli.run(main)
