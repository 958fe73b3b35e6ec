"""Compiles a config's training step for devices that are not here.

  python -m scripts.compile --target v5e:16x16 \
    --config configs/augreg_i1k.py:variant=B/16
  python -m scripts.compile --target h100:8 \
    --config configs/augreg_i1k.py:variant=B/16
  python -m scripts.compile --target cpu:8 --memory_gb 80 \
    --config configs/augreg_i1k.py:variant=B/16

  python -m scripts.compile --target v5e:16x16 --what step,eval,init \
    --config configs/augreg_i1k.py:variant=B/16

  python -m scripts.compile --table docs/pods.md --target v5e:16x16,v5p:4x4x4

Nothing is run. For a TPU topology, or a number of NVIDIA GPUs, the real
compiler says how much memory each chip needs and which collectives a step has;
this takes minutes. With --what, it also compiles evaluators, without their
data, and the initialization. Bounds on the step's time come from data sheets,
not from measurements: real steps take longer. For cpu:8, eight simulated
devices, parameters, optimizer and batch are exact; the rest (activations,
gradients, copies) is what XLA plans for CPUs, and accelerators' compilers
mostly need less.
"""

import itertools
import json
import math
import re
import sys
import time
from collections.abc import Mapping, Sequence

import jax
from absl import flags

import dpn.tasks
from dpn import sharding
from dpn.models import flash
from dpn.scripts import fake_data
from dpn.scripts.compilation import (
  fit,
  gpus,
  programs,
  roofline,
  scaling,
  table,
  targets,
)
from dpn.scripts.results import output
from dpn.trainers import build, cli, config_keys

_GIB = 2**30
_HELP = "--fit tries what helps: grad_accum, remat_policy, fsdp, fewer images."


def build_step(config, devices: Sequence[jax.Device] | None = None):
  """Returns a config's `build.TrainStep` on these devices, or on all."""
  config_keys.check(config)
  mesh = sharding.make_mesh(config.get("mesh") or [("data", -1)], devices)
  task = dpn.tasks.make(config)
  spec, examples = fake_data.describe(config)
  return build.train_step(config, task, spec, mesh, data_size=examples)


def compile_step(config, devices: Sequence[jax.Device] | None = None):
  """Returns a config's `build.TrainStep`, and its program for these devices.

  Raises:
    fit.DoesNotFit: the compiler says that it does not fit their memory.
  """
  with flash.assume(gpus.attention(devices)):
    step = build_step(config, devices)
    return step, _compiled(step)


