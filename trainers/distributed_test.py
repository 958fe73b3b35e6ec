"""Who is recognized as part of a cluster, and what is refused."""

import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import types

import pytest

from dpn.trainers import distributed

ROOT = pathlib.Path(__file__).parents[1]
SLURM = {
  **{"SLURM_PROCID": "3", "SLURM_STEP_NODELIST": "gpu[01-04]"},
  **{"SLURM_NTASKS": "32", "SLURM_STEP_NUM_TASKS": "8"},
  "SLURM_STEP_NUM_NODES": "4",
}
MPI = {"OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
MPI_4 = MPI | {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911"}
TIMEOUTS = {  # of join(timeout_secs=7)
  "initialization_timeout": 9,
  "heartbeat_timeout_seconds": 30,
  "shutdown_timeout_seconds": 30,
}
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1"}


@pytest.fixture(name="calls", autouse=True)
def _calls(monkeypatch):
  """Returns what jax.distributed.initialize was given; nothing is started."""
  calls = []
  monkeypatch.setattr(
    distributed.jax.distributed, "initialize", lambda **kw: calls.append(kw)
  )
  for name in SLURM | MPI_4 | POD:
    monkeypatch.delenv(name, raising=False)
  return calls


def _set(monkeypatch, env):
  for name, value in env.items():
    monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
  ("env", "expected"),
  [
    ({}, None),
    ({"SLURM_PROCID": "0"}, None),  # an allocation without a step
    (SLURM, (8, 4)),
    (MPI, (6, 3)),
    (MPI | SLURM, (6, 3)),  # what mpirun starts in a job of Slurm
    ({"OMPI_COMM_WORLD_SIZE": "2"}, (2, 1)),
  ],
)
def test_detection(env, expected):
  assert distributed.scheduled(env) == expected


@pytest.fixture(name="no_cluster")
def _no_cluster(monkeypatch):
  """Lets JAX find no cluster."""

  def initialize(**kw):
    raise ValueError("coordinator_address should be defined.")

  monkeypatch.setattr(distributed.jax.distributed, "initialize", initialize)


@pytest.mark.parametrize(
  "env",
  [
    {},
    {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
    POD | {"JOB_COMPLETION_INDEX": "0"},  # perhaps of one
    {"OMPI_COMM_WORLD_SIZE": "1"},
  ],
)
@pytest.mark.usefixtures("no_cluster")
def test_alone(monkeypatch, env):
  _set(monkeypatch, env)
  distributed.join()


@pytest.mark.parametrize(
  ("env", "message"),
  [
    (SLURM, "Slurm started this process as one of 8, but JAX did not"),
    (SLURM | {"SLURM_STEP_NUM_TASKS": "4"}, "one of 4, but"),  # one per node
    (POD, "this pod is number 1 of an indexed Job, but JAX did not"),
  ],
)
@pytest.mark.usefixtures("no_cluster")
def test_not_alone(monkeypatch, env, message):
  _set(monkeypatch, env)
  with pytest.raises(ValueError, match=message):
    distributed.join()


@pytest.mark.parametrize(
  "env", [MPI, MPI | SLURM, MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}]
)
def test_open_mpi_5(monkeypatch, calls, env):
  _set(monkeypatch, env)
  with pytest.raises(ValueError, match="started this process as one of 6") as e:
    distributed.join()
  command = shlex.split(str(e.value).splitlines()[1])
  assert command[:4] == ["mpirun", "…", "bash", "-c"]
  shown = command[4].replace("python -m trainers.train …", "printenv; echo")
  done = subprocess.run(
    ["bash", "-c", shown],
    env={"OMPI_COMM_WORLD_RANK": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"} | env,
    capture_output=True,
    text=True,
    check=True,
  )
  assert "JAX_LOCAL_DEVICE_IDS=1\n" in done.stdout
  flags = "--coordinator HOST:8476 --num_processes 6 --process_id 4\n"
  assert done.stdout.endswith(flags)
  distributed.join("node0:8476", 6, 4)
  assert [call["process_id"] for call in calls] == [4]


ALL_GPUS = {"local_device_ids": []}  # of a node


@pytest.mark.parametrize(
  ("env", "expected"),
  [
    (MPI_4, [TIMEOUTS]),
    (SLURM, [TIMEOUTS]),
    (SLURM | {"SLURM_STEP_NUM_TASKS": "4"}, [TIMEOUTS | ALL_GPUS]),
    (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, []),
  ],
)
def test_what_jax_is_told_under_a_scheduler(monkeypatch, calls, env, expected):
  _set(monkeypatch, env)
  distributed.join(timeout_secs=7)
  assert calls == expected


def test_flags(calls):
  distributed.join("localhost:1234", 2, 1)
  assert calls[0]["coordinator_address"] == "localhost:1234"
  assert (calls[0]["num_processes"], calls[0]["process_id"]) == (2, 1)
  distributed.join("localhost:1234", 1, 0)
  assert len(calls) == 1


@pytest.mark.parametrize(
  ("args", "message"),
  [
    (("h:1", None, None), "go together, got h:1, None and None"),
    ((None, 2, 0), "go together"),
    (("h", 2, 0), "--coordinator=h: expected host:port"),
    (("h:x", 2, 0), "expected host:port"),
    (("h:1", 2, 2), r"--process_id=2 must lie in \[0, 2\)"),
  ],
)
def test_refused_flags(args, message):
  with pytest.raises(ValueError, match=message):
    distributed.join(*args)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.1.1"])
def test_a_loopback_coordinator_of_many_nodes(monkeypatch, host):
  _set(monkeypatch, SLURM)
  with pytest.raises(ValueError, match="started this run on 4 nodes"):
    distributed.join(f"{host}:1234", 8, 3)


def test_a_port_that_is_taken():
  with socket.socket() as s:
    s.bind(("0.0.0.0", 0))
    s.listen()
    address = f"localhost:{s.getsockname()[1]}"
    script = (
      "from dpn.trainers import distributed; "
      f"distributed.join({address!r}, 2, 0, timeout_secs=20)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 1
  said = f"OSError: process 0 cannot listen at {address}: another program may"
  assert said in done.stderr


def test_unequal_numbers_of_devices(monkeypatch):
  devices = [types.SimpleNamespace(process_index=i) for i in (0, 0, 1)]
  monkeypatch.setattr(distributed.jax, "devices", lambda: devices)
  with pytest.raises(ValueError, match=r"unequal .*: \{0: 2, 1: 1\}\. Check"):
    distributed.join("localhost:1234", 2, 1)


def test_a_signal_before_an_evaluation_of_many_processes(monkeypatch):
  calls = []
  reached = lambda number: calls.append(number) or len(calls) == 2
  name = "reached_preemption_sync_point"
  monkeypatch.setattr(distributed.multihost_utils, name, reached)
  monkeypatch.setattr(distributed.jax, "process_count", lambda: 2)
  handler = distributed.PreemptionHandler()
  assert not handler.should_stop()
  with pytest.raises(distributed.Preempted), handler.interruptible():
    raise AssertionError("evaluated")
  assert handler.should_stop()  # JAX says so only once
  assert calls == [calls[0], calls[0] + 1]


def test_a_second_ctrl_c_ends_at_once():
  code = """
import signal, time
from dpn.trainers import distributed
signal.signal(signal.SIGINT, signal.default_int_handler)
with distributed.PreemptionHandler():
  print("ready", flush=True)
  time.sleep(600)  # which a handled signal does not end
"""
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
  command = [sys.executable, "-c", code]
  process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
  assert process.stdout.readline() == "ready\n"
  process.send_signal(signal.SIGINT)
  said = [process.stderr.readline() for _ in range(2)]
  assert said == ["\n", f"{distributed.STOPPING}\n"]
  process.send_signal(signal.SIGINT)
  _, rest = process.communicate()
  assert process.returncode == 130
  assert rest == f"Error: {distributed.AT_ONCE}\n"
