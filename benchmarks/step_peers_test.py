"""A tiny training step, timed."""

import dataclasses
import itertools
import types

import pytest

from benchmarks import step_peers

SETTING = step_peers.Setting("mu/16", resolution=32, batch_size=4)


def test_a_step_lasts_from_end_to_end(monkeypatch):
  clock = itertools.chain([0.0, 5.0], itertools.count(6.0, 2.0))
  monkeypatch.setattr(
    step_peers, "time", types.SimpleNamespace(perf_counter=lambda: next(clock))
  )
  order = []
  step = types.SimpleNamespace(
    run=lambda: order.append("run") or len(order), wait=order.append
  )
  # The first to end, and the one after it, are left out.
  assert step_peers.time_steps(step, 3) == [1.0, 2.0, 2.0]
  assert order[:4] == ["run", "run", 1, "run"]  # one step in advance
  assert step_peers.time_steps(step, 3, secs=9) == [2.0] * 5


def test_ours_runs(monkeypatch):
  monkeypatch.setattr(step_peers, "MATMUL_SIZE", {"cpu": 64})
  found = step_peers.measure(
    "ours", dataclasses.asdict(SETTING), 2, 0, folder="", keep_memory=False
  )
  assert len(found["secs"]) == 2
  assert found["attention"] == "xla"
  assert found["reserved"] > 0
  # Two layers more than the blocks: patches and head. 3 for the backward pass.
  tokens, width = 5, 32
  block = 12 * width**2 * tokens + 2 * tokens**2 * width
  flops = 2 * 3 * 4 * (block + 4 * 768 * width + width * 1000)
  assert found["flops"] == flops
  assert found["peak"] is None


def test_no_big_vision_there(tmp_path):
  with pytest.raises(FileNotFoundError, match="there is no big_vision/optax"):
    step_peers.big_vision(SETTING, str(tmp_path))