def _compiled(program):
  """Returns `program.compile()`; raises fit.DoesNotFit if memory runs out."""
  try:
    return program.compile()
  except jax.errors.JaxRuntimeError as e:
    if "RESOURCE_EXHAUSTED" not in str(e):
      raise
    said = next(line for line in str(e).splitlines() if "memory" in line)
    needed = max(map(float, re.findall(r"([\d.]+)G\b", said)), default=0.0)
    raise fit.DoesNotFit(
      f"It does not compile: {said} {_HELP}", needed * _GIB
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
  padding = max(said.argument_size_in_bytes - sum(parts.values()), 0)
  rest = {"activations, gradients": said.temp_size_in_bytes}
  return parts | {"padding": padding} | rest


def per_device(shapes) -> int:
  """Returns the bytes that arrays of these shapes take on one device."""
  return sum(
    math.prod(s.sharding.shard_shape(s.shape)) * s.dtype.itemsize
    for s in jax.tree.leaves(shapes)
  )


def advice(parts: Mapping[str, int], memory: int) -> str:
  """Returns a sentence on whether `parts` fit in `memory` bytes."""
  share = sum(parts.values()) / memory
  if share <= 1:
    return f"It fits: {share:.0%} of a device's memory."
  return f"It does not fit: {share:.1f} times a device's memory. {_HELP}"


def main():
  config, path = _CONFIG.value, _TABLE.value or _SCALING.value
  if _TABLE.value and (config or _SCALING.value):
    raise ValueError("--table has its own cases: no --config, no --scaling.")
  if not (config or _TABLE.value):
    raise ValueError("--config is missing: the path of a config file.")
  for flag in (_FIT, _WHAT, _JSON, _MEMORY_GB):
    if path and flag.present:
      raise ValueError(
        f"--{flag.name} is for one target, not for a table or figure of many."
      )
  if not path:
    found = _report(config, _TARGET.value, _FIT.value, _WHAT.value)
    if _JSON.value:
      output.write(_JSON.value, json.dumps(found, indent=2))
    every = itertools.chain(*found["programs"].values())
    needed = [sum(found["memory"].values()), *(x["memory"] for x in every)]
    if max(needed) > found.get("memory_of_device", math.inf):
      sys.exit(1)  # XLA for GPUs compiles even what does not fit
    return
  jax.config.update("jax_platforms", "cpu")
  devices = {}
  for target in _TARGET.value.split(","):
    _, found = targets.parse(target)
    if found is None or isinstance(found, int):
      raise ValueError(f"--target={target}: a CPU has no data sheet here.")
    devices[target] = len(found)
  if _TABLE.value:
    table.rebuild(path, [*devices])
  else:
    scaling.draw(path, config, devices, _report)


def _report(config, target, fitting=True, what=()):
  """Prints and returns, as JSON, what a config needs on a target."""
  programs.check(config, what)
  if target != "local":
    jax.config.update("jax_platforms", "cpu")
  chip, devices = targets.parse(target)
  if isinstance(devices, int):
    jax.config.update("jax_num_cpu_devices", devices)
    devices = None
  room = int((_MEMORY_GB.value or chip.usable_gb) * _GIB)
  report, start = {"fit": {}}, time.monotonic()
  if fitting:
    report["fit"], found = _fitted(config, devices, room)
    config = fit.changed(config, report["fit"])
  else:
    found = compile_step(config, devices)
  step, compiled = found
  parts = memory(step, compiled)
  report |= {"compile_secs": time.monotonic() - start, "memory": parts}
  for name, size in [*parts.items(), ("total", sum(parts.values()))]:
    print(f"{name:<24}{size / _GIB:10.3f} GiB per device")
  if room:
    report["memory_of_device"] = room
    print(advice(parts, room))
  if devices is not None:
    report |= roofline.estimate(
      compiled.as_text(), step.flops(), chip, len(devices)
    )
    print(roofline.describe(report))
    report |= _recipe(config, step, report)
    report["hosts"] = len({device.process_index for device in devices})
  return report | {
    "programs": _programs(config, step, parts, chip, devices, what, room)
  }


def _programs(config, step, parts, chip, devices, what, room):
  """Prints and returns, as JSON by name, what a run's other programs need."""
  report, known = {}, {}
  state = parts["optimizer"] + parts["average"]
  with flash.assume(gpus.attention(devices)):
    lowered = [*programs.lower(config, step, what)]
  for name, program in lowered:
    if (text := program.as_text()) not in known:  # most evaluators are alike
      resident = 0 if name == programs.INIT else state
      known[text] = _program(_compiled(program), resident, chip, devices)
    found = known[text]
    report.setdefault(name, []).append(found)
    fits = "" if found["memory"] <= (room or math.inf) else ": does not fit"
    size = f"{found['memory'] / _GIB:10.3f} GiB per device in all"
    print(f"{name:<24}{size}{fits}")
  return report


def _fitted(config, devices, room):
  """Returns changes that make a config fit, and `compile_step` with them."""
  if not room:
    raise ValueError("--fit needs --memory_gb, what each device has.")

  def attempt(config):
    step, compiled = compile_step(config, devices)
    if (total := sum(memory(step, compiled).values())) > room:
      total /= _GIB
      raise fit.DoesNotFit(
        f"It needs {total:.3g} GiB per device.", total * _GIB
      )
    return step, compiled

  count = jax.device_count() if devices is None else len(devices)
  state = per_device(build_step(config, devices).shapes)
  change, found = fit.search(
    config, attempt, devices=count, state=state, room=room
  )
  print(f"Fits with {fit.flags(change)}" if change else "Fits as it is.")
  return change, found


def _program(compiled, resident, chip, devices):
  """Returns, as JSON, what a program needs beside `resident` bytes of state."""
  said = compiled.memory_analysis()
  more = said.argument_size_in_bytes + said.output_size_in_bytes
  found = {"memory": resident + more + said.temp_size_in_bytes}
  if devices is not None:
    bounds = roofline.estimate(compiled.as_text(), 0, chip, len(devices))
    del bounds["mfu_at_most"]
    found |= bounds
  return found


def _recipe(config, step, report):
  """Prints and returns bounds on a recipe's speed and duration."""
  least = max(report["seconds_at_least"].values())
  rate = config.input.batch_size / least
  steps = step.sizes["total_steps"]
  hours = least * steps / 3600
  print(
    f"At most {rate:,.0f} images/s; all {steps:,} steps take {hours:.2f} hours "
    f"or more, if an epoch has {step.sizes['data_size']:,} images."
  )
  return {"images_per_sec_at_most": rate, "hours_at_least": hours}


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _TARGET = flags.DEFINE_string(
    "target",
    "cpu:1",
    "Devices: v5e:16x16 (v4, v5p, v6e), h100:8 (a100, h200), cpu:8 or local.",
  )
  _MEMORY_GB = flags.DEFINE_float("memory_gb", None, "Memory of each device.")
  _TABLE = flags.DEFINE_string(
    "table", None, "Page to put a table of all recipes into: docs/pods.md."
  )
  _SCALING = flags.DEFINE_string(
    "scaling", None, "Figure of the bounds on several --target: scaling.png."
  )
  _FIT = flags.DEFINE_bool(
    "fit", False, "Find, by compiling, the smallest change that makes it fit."
  )
  _WHAT = flags.DEFINE_list(
    "what",
    [programs.ALWAYS],
    "Also init, eval (all evaluators), or sections of config.evals by name.",
  )
  _JSON = flags.DEFINE_string("json", None, "JSON file for all numbers.")
  cli.run(main, required=())
