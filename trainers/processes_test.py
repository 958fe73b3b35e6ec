"""Two processes with two devices each, against one process with four.

As a program it is one of the two: `python -m trainers.processes_test`.
"""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from dpn import processes, sharding
from dpn.evaluators import base, segmentation
from dpn.input_pipeline.sources import arrays
from dpn.trainers import conftest, distributed, loop
from dpn.trainers import log as log_lib
from dpn.trainers import workdir as workdir_lib

ROOT = pathlib.Path(__file__).parent.parent
# A process that joins the other one; perhaps it then fails.
JOINS = """
import sys, time
from dpn.trainers import distributed
distributed.HEARTBEAT_SECS = distributed.SHUTDOWN_SECS = 6
port, index, fails = map(int, sys.argv[1:])
distributed.join(f"localhost:{port}", 2, index)
print("joined", flush=True)
if index == fails:
  sys.exit("Error: for this reason")
time.sleep(60)
"""


@pytest.fixture(scope="module", name="runs")
def _runs(tmp_path_factory):
  """Returns a folder of runs: alone, whole, stopped and moved."""
  root = tmp_path_factory.mktemp("runs")
  rng = np.random.default_rng(0)
  images = rng.uniform(size=(5, 9, 14, 3)).astype(np.float32)
  labels = rng.integers(0, 3, (5, 12, 20))
  np.savez(root / "maps.npz", **{"test/image": images, "test/labels": labels})
  port = _free_port()
  program = ["-m", "dpn.trainers.processes_test", str(root), str(port)]
  args = [[*program, str(i)] for i in range(2)]
  with _pair(root, args, devices=2) as (pair, logs):
    loop.train(conftest.sharded_config(), str(root / "alone"))
    codes = [p.wait(timeout=240) for p in pair]
  assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
  (root / "moved_step").write_text(
    str(max(int(p.name) for p in (root / "moved" / "checkpoints").iterdir()))
  )
  loop.train(conftest.sharded_config(), str(root / "moved"))
  return root


_assert_close = functools.partial(conftest.assert_close, rel=1e-6, atol=1e-6)


def test_losses_evaluations_and_parameters_are_those_of_one(runs):
  rows = conftest.rows(runs / "whole")
  assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
  assert {"loss", "test/prec@1", "fewshot/digits_1shot"} <= rows[-1].keys()
  _assert_close(runs / "whole", runs / "alone")


def test_resumed_after_a_signal_bit_for_bit(runs):
  assert 1 <= int((runs / "moved_step").read_text()) < 6
  for log in ("0.log", "1.log"):  # only one of them got Ctrl-C
    assert "Ctrl-C: saved step" in (runs / log).read_text()
  for file in ("metrics.jsonl", "params.safetensors"):
    whole, stopped = runs / "whole" / file, runs / "stopped" / file
    assert whole.read_bytes() == stopped.read_bytes(), file


def test_goes_on_with_another_number_of_processes(runs):
  _assert_close(runs / "moved", runs / "alone")


def test_folders_that_are_not_shared(runs):
  for log in (runs / "0.log", runs / "1.log"):
    assert "process 0: True in process 0, False in process 1" in log.read_text()


def test_label_maps_of_one_process(runs):
  """Of five images one process has three, and so more windows."""
  want = _segmented(runs, sharding.make_mesh())
  for got in json.loads((runs / "segmented.json").read_text()):
    assert got == pytest.approx(want)
  assert want["pixel_acc"] > 0.2


def test_values_are_in_the_order_of_the_examples(runs):
  """On a mesh by process, and on one as TPUs have them."""
  collected = json.loads((runs / "collected.json").read_text())
  assert collected == [list(range(7))] * 2


@pytest.mark.slow
def test_two_towers_see_the_whole_batch(tmp_path):
  """Every pair is compared with those of the other process, too."""
  args = ["-m", "dpn.trainers.processes_test", str(tmp_path), str(_free_port())]
  args = [[*args, str(i), "contrastive"] for i in range(2)]
  with _pair(tmp_path, args, devices=2) as (pair, logs):
    loop.train(conftest.contrastive_config(), str(tmp_path / "alone"))
    codes = [p.wait(timeout=240) for p in pair]
  assert codes == [0, 0], "\n".join(log.read_text() for log in logs)
  keys = {"zeroshot/new_names_prec@1", "retrieval/img2txt_recall@1", "bias"}
  assert keys <= conftest.rows(tmp_path / "alone")[-1].keys()
  _assert_close(tmp_path / "two", tmp_path / "alone", rel=1e-5)


def test_differences_end_all_processes_with_a_message(runs):
  for log in (runs / "0.log", runs / "1.log"):
    assert (
      "are not alike:\n  lr: 1 in process 0, 2 in process 1\n"
      "  pp.1: 'b' in process 0, 'absent' in process 1\n"
    ) in log.read_text()


@pytest.mark.parametrize(
  ("index", "how"), [(1, "fails"), (0, signal.SIGKILL), (1, signal.SIGSTOP)]
)
@pytest.mark.slow
def test_when_one_process_ends_or_hangs_so_does_the_other(tmp_path, index, how):
  port, fails = str(_free_port()), how == "fails"
  failing = str(index if fails else -1)
  args = [["-c", JOINS, port, str(i), failing] for i in range(2)]
  with _pair(tmp_path, args) as (pair, logs):
    for process, log in zip(pair, logs, strict=True):
      _wait_for(process, log, "joined")
    if not fails:
      pair[index].send_signal(how)
    assert pair[1 - index].wait(timeout=60) != 0
    if fails:
      assert pair[index].wait(timeout=60) != 0
      assert "Error: for this reason" in logs[index].read_text()


