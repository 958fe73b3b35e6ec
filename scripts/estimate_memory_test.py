"""Memory per device, from compiled programs, on 1 to 8 devices."""

import json
import pathlib
import subprocess
import sys

import pytest

from dpn.scripts import estimate_memory

CODE = """
import json
import jax
jax.config.update("jax_num_cpu_devices", 8)
from dpn.configs import augreg_i1k
from dpn.scripts import estimate_memory
from dpn.trainers import build

arguments = []
compile = build.TrainStep.compile
def keep(training):
  compiled = compile(training)
  arguments.append(compiled.memory_analysis().argument_size_in_bytes)
  return compiled
build.TrainStep.compile = keep

parts = []
for devices in (1, 2, 8):
  config = augreg_i1k.get_config("variant=S/32")
  config.input.batch_size = 8
  config.model.update(width=64, depth=2, mlp_dim=256, num_heads=8, scan=True)
  config.num_classes = 1000
  config.total_steps = 20_000
  del config.total_epochs
  config.sharding_strategy = [(".*", "fsdp(min_size_to_shard_mb=0)")]
  jax.device_count = lambda: devices
  make = jax.make_mesh
  first = jax.devices()[:devices]
  jax.make_mesh = lambda *a, **kw: make(*a, **kw, devices=first)
  parts.append(estimate_memory.estimate(config))
  jax.make_mesh = make
print(json.dumps([parts, arguments]))
"""


def test_parameters_and_optimizer_fall_as_one_over_n():
  done = subprocess.run(
    [sys.executable, "-c", CODE],
    cwd=pathlib.Path(__file__).parent.parent,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  parts, arguments = json.loads(done.stdout.splitlines()[-1])
  state = [p["parameters"] + p["optimizer"] for p in parts]
  # Parameters in float32, first moments in bfloat16, second in float32.
  assert parts[0]["optimizer"] == pytest.approx(
    parts[0]["parameters"] * 1.5, rel=0.01
  )
  for devices, got in zip((1, 2, 8), state, strict=True):
    assert got == pytest.approx(state[0] / devices, rel=0.02)
  # What XLA says the compiled program takes: state, batch and the step number.
  for p, argument in zip(parts, arguments, strict=True):
    known = ("parameters", "optimizer", "other state", "batch")
    assert argument == pytest.approx(sum(p[k] for k in known), abs=2048)


PARTS = {"parameters": 8, "optimizer": 16, "average": 0, "batch": 2}


def test_advice():
  parts = PARTS | {estimate_memory.REST: 70}
  assert estimate_memory.advice(parts, 100, 1).startswith("It fits: 96%")
  assert "config.grad_accum=4, " in estimate_memory.advice(parts, 50, 1)
  assert "config.grad_accum=8, " in estimate_memory.advice(parts, 50, 2)
  text = estimate_memory.advice(parts, 20, 1)
  assert text.startswith("It does not fit: 4.8 times")
  assert "grad_accum" not in text
  assert "fsdp" in text
