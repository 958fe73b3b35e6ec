"""What docs/fault_tolerance.md promises: faults are done to small runs.

Each either ends with the bits of the undisturbed run, or with a message and its
last good checkpoint in place. On a GPU: JAX_PLATFORMS=cuda pytest --slow, and
SOAK_MINUTES=60 lets a run train for an hour, watching what it uses.
"""

import json
import os
import pathlib
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.numpy

from dpn import metrics
from dpn.trainers import loop
from dpn.trainers.conftest import tiny_config

ROOT = pathlib.Path(__file__).parent.parent
CONFIG = tiny_config(evals={}, deterministic=True)  # which matters on a GPU
RESULTS = ("metrics.jsonl", "params.safetensors")
# Trains in a process of its own; the environment says where, and the first
# argument holds Python that comes before.
PROGRAM = """
import json, os, signal, sys
import ml_collections
exec(sys.argv[1])
from dpn.trainers import cli, loop
config = ml_collections.ConfigDict(json.loads(os.environ["CONFIG"]))
try:
  loop.train(config, os.environ["WORKDIR"])
except cli.EXPECTED as e:
  sys.exit(str(e))
"""
DIE_IN_EXPORT = """
fsync = os.fsync
def die(descriptor):
  if "params.safetensors" in os.readlink(f"/proc/self/fd/{descriptor}"):
    os.kill(os.getpid(), signal.SIGKILL)
  fsync(descriptor)
os.fsync = die
"""
FULL_DISK = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
"""  # less than a checkpoint's largest file


@pytest.fixture(scope="module", name="reference")
def _reference(tmp_path_factory):
  """The folder of the undisturbed run, and the seconds that it took."""
  folder, begin = tmp_path_factory.mktemp("runs") / "reference", time.time()
  _finish(_start(folder))
  return folder, time.time() - begin


@pytest.fixture(name="run")
def _run(reference, tmp_path):
  """A copy of the reference as it was before it was marked as done."""
  run = shutil.copytree(reference[0], tmp_path / "run")
  (run / "done.json").unlink()
  return run


def _start(folder, before="", config=CONFIG, **kw):
  env = {"CONFIG": config.to_json(), "WORKDIR": str(folder)}
  return subprocess.Popen(
    [sys.executable, "-c", PROGRAM, before],
    cwd=ROOT,
    env=os.environ | env,
    text=True,
    **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **kw},
  )


def _finish(process, status=0):
  """Returns what a process printed, once it has ended with this status."""
  out, err = process.communicate(timeout=300)
  assert process.returncode == status, out + err
  return out + err


def _assert_same(folder, reference):
  for name in RESULTS:
    a, b = (path / name for path in (folder, reference[0]))
    assert a.read_bytes() == b.read_bytes(), name


def _checkpoints(folder):
  return sorted((folder / "checkpoints").glob("[0-9]"))


def _flip_a_bit(folder):
  [path] = (_checkpoints(folder)[-1] / "state" / "d").iterdir()
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


def _move_the_position(folder):
  path = _checkpoints(folder)[-1] / "_CHECKPOINT_METADATA"
  position = '"examples_seen": '
  path.write_text(path.read_text().replace(position, f"{position}1"))


def _zeros_in_the_log(folder):
  path = folder / "metrics.jsonl"
  first, rest = path.read_bytes().split(b"\n", 1)
  path.write_bytes(first + b"\n" + bytes(512) + b"\n[]\n" + rest)


def _damage_json(folder):
  for name in ("done.json", "environment.json"):
    (folder / name).write_text("[[")


DAMAGE = {
  _flip_a_bit: "is damaged, trying the one before",
  _move_the_position: "is damaged, trying the one before",
  _zeros_in_the_log: "2 damaged lines are now in",
  _damage_json: "It is set aside",
}


@pytest.mark.slow
@pytest.mark.parametrize(("damage", "said"), DAMAGE.items())
def test_damage_changes_no_bit(run, reference, caplog, damage, said):
  for _ in range(2):  # also when the same is damaged again
    caplog.clear()
    damage(run)
    loop.train(CONFIG, str(run))
    _assert_same(run, reference)
    assert said in caplog.text
    (run / "done.json").unlink()


@pytest.mark.slow
def test_without_a_whole_checkpoint_no_run_starts_over_unasked(run, reference):
  for path in _checkpoints(run):
    (path / "_CHECKPOINT_METADATA").unlink()
  for _ in range(2):
    with pytest.raises(OSError, match="to start over, delete this folder"):
      loop.train(CONFIG, str(run))
  shutil.rmtree(run / "checkpoints")
  loop.train(CONFIG, str(run))
  _assert_same(run, reference)


@pytest.mark.slow
def test_foreign_parameters(reference, tmp_path):
  """Beside a config of other types, and then with NaN."""
  arrays = safetensors.numpy.load_file(reference[0] / "params.safetensors")
  path = tmp_path / "params.safetensors"
  config = tiny_config(evals={}, model_init=str(tmp_path))
  for bad in ("[]", '{"model": [1], "input": {}}', "[" * 100_000):
    safetensors.numpy.save_file(arrays, path)  # without metadata
    (tmp_path / "config.json").write_text(bad)
    with pytest.raises(ValueError, match=r"config\.json"):
      loop.train(config, str(tmp_path / "run"))
  (tmp_path / "config.json").unlink()
  nan = {name: x * np.nan for name, x in arrays.items()}
  safetensors.numpy.save_file(nan, path)
  with pytest.raises(ValueError, match="holds NaN or infinity"):
    loop.train(config, str(tmp_path / "run"))


@pytest.mark.slow
def test_a_full_disk(tmp_path, reference):
  """The limit on a file's size stands for the disk's."""
  said = _finish(_start(tmp_path, FULL_DISK), status=1)
  assert "Cannot write a checkpoint" in said
  loop.train(CONFIG, str(tmp_path))
  _assert_same(tmp_path, reference)


@pytest.mark.slow
def test_sigkill_in_the_export(run, reference):
  (run / "params.safetensors").unlink()
  _finish(_start(run, DIE_IN_EXPORT), status=-signal.SIGKILL)
  assert not (run / "params.safetensors").exists()
  assert not (run / "done.json").exists()
  loop.train(CONFIG, str(run))
  _assert_same(run, reference)


@pytest.mark.slow
def test_sigterm_and_sigkill_at_any_moment(tmp_path, reference):
  """The second comes while a checkpoint is being written."""
  moments, unfinished = random.Random(0), "checkpoints/*orbax-checkpoint-tmp*"
  for i in range(3):
    process = _start(tmp_path)
    end = time.time() + moments.uniform(0.3, 1) * reference[1]
    saving = lambda: next(tmp_path.glob(unfinished), None)
    while process.poll() is None:
      if saving() if i == 1 else time.time() > end:
        break
      time.sleep(0.001)
    process.send_signal(signal.SIGTERM if i == 2 else signal.SIGKILL)
    process.communicate()
    if (tmp_path / "done.json").exists():
      _assert_same(tmp_path, reference)
      shutil.rmtree(tmp_path)
  loop.train(CONFIG, str(tmp_path))
  _assert_same(tmp_path, reference)


@pytest.mark.slow
def test_sigterm_again_and_again(tmp_path):
  ignore = "distributed.PreemptionHandler.after = signal.SIG_IGN"
  process = _start(tmp_path, f"from dpn.trainers import distributed\n{ignore}")
  while process.poll() is None:
    if (tmp_path / "metrics.jsonl").exists():
      process.send_signal(signal.SIGTERM)
    time.sleep(0.01)
  _finish(process)


def _used(pid):
  """Returns the resources that a process holds now."""
  folder = pathlib.Path("/proc", str(pid))
  pages = int((folder / "statm").read_text().split()[1])
  return {
    "memory_mb": pages * resource.getpagesize() / 2**20,
    "descriptors": len(os.listdir(folder / "fd")),
    "threads": len(os.listdir(folder / "task")),
  }


# From the second third of the time to the last.
MAY_GROW = {
  "memory_mb": lambda before: 0.02 * before + 10,
  "descriptors": lambda before: 2,
  "threads": lambda before: 2,
  "step_secs_p50": lambda before: 0.25 * before,
}


@pytest.mark.skipif("SOAK_MINUTES" not in os.environ, reason="takes long")
def test_a_long_run_uses_no_more_and_more(tmp_path):
  config = tiny_config(
    total_steps=10**6,
    ckpt_steps=7,
    **{"evals.test.log_steps": 11, "evals.fewshot.log_steps": 44},
  )
  minutes, samples = float(os.environ["SOAK_MINUTES"]), []
  # Nobody reads what it says: a pipe would fill up and block it.
  quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
  process = _start(tmp_path, config=config, **quiet)
  while not metrics.read(str(tmp_path / metrics.TIMING)):
    assert process.poll() is None
    time.sleep(0.1)
  begin = time.monotonic()
  while time.monotonic() < begin + 60 * minutes:
    assert process.poll() is None
    samples.append(_used(process.pid))
    time.sleep(minutes / 5)
  process.kill()
  process.wait()
  rows = metrics.read(str(tmp_path / metrics.TIMING))
  for found in (samples, [{"step_secs_p50": r["step_secs_p50"]} for r in rows]):
    third = len(found) // 3
    for name in found[0]:
      before, after = (
        statistics.median(sample[name] for sample in part)
        for part in (found[third : 2 * third], found[2 * third :])
      )
      print(json.dumps({name: [before, after]}))
      assert after <= before + MAY_GROW[name](before), name
