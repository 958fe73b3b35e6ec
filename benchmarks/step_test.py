"""The arithmetic of the step benchmark, and whom it compares."""

import itertools

import pytest

from benchmarks import step
from benchmarks import harness, step_peers


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
    "attention": "",
    "versions": "",
  } | more


def test_figures_by_hand():
  rounds = [
    _round([0.1, 0.2, 0.3], flops=int(4e11), peak=8e12, attention="xla"),
    _round([0.2, 0.2], memory=2**30, compile_secs=1.0, matmul=5e12),
  ]
  got = step.figures(rounds, batch_size=10)
  assert got["img_per_sec"] == pytest.approx(50)
  assert got["step_secs_p50"] == pytest.approx(0.2)
  assert got["step_secs_p95"] == pytest.approx(0.28)
  assert (got["compile_secs"], got["peak_memory_gb"]) == (9.0, 2.0)
  # 4e11 FLOPs in 0.2 s are 2e12 FLOP/s.
  assert got["mfu"] == pytest.approx(0.25)
  assert got["of_matmul"] == pytest.approx(0.4)
  assert got["attention"] == "xla"
  assert "versions" not in got
  assert "mfu" not in step.figures([_round([0.1], flops=1)], 10)


def test_the_best_peer_counts():
  speed = lambda x: step.figures([_round([1 / x])], 1)
  others = {"timm": speed(8), "big_vision": speed(5), "slow": {"error": "OOM"}}
  compare = lambda rows: harness.compare(rows, "img_per_sec")
  rows = {"ours": speed(10), **others}
  got = compare(rows)
  assert got["ours"] == pytest.approx(10)
  assert got["ratio"] == pytest.approx(1.25)
  assert "slow" not in got
  assert "OOM" in harness.table(rows, step.COLUMNS)
  assert "ratio" not in compare({"ours": {"error": "OOM"}, **others})


def test_every_combination_and_its_peers():
  args = step.parse_args(
    [
      *("--dtype", "float32,bfloat16", "--scan", "False,True"),
      *("--torch_python", "python", "--big_vision", "folder"),
    ]
  )
  settings = step.settings(args)
  assert [(s.dtype, s.scan) for s in settings] == list(
    itertools.product(["float32", "bfloat16"], [False, True])
  )
  assert settings[0] == step_peers.Setting()
  assert list(step.arms(args, settings[0])) == [
    *("ours", "timm", "big_vision")
  ]
  arms = step.arms(args, settings[3])
  assert {who: (arm.dtype, arm.scan) for who, arm in arms.items()} == {
    "ours": ("bfloat16", True),
    "timm": ("bfloat16", False),
    "big_vision": ("bfloat16", True),
    "big_vision, default": ("float32", True),
  }
