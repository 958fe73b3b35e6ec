"""Connects the processes of a run, and stops them together (SIGTERM).

The only place that starts JAX's cluster. Slurm, Open MPI, Cloud TPU and
Kubernetes are recognized by JAX; elsewhere three flags of trainers.train say
who is who. A process on its own needs nothing.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Mapping

import jax
from jax.experimental import multihost_utils

from dpn import processes
from dpn.trainers import watchdog

ALONE = (
  "the processes of this run did not find each other within {} s. Check that "
  "all were started, with the same coordinator, and that its port is open from "
  "the other machines; --init_timeout_secs gives them longer."
)


def scheduled(env: Mapping[str, str]) -> tuple[int, int] | None:
  """Returns how many (processes, nodes) Slurm or Open MPI started, if any."""
  if {"SLURM_PROCID", "SLURM_STEP_NODELIST"} <= env.keys():
    tasks = int(env.get("SLURM_STEP_NUM_TASKS") or env["SLURM_NTASKS"])
    return tasks, int(env.get("SLURM_STEP_NUM_NODES", 1))
  if "OMPI_COMM_WORLD_SIZE" in env:
    tasks = int(env["OMPI_COMM_WORLD_SIZE"])
    per_node = int(env.get("OMPI_COMM_WORLD_LOCAL_SIZE", tasks))
    return tasks, -(-tasks // per_node)
  return None


def join(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  *,
  timeout_secs: int = 300,
):
  """Connects this process with the others of its run; alone, does nothing.

  Must come before anything that touches a device. When the others do not come
  in time, the process ends with a message. Process 0 listens at `coordinator`,
  "host:port"; without the three arguments JAX asks the scheduler.
  """
  tasks, nodes = scheduled(os.environ) or (None, 1)
  kw = {}
  if (coordinator, num_processes, process_id) != (None, None, None):
    _check(coordinator, num_processes, process_id, nodes)
    if process_id == 0:
      _check_port(coordinator)
    kw = {
      "coordinator_address": coordinator,
      "num_processes": num_processes,
      "process_id": process_id,
      "cluster_detection_method": "deactivate",
    }
  if (num_processes or tasks) == 1:
    return
  if tasks == nodes:
    # JAX gives each process one GPU under these schedulers, which is wrong
    # when there is one process per node: it should have all of them.
    kw["local_device_ids"] = []
  # JAX would abort with a stack trace; this says why, and comes first.
  alarm = threading.Timer(
    timeout_secs, watchdog.leave, [ALONE.format(timeout_secs)]
  )
  alarm.daemon = True
  alarm.start()
  try:
    jax.distributed.initialize(**kw, initialization_timeout=timeout_secs + 10)
  except ValueError as e:
    # JAX's answer to "no cluster that I know": this process is alone.
    if kw or "coordinator_address" not in str(e):
      raise
  finally:
    alarm.cancel()
  if processes.store():
    watchdog.Watchdog()


def _check_port(coordinator):
  """Raises OSError where JAX would crash: somebody else has the port."""
  try:
    socket.create_server(("", int(coordinator.rpartition(":")[2]))).close()
  except OSError as e:
    raise OSError(
      f"process 0 cannot listen at {coordinator}: another program may have the "
      "port, perhaps a run of before. Give --coordinator another."
    ) from e


def _check(coordinator, num_processes, process_id, nodes):
  """Raises ValueError unless the flags describe a cluster."""
  if None in (coordinator, num_processes, process_id):
    raise ValueError(
      "--coordinator, --num_processes and --process_id go together, got "
      f"{coordinator}, {num_processes} and {process_id}. Give all three, or "
      "none to let the scheduler say."
    )
  host, _, port = coordinator.rpartition(":")
  if not (host and port.isdigit()):
    raise ValueError(
      f"--coordinator={coordinator}: expected host:port, e.g. node0:8476."
    )
  if not 0 <= process_id < num_processes:
    raise ValueError(
      f"--process_id={process_id} must lie in [0, {num_processes}), as "
      f"--num_processes={num_processes}."
    )
  if nodes > 1 and (host == "localhost" or host.startswith("127.")):
    raise ValueError(
      f"--coordinator={coordinator} is seen by its own machine only, and the "
      f"scheduler started this run on {nodes} nodes. Give an address for all."
    )


class Preempted(BaseException):  # no `except Exception` may swallow it
  """SIGTERM came where it may interrupt."""


class PreemptionHandler:
  """Context manager that turns SIGTERM into a request to stop.

  In a run of many processes JAX listens, and agrees with the others on the step
  after which all of them stop.
  """

  def __init__(self):
    self._requested = self._may_interrupt = False
    self._alone = jax.process_count() == 1

  def __enter__(self):
    if self._alone:
      self._before = signal.signal(signal.SIGTERM, self._on_signal)
    return self

  def __exit__(self, *unused):
    if self._alone:
      signal.signal(signal.SIGTERM, self._before)

  def _on_signal(self, *unused):
    self._requested = True
    if self._may_interrupt:
      raise Preempted

  @contextlib.contextmanager
  def interruptible(self):
    """Lets SIGTERM end what happens inside at once, by raising Preempted.

    In a run of many processes it does not: the others would wait.
    """
    self._may_interrupt = self._alone
    try:
      if self._requested and self._may_interrupt:
        raise Preempted
      yield
    finally:
      self._may_interrupt = False

  def should_stop(self, step: int) -> bool:
    """Returns whether to stop after `step`; call it after every step."""
    if self._alone:
      return self._requested
    return multihost_utils.reached_preemption_sync_point(step)