@contextlib.contextmanager
def _pair(folder, args, devices=1):
  """Runs two processes with such arguments; yields them and their logs."""
  logs = [folder / "0.log", folder / "1.log"]
  pairs = zip(args, logs, strict=True)
  pair = [_start(a, devices=devices, log=log) for a, log in pairs]
  try:
    yield pair, logs
  finally:
    for p in pair:
      p.kill()
      p.wait()


def _start(args: list[str], *, devices: int, log: pathlib.Path):
  """Starts `python args` with so many CPU devices, its output in `log`."""
  # The other flags decide what XLA compiles, and so how it rounds: keep them.
  flags = os.environ.get("XLA_FLAGS", "")
  flags += f" --xla_force_host_platform_device_count={devices}"
  with open(log, "w") as f:
    return subprocess.Popen(
      [sys.executable, *args],
      env=os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
      cwd=ROOT,
      stdout=f,
      stderr=subprocess.STDOUT,
    )


def _free_port() -> int:
  """Returns a port at which nothing listens just now."""
  with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    return s.getsockname()[1]


def _wait_for(process: subprocess.Popen, log: pathlib.Path, text: str):
  """Returns once the log of a process holds the text."""
  end = time.monotonic() + 120
  while text not in log.read_text():
    if time.monotonic() > end or process.poll() is not None:
      raise TimeoutError(f"No {text!r} in {log}:\n{log.read_text()}")
    time.sleep(0.05)


def _meshes() -> list[jax.sharding.Mesh]:
  """Returns one with the devices by process, and one where they take turns."""
  mesh = sharding.make_mesh()
  turns = np.array(mesh.devices).reshape(2, 2).T.ravel()
  return [mesh, jax.sharding.Mesh(turns, mesh.axis_names)]


def _collected(mesh: jax.sharding.Mesh) -> list[int]:
  """Returns seven numbers, gathered in batches of four."""
  evaluator = base.Evaluator(None, mesh=mesh, batch_size=4)
  numbers = {"image": np.arange(7.0, dtype=np.float32)}
  data = evaluator.open(arrays.ArraySource("numbers", numbers), "")
  image = evaluator.jit(lambda _, batch: batch["image"])
  return evaluator.collect(image, None, data)[0].tolist()


def _segmented(root: pathlib.Path, mesh: jax.sharding.Mesh) -> dict[str, float]:
  """Returns what a fixed function of the pixels gives as label maps."""

  def predict(weights, batch):
    image = batch["image"]
    return image.reshape(-1, 3, 2, 4, 2, 3).mean((2, 4)) @ weights, {}

  evaluator = segmentation.Evaluator(
    predict,
    mesh=mesh,
    batch_size=4,
    data={"name": f"arrays:{root / 'maps.npz'}", "split": "test"},
    pp_fn="",
    window=(6, 8),
    stride=(3, 4),
  )
  weights = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)
  return {k: float(v) for k, v in evaluator.run(weights).items()}


def _worker(workdir: pathlib.Path, process_id: int):
  """Trains in one go; then stopped by a signal to process 1, and resumed."""
  try:
    processes.agree(lambda: {"lr": 1, "pp": ["a"]})
    facts = {"lr": 1 + process_id, "pp": ["a", "b"][: 2 - process_id]}
    processes.agree(lambda: facts)
  except ValueError as e:
    print(e)
  (workdir / f"of{process_id}").mkdir()
  os.chdir(workdir / f"of{process_id}")
  try:
    workdir_lib.check_shared("/proc/self/cwd")  # one name, two folders
  except ValueError as e:
    print(e)
  os.chdir(ROOT)
  # First: the steps of the next are below what JAX has counted, then.
  loop.train(conftest.sharded_config(), str(workdir / "whole"))
  tick = log_lib.Progress.tick

  def slow_tick(progress, step):
    if process_id == 1 and step == 1:
      os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.7)  # the notice takes its time from one to the other
    tick(progress, step)

  log_lib.Progress.tick = slow_tick
  signal.signal(signal.SIGINT, signal.default_int_handler)  # perhaps ignored
  try:
    loop.train(conftest.sharded_config(), str(workdir / "stopped"))
  except KeyboardInterrupt as e:
    print(e)
  log_lib.Progress.tick = tick
  if process_id == 0:
    shutil.copytree(workdir / "stopped", workdir / "moved")
  multihost_utils.sync_global_devices("copied")
  loop.train(conftest.sharded_config(), str(workdir / "stopped"))
  segmented = [_segmented(workdir, mesh) for mesh in _meshes()]
  (workdir / "segmented.json").write_text(json.dumps(segmented))
  collected = [_collected(mesh) for mesh in _meshes()]
  (workdir / "collected.json").write_text(json.dumps(collected))


if __name__ == "__main__":
  _FOLDER, _PORT, _INDEX, *_TASK = sys.argv[1:]
  distributed.join(f"localhost:{_PORT}", 2, int(_INDEX))
  if _TASK:
    loop.train(conftest.contrastive_config(), f"{_FOLDER}/two")
  else:
    _worker(pathlib.Path(_FOLDER), int(_INDEX))
  distributed.wait_for_others("the end")
