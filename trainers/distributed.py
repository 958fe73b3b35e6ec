"""Makes the processes of a run one: the only place that starts JAX's cluster.

Slurm, Open MPI, Cloud TPU and Kubernetes are recognized; elsewhere the three
flags of trainers.train say who is who. A process on its own needs nothing.
"""

import ipaddress
import os
import socket
import sys
import threading
from collections.abc import Mapping
from typing import NamedTuple

import jax

# Beyond it a silent process counts as dead, and the others end.
SILENCE_SECS = 60


class Launch(NamedTuple):
  """What a scheduler says of the processes that it started together."""

  scheduler: str
  processes: int
  nodes: int


def detect(env: Mapping[str, str]) -> Launch | None:
  """Returns what Slurm or Open MPI say in the environment, if they do."""
  if "SLURM_PROCID" in env and "SLURM_STEP_NODELIST" in env:
    processes = int(env.get("SLURM_STEP_NUM_TASKS") or env["SLURM_NTASKS"])
    return Launch("Slurm", processes, int(env.get("SLURM_STEP_NUM_NODES", 1)))
  if "OMPI_COMM_WORLD_SIZE" in env:
    processes = int(env["OMPI_COMM_WORLD_SIZE"])
    per_node = int(env.get("OMPI_COMM_WORLD_LOCAL_SIZE", processes))
    return Launch("Open MPI", processes, -(-processes // per_node))
  return None


def join(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  *,
  timeout_secs: int = 300,
):
  """Connects this process with the others of its run; alone, does nothing.

  Must come before anything that touches a device.

  Args:
    coordinator: "host:port" at which process 0 listens; None lets the scheduler
      say.
    num_processes: how many there are; goes with `coordinator`.
    process_id: which of them this is; goes with `coordinator`.
    timeout_secs: how long to wait for the others.

  Raises:
    ValueError: the arguments do not fit together.

  When the others do not come in time, the process ends with a message.
  """
  launch = detect(os.environ)
  kw = _arguments(coordinator, num_processes, process_id, launch)
  if kw is None:
    return
  # JAX would abort with a stack trace; this says why, and comes first.
  alarm = threading.Timer(timeout_secs, _give_up, (coordinator, timeout_secs))
  alarm.daemon = True
  alarm.start()
  try:
    jax.distributed.initialize(
      **kw,
      initialization_timeout=timeout_secs + 10,
      heartbeat_timeout_seconds=SILENCE_SECS,
    )
  except ValueError as e:
    # JAX's answer to "no cluster that I know": this process is alone.
    if kw or "coordinator_address" not in str(e):
      raise
  finally:
    alarm.cancel()


def _arguments(coordinator, num_processes, process_id, launch):
  """Returns what to tell jax.distributed; None when there is nobody else."""
  kw = {}
  if (coordinator, num_processes, process_id) != (None, None, None):
    _check(coordinator, num_processes, process_id, launch)
    if num_processes == 1:
      return None
    kw = {
      "coordinator_address": coordinator,
      "num_processes": num_processes,
      "process_id": process_id,
      "cluster_detection_method": "deactivate",
    }
  elif launch and launch.processes == 1:
    return None
  if launch and launch.processes == launch.nodes:
    # JAX gives each process one GPU under these schedulers, which is wrong
    # when there is one process per node: it should have all of them.
    kw["local_device_ids"] = []
  return kw


def _check(coordinator, num_processes, process_id, launch):
  """Raises ValueError unless the flags describe a cluster."""
  if None in (coordinator, num_processes, process_id):
    raise ValueError(
      "--coordinator, --num_processes and --process_id go together, got "
      f"{coordinator}, {num_processes} and {process_id}. Give all three, or "
      "none to let the scheduler say."
    )
  host, _, port = coordinator.rpartition(":")
  if not host or not port.isdigit():
    raise ValueError(
      f"--coordinator={coordinator}: expected host:port, e.g. node0:8476."
    )
  if not 0 <= process_id < num_processes:
    raise ValueError(
      f"--process_id={process_id} must lie in [0, {num_processes}), as "
      f"--num_processes={num_processes}."
    )
  nodes = launch.nodes if launch else 1
  if nodes > 1 and is_loopback(host):
    raise ValueError(
      f"--coordinator={coordinator} is reached from its own machine alone, and "
      f"{launch.scheduler} started this run on {nodes} nodes. Give the address "
      "at which the others see process 0."
    )


def is_loopback(host: str) -> bool:
  """Returns whether `host`, a name or an address, stands for this machine."""
  try:
    addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
  except OSError:
    return False  # unknown here; whoever connects will say so
  return any(ipaddress.ip_address(a).is_loopback for a in addresses)


def _give_up(coordinator, timeout_secs):
  """Ends the process: the others did not come."""
  hint = ""
  if coordinator and is_loopback(coordinator.rpartition(":")[0]):
    hint = (
      f" {coordinator} is a loopback address: it cannot connect processes on "
      "different machines."
    )
  leave(
    f"the processes of this run did not find each other within {timeout_secs} "
    f"s.{hint} Check that all were started, with the same coordinator, and "
    "that its port is open; --init_timeout_secs gives them longer."
  )


def leave(message: str):
  """Ends this process at once, with a message.

  Without waiting for the others, as leaving in order would: they notice that
  this one is gone and end as well.
  """
  print(f"Error: {message}", file=sys.stderr, flush=True)
  sys.stdout.flush()
  os._exit(1)
