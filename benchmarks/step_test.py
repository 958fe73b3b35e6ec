"""The arithmetic of the step benchmark, its peers, and a tiny step, timed."""

import dataclasses
import itertools
import types

import jax
import pytest

from benchmarks import harness, step, step_peers
from dpn.scripts.compilation import targets

SETTING = step_peers.Setting("mu/16", resolution=32, batch_size=4)


def _round(secs, **more):
  return {
    "secs": secs,
    "compile_secs": 9.0,
    "memory": 2**31,
    "device": "gpu",
    "flops": None,
    "peak": None,
    "matmul": 4e12,
    "reserved": 0,
    "bound": 0.0,
    "attention": "",
    "versions": "",
  } | more


def test_figures_by_hand():
  rounds = [
    _round(
      [0.1, 0.2, 0.3], flops=int(4e11), peak=8e12, bound=0.05, attention="xla"
    ),
    _round([0.2, 0.2], memory=2**30, compile_secs=1.0, matmul=5e12),
  ]
  got = step.figures(rounds, batch_size=10)
  assert got == {
    "img_per_sec": pytest.approx(50),
    "step_secs_p50": pytest.approx(0.2),
    "step_secs_p95": pytest.approx(0.28),
    "compile_secs": 9.0,
    "peak_memory_gb": 2.0,
    "matmul_flops": 5e12,
    "flops": 4e11,  # in 0.2 s: 2e12 FLOP/s
    "mfu": pytest.approx(0.25),
    "of_matmul": pytest.approx(0.4),
    "bound_secs": 0.05,
    "of_bound": pytest.approx(0.25),
    "attention": "xla",
    "device": "gpu",
  }
  assert "mfu" not in step.figures([_round([0.1], flops=1)], 10)


def test_the_best_peer_counts():
  speed = lambda x: step.figures([_round([1 / x])], 1)
  others = {"timm": speed(8), "big_vision": speed(5), "slow": {"error": "OOM"}}
  rows = {"ours": speed(10), **others}
  got = harness.compare(rows, "img_per_sec")
  assert got["ours"] == pytest.approx(10)
  assert got["ratio"] == pytest.approx(1.25)
  assert "slow" not in got
  assert "OOM" in harness.table(rows, step.COLUMNS).to_string()
  failed = {"ours": {"error": "OOM"}, **others}
  assert "ratio" not in harness.compare(failed, "img_per_sec")


def test_every_combination_and_its_peers():
  args = step.parse_args([
    *("--dtype", "float32,bfloat16", "--scan", "False,True"),
    *("--torch_python", "python", "--big_vision", "folder"),
  ])  # fmt: skip
  settings = step.settings(args)
  assert [(s.dtype, s.scan) for s in settings] == list(
    itertools.product(["float32", "bfloat16"], [False, True])
  )
  assert settings[0] == step_peers.Setting()
  assert [*step.arms(args, settings[0])] == ["ours", "timm", "big_vision"]
  arms = step.arms(args, settings[3])
  assert {who: (arm.dtype, arm.scan) for who, arm in arms.items()} == {
    "ours": ("bfloat16", True),
    "timm": ("bfloat16", False),
    "big_vision": ("bfloat16", True),
    "big_vision, default": ("float32", True),
  }


def test_a_step_lasts_from_end_to_end(monkeypatch):
  clock = itertools.chain([0.0, 5.0], itertools.count(6.0, 2.0))
  monkeypatch.setattr(
    step_peers, "time", types.SimpleNamespace(perf_counter=lambda: next(clock))
  )
  order = []
  timed = types.SimpleNamespace(
    run=lambda: order.append("run") or len(order), wait=order.append
  )
  # The first to end and the one after it are left out.
  assert step_peers.time_steps(timed, 3) == [1.0, 2.0, 2.0]
  assert order[:4] == ["run", "run", 1, "run"]  # one step in advance
  assert step_peers.time_steps(timed, 3, secs=9) == [2.0] * 5


def test_our_step_runs(monkeypatch):
  monkeypatch.setattr(step_peers, "MATMUL_SIZE", {"cpu": 64})
  chip = targets.Chip(flops=1e9, hbm=1e18, link=1e18)
  monkeypatch.setattr(targets, "of_device", lambda device: chip)
  found = step_peers.measure(
    "ours", dataclasses.asdict(SETTING), 2, 0, folder="", keep_memory=False
  )
  assert len(found["secs"]) == 2
  assert found["attention"] == "xla"
  # Two more matrices than in the blocks: patches and head. 3 for the backward,
  # but pixels have no gradient.
  tokens, width = 5, 32
  block = 12 * width**2 * tokens + 2 * tokens**2 * width
  flops = 2 * 4 * (3 * (block + width * 1000) + 2 * 4 * 768 * width)
  assert found["flops"] == flops
  secs = flops / jax.device_count() / 1e9
  assert found["bound"] == pytest.approx(secs, rel=0.01)
  assert found["peak"] is None
  # At least the parameters and both moments, of block, embedding and head.
  parameters = 12 * width**2 + 768 * width + width * 1000
  assert found["reserved"] >= 3 * 4 * parameters
  reserved_gb = step.figures([found], 2)["reserved_gb"]
  assert reserved_gb == found["reserved"] / 2**30


def test_big_vision_is_not_there(tmp_path):
  with pytest.raises(FileNotFoundError, match="there is no big_vision/optax"):
    step_peers.big_vision(SETTING, str(tmp_path))
