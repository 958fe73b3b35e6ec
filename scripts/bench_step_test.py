"""The step benchmark: its arithmetic, and a tiny run of it."""

import itertools
import types

import pytest

from scripts import bench_step
from scripts.bench import step_peers as arms

SETTING = arms.Setting("mu/16", resolution=32, batch_size=4)


def _round(secs, **more):
  return {
    "secs": secs,
    "compile_secs": 9.0,
    "memory": 2**31,
    "device": "gpu",
    "flops": None,
    "peak": None,
    "matmul": 4e12,
  } | more


def test_figures_by_hand():
  rounds = [
    _round([0.1, 0.2, 0.3], flops=int(4e11), peak=8e12),
    _round([0.2, 0.2], memory=2**30, compile_secs=1.0, matmul=5e12),
  ]
  got = bench_step.figures(rounds, batch_size=10)
  assert got["img_per_sec"] == pytest.approx(50)
  assert got["step_secs_p50"] == pytest.approx(0.2)
  assert got["step_secs_p95"] == pytest.approx(0.28)
  assert (got["compile_secs"], got["peak_memory_gb"]) == (9.0, 2.0)
  # 4e11 FLOPs in 0.2 s are 2e12 FLOP/s.
  assert got["mfu"] == pytest.approx(0.25)
  assert got["of_matmul"] == pytest.approx(0.4)
  assert "mfu" not in bench_step.figures([_round([0.1], flops=1)], 10)


def test_the_best_peer_counts():
  speed = lambda x: bench_step.figures([_round([1 / x])], 1)
  others = {"timm": speed(8), "big_vision": speed(5), "slow": {"error": "OOM"}}
  got = bench_step.compare(speed(10), others)
  assert got["ours"] == pytest.approx(10)
  assert got["ratio"] == pytest.approx(1.25)
  assert "slow" not in got
  text = bench_step.table({"S/16": got})
  assert "S/16: 1.25 x the best peer" in text
  assert "OOM" in text
  assert "ratio" not in bench_step.compare({"error": "OOM"}, others)


def test_every_combination_and_its_peers():
  args = bench_step.parse_args(
    [
      *("--dtype", "float32,bfloat16", "--scan", "False,True"),
      *("--torch_python", "python", "--big_vision", "folder"),
    ]
  )
  settings = bench_step.settings(args)
  assert [(s.dtype, s.scan) for s in settings] == list(
    itertools.product(["float32", "bfloat16"], [False, True])
  )
  assert settings[0] == arms.Setting()
  assert list(bench_step.peers(args, settings[0])) == ["timm", "big_vision"]
  peers = bench_step.peers(args, settings[3])
  assert {who: (p.dtype, p.scan) for who, p in peers.items()} == {
    "timm": ("bfloat16", False),
    "big_vision": ("bfloat16", True),
    "big_vision, default": ("float32", True),
  }


def test_a_step_lasts_from_end_to_end(monkeypatch):
  clock = itertools.chain([0.0, 5.0], itertools.count(6.0, 2.0))
  monkeypatch.setattr(
    bench_step, "time", types.SimpleNamespace(perf_counter=lambda: next(clock))
  )
  order = []
  step = types.SimpleNamespace(
    run=lambda: order.append("run") or len(order), wait=order.append
  )
  # The first to end, and the one after it, are left out.
  assert bench_step.time_steps(step, 3) == [1.0, 2.0, 2.0]
  assert order[:4] == ["run", "run", 1, "run"]  # one step in advance


def test_ours_runs(monkeypatch):
  monkeypatch.setattr(bench_step, "MATMUL_SIZE", {"cpu": 64})
  found = bench_step.measure("ours", SETTING, 2, "")
  assert len(found["secs"]) == 2
  # Two layers more than the blocks: patches and head. 3 for the backward pass.
  tokens, width = 5, 32
  block = 12 * width**2 * tokens + 2 * tokens**2 * width
  flops = 2 * 3 * 4 * (block + 4 * 768 * width + width * 1000)
  assert found["flops"] == flops
  assert found["peak"] is None


def test_no_big_vision_there(tmp_path):
  with pytest.raises(FileNotFoundError, match="there is no big_vision/optax"):
    arms.big_vision(SETTING, str(tmp_path))
