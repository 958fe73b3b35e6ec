"""Connects the processes of a run, and stops them together (SIGTERM, Ctrl-C).

Nothing else starts JAX's cluster. JAX recognizes Slurm, Open MPI 4 and earlier,
Cloud TPU and, with its Python package, Kubernetes; elsewhere three flags of
trainers.train say who is who. A process on its own needs none. When one process
dies, JAX's heartbeats end the others.
"""

import collections
import contextlib
import itertools
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

# How long JAX waits for another process's heartbeat, and for the others once
# this one has ended: a process that fails takes them along.
HEARTBEAT_SECS = 30
SHUTDOWN_SECS = 30
ALONE = (
  "Error: the processes of this run did not find each other within {} s. Check "
  "that all were started, with the same coordinator, and that its port is open "
  "from the other machines; --init_timeout_secs gives them longer."
)

FLAGS = "--coordinator, --num_processes and --process_id"
OPEN_MPI = (
  "Open MPI started this process as one of {}, and from version 5 on does not "
  f"say where process 0 is. {FLAGS} do, where HOST is the machine of rank 0:\n"
  "  mpirun … bash -c 'JAX_LOCAL_DEVICE_IDS=$OMPI_COMM_WORLD_LOCAL_RANK "
  "python -m trainers.train … --coordinator HOST:8476 "
  "--num_processes $OMPI_COMM_WORLD_SIZE --process_id $OMPI_COMM_WORLD_RANK'"
)
SLURM = (
  "Slurm started this process as one of {}, but JAX did not find the others. "
  "It needs what srun sets, such as SLURM_JOB_ID and SLURM_LOCALID; or tell "
  f"each process who it is, with {FLAGS}."
)
KUBERNETES = (
  "this pod is number {} of an indexed Job, but JAX did not find the others. "
  "It needs Kubernetes' package (pip install 'jax[k8s]') and the right to read "
  f"pods and jobs; or tell each pod which it is, with {FLAGS}. If each trains "
  "a run of its own: "
  "--coordinator localhost:8476 --num_processes 1 --process_id 0."
)

STOPPING = (
  "Ctrl-C: stops after this step and saves. Again, it ends at once, unsaved."
)
AT_ONCE = (
  "ended by a second Ctrl-C, unsaved. The same command resumes from the last "
  "checkpoint."
)
INTERRUPTED = 128 + signal.SIGINT  # exit status, as shells have it


