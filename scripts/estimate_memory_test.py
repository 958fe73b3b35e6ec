"""Memory per device, from compiled programs, on 1 and 4 devices."""

import jax
import pytest

from dpn.configs import augreg_i1k
from dpn.scripts import estimate_memory
from dpn.trainers import build


def _config():
  config = augreg_i1k.get_config("variant=S/32")
  config.input.batch_size = 8
  config.model.update(width=64, depth=2, mlp_dim=256, num_heads=8, scan=True)
  config.num_classes = 1000
  config.total_steps = 20_000
  del config.total_epochs
  config.sharding_strategy = [(".*", "fsdp(min_size_to_shard_mb=0)")]
  return config


def test_parameters_and_optimizer_fall_as_one_over_n(monkeypatch):
  compile_step, make_mesh = build.TrainStep.compile, jax.make_mesh
  arguments, parts = [], []

  def keep(step):
    compiled = compile_step(step)
    arguments.append(compiled.memory_analysis().argument_size_in_bytes)
    return compiled

  monkeypatch.setattr(build.TrainStep, "compile", keep)
  for n in (1, 4):
    first = jax.devices()[:n]
    monkeypatch.setattr(jax, "device_count", lambda n=n: n)
    monkeypatch.setattr(
      *(jax, "make_mesh"),
      lambda *args, first=first, **kw: make_mesh(*args, **kw, devices=first),
    )
    parts.append(estimate_memory.estimate(_config()))
  # Parameters in float32, first moments in bfloat16, second in float32.
  one = parts[0]
  assert one["optimizer"] == pytest.approx(one["parameters"] * 1.5, rel=0.01)
  state = [p["parameters"] + p["optimizer"] for p in parts]
  assert state[1] == pytest.approx(state[0] / 4, rel=0.02)
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
