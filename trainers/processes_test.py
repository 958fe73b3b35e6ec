"""Two processes with two devices each, against one process with four."""

import json
import signal
import time

import numpy as np
import pytest
import safetensors.numpy

from trainers import loop, testing


@pytest.fixture(scope="module", name="runs")
def _runs(tmp_path_factory):
  """Returns a folder of runs: alone, whole, stopped and moved."""
  root = tmp_path_factory.mktemp("runs")
  port = testing.free_port()
  logs = [root / "0.log", root / "1.log"]
  processes = [
    testing.start(
      ["trainers.testing", str(root), str(port), str(i)], devices=2, log=log
    )
    for i, log in enumerate(logs)
  ]
  try:
    loop.train(testing.sharded_config(), str(root / "alone"))
    codes = [p.wait(timeout=240) for p in processes]
  finally:
    for p in processes:
      p.kill()
      p.wait()
  assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
  (root / "moved_step").write_text(
    str(max(int(p.name) for p in (root / "moved" / "checkpoints").iterdir()))
  )
  loop.train(testing.sharded_config(), str(root / "moved"))
  return root


def _rows(run):
  return [
    json.loads(x) for x in (run / "metrics.jsonl").read_text().split("\n")[:-1]
  ]


def _params(run):
  return safetensors.numpy.load_file(run / "params.safetensors")


def _assert_close(a, b):
  rows_a, rows_b = _rows(a), _rows(b)
  assert [row.keys() for row in rows_a] == [row.keys() for row in rows_b]
  for row_a, row_b in zip(rows_a, rows_b, strict=True):
    assert row_a == pytest.approx(row_b, rel=1e-6, abs=1e-6)
  params_a, params_b = _params(a), _params(b)
  assert params_a.keys() == params_b.keys()
  for name in params_a:
    np.testing.assert_allclose(params_a[name], params_b[name], atol=1e-6)


def test_losses_evaluations_and_parameters_are_those_of_one(runs):
  rows = _rows(runs / "whole")
  assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
  assert {"loss", "test/prec@1", "fewshot/digits_1shot"} <= rows[-1].keys()
  _assert_close(runs / "whole", runs / "alone")


def test_resumed_after_a_signal_bit_for_bit(runs):
  assert 1 <= int((runs / "moved_step").read_text()) < 6
  assert "Asked to stop (SIGTERM)" in (runs / "0.log").read_text()
  for file in ("metrics.jsonl", "params.safetensors"):
    whole, stopped = (
      (runs / r / file).read_bytes() for r in ("whole", "stopped")
    )
    assert whole == stopped, file


def test_goes_on_with_another_number_of_processes(runs):
  _assert_close(runs / "moved", runs / "alone")


def test_a_death_ends_the_others(tmp_path):
  port = testing.free_port()
  logs = [tmp_path / "0.log", tmp_path / "1.log"]
  processes = [
    testing.start(
      [
        "trainers.train",
        "--config=configs/digits.py:runlocal",
        "--config.model.depth=1",
        "--config.total_steps=1000000",
        "--config.log_training_steps=5",
        "--config.evals.test.log_steps=1000000",
        "--config.evals.fewshot.log_steps=1000000",
        f"--workdir={tmp_path / 'run'}",
        f"--coordinator=localhost:{port}",
        "--num_processes=2",
        f"--process_id={i}",
      ],
      devices=1,
      log=log,
    )
    for i, log in enumerate(logs)
  ]
  try:
    testing.wait_for(processes[0], logs[0], "step 10/")
    processes[1].send_signal(signal.SIGKILL)
    begin = time.monotonic()
    assert processes[0].wait(timeout=90) not in (0, None)
    assert time.monotonic() - begin < 80
  finally:
    for p in processes:
      p.kill()
      p.wait()
  assert "another" in logs[0].read_text().lower()