def scheduled(env: Mapping[str, str]) -> tuple[int, int] | None:
  """Returns how many (processes, nodes) Slurm or Open MPI started, if any."""
  # Open MPI first, as in JAX: in a Slurm job, mpirun starts one task per node,
  # and its own processes inherit that task's variables.
  if "OMPI_COMM_WORLD_SIZE" in env:
    tasks = int(env["OMPI_COMM_WORLD_SIZE"])
    per_node = int(env.get("OMPI_COMM_WORLD_LOCAL_SIZE", tasks))
    return tasks, -(-tasks // per_node)
  if {"SLURM_PROCID", "SLURM_STEP_NODELIST"} <= env.keys():
    tasks = int(env.get("SLURM_STEP_NUM_TASKS") or env["SLURM_NTASKS"])
    return tasks, int(env.get("SLURM_STEP_NUM_NODES", 1))
  return None


def join(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  *,
  timeout_secs: int = 300,
):
  """Connects this process with the others of its run; alone, does nothing.

  Must come before anything that touches a device. If the others do not come in
  time, JAX ends the process, after a message. Process 0 listens at
  `coordinator`, "host:port"; without the three arguments JAX asks the
  scheduler.
  """
  tasks, nodes = scheduled(os.environ) or (None, 1)
  kw: dict[str, Any] = {}
  if (coordinator, num_processes, process_id) != (None, None, None):
    _check(coordinator, num_processes, process_id, nodes)
    if process_id == 0 and num_processes != 1:
      _check_port(coordinator)
    kw = {
      "coordinator_address": coordinator,
      "num_processes": num_processes,
      "process_id": process_id,
      "cluster_detection_method": "deactivate",
    }
  elif tasks != 1:
    _check_open_mpi(os.environ)
  if (num_processes or tasks) == 1:
    return
  if tasks == nodes:
    # JAX gives each process one GPU under these schedulers, which is wrong
    # when there is one process per node: it should have all of them.
    kw["local_device_ids"] = []
  # JAX aborts with a stack trace when time is up; this says why, just before.
  said = {"file": sys.stderr, "flush": True}
  alarm = threading.Timer(
    timeout_secs, print, [ALONE.format(timeout_secs)], said
  )
  alarm.daemon = True
  alarm.start()
  try:
    jax.distributed.initialize(
      **kw,
      initialization_timeout=timeout_secs + 2,
      heartbeat_timeout_seconds=HEARTBEAT_SECS,
      shutdown_timeout_seconds=SHUTDOWN_SECS,
    )
  except ValueError as e:
    # JAX raises this if it recognizes no cluster: this process is alone.
    if num_processes or "coordinator_address" not in str(e):
      raise
    _check_alone(os.environ)
  finally:
    alarm.cancel()
  if jax.process_count() == 1:  # JAX may listen for SIGTERM, and nobody asks it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
  counts = collections.Counter(d.process_index for d in jax.devices())
  if len({*counts.values()}) > 1:  # not even `processes.agree` would work
    raise ValueError(
      f"Processes have unequal numbers of devices: {dict(counts)}. Check "
      "CUDA_VISIBLE_DEVICES, and the driver where there are fewer."
    )


def wait_for_others(what: str):
  """Waits until all processes are here; alone, does nothing.

  JAX takes a process that ends much later than another for dead.
  """
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(what)


def _check_open_mpi(env):
  """Raises ValueError if Open MPI started others that JAX would not find.

  JAX looks for the variable that held mpirun's address until version 4. Without
  it, JAX may take this process for one of Slurm's.
  """
  if "OMPI_COMM_WORLD_SIZE" in env and "OMPI_MCA_orte_hnp_uri" not in env:
    raise ValueError(OPEN_MPI.format(env["OMPI_COMM_WORLD_SIZE"]))


def _check_alone(env):
  """Raises ValueError if there are others, although JAX found no cluster."""
  if started := scheduled(env):
    raise ValueError(SLURM.format(started[0]))
  # Pod 0 may be the only one: its environment does not say how many.
  pod = int(env.get("JOB_COMPLETION_INDEX", 0))
  if pod and "KUBERNETES_SERVICE_HOST" in env:
    raise ValueError(KUBERNETES.format(pod))


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
  """Raised when a signal to stop arrives where it may interrupt."""


_CALLS = itertools.count(1)  # of `should_stop`, in this process


class PreemptionHandler:
  """Context manager that turns SIGTERM and Ctrl-C into a request to stop.

  A second Ctrl-C ends the process at once, even while it compiles: a thread
  listens for it, because Python's own handlers wait for C++ to return.

  In a run of many processes JAX listens for SIGTERM, and agrees with the others
  on the step after which all of them stop; Ctrl-C counts as SIGTERM.
  """

  after: Any = None  # handles further signals where the process ends by itself

  def __init__(self):
    self._requested = self._may_interrupt = self._by_hand = False
    self._alone = jax.process_count() == 1

  def __enter__(self):
    signals = [signal.SIGTERM] * self._alone
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # `command &`
      signals.append(signal.SIGINT)
    self._before = {s: signal.signal(s, self._on_signal) for s in signals}
    self._heard, self._wakeup = socket.socketpair()
    self._wakeup.setblocking(False)
    self._fd_before = signal.set_wakeup_fd(self._wakeup.fileno())
    self._thread = threading.Thread(target=self._listen, daemon=True)
    self._thread.start()
    return self

  def __exit__(self, *unused):
    signal.set_wakeup_fd(self._fd_before)
    self._wakeup.close()
    self._thread.join()
    self._heard.close()
    after = self.after if self._requested else None
    for number, handler in self._before.items():
      signal.signal(number, after or handler)

  def _listen(self):
    """Answers Ctrl-C at once: the first with a message, the second by exit."""
    presses = 0
    while heard := self._heard.recv(1):
      presses += heard[0] == signal.SIGINT
      if presses > 1:
        os.write(2, f"Error: {AT_ONCE}\n".encode())
        os._exit(INTERRUPTED)  # an orderly exit would wait for the main thread
      if heard[0] == signal.SIGINT:
        os.write(2, f"\n{STOPPING}\n".encode())

  def _on_signal(self, number, unused_frame):
    self._by_hand |= number == signal.SIGINT
    if not self._alone:
      os.kill(os.getpid(), signal.SIGTERM)
      return
    self._requested = True
    if self._may_interrupt:
      raise Preempted

  @contextlib.contextmanager
  def interruptible(self):
    """Lets a signal end the body at once, by raising Preempted.

    In a run of many processes only one that came before does, in all of them.
    """
    self._may_interrupt = self._alone
    try:
      if self._requested if self._alone else self.should_stop():
        raise Preempted
      yield
    finally:
      self._may_interrupt = False

  def should_stop(self) -> bool:
    """Returns whether to stop now; call it after every step.

    Calls are counted, not steps. JAX lets all processes stop at the number
    after the last one it has heard of: at 1, until the first call. It says so
    at that number only.
    """
    if not (self._alone or self._requested):
      reached = multihost_utils.reached_preemption_sync_point
      self._requested = reached(next(_CALLS))
    return self._requested

  def report(self, saved: str) -> str:
    """Returns the message of a stopped run, given what it saved ("": nothing).

    After Ctrl-C in any process of the run, it raises KeyboardInterrupt with
    that text in all: they must end alike, or they would wait for each other.
    """
    text = f"saved {saved}. The same command resumes from there."
    text = text if saved else "no step is done. The same command begins anew."
    by_hand = self._by_hand
    if not self._alone:
      by_hand = multihost_utils.process_allgather(np.bool_(by_hand)).any()
    if by_hand:
      raise KeyboardInterrupt(f"Ctrl-C: {text}")
    return f"Asked to stop (SIGTERM), and {text}"
