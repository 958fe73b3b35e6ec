"""Notices that the scheduler wants the machine back (SIGTERM)."""

import signal

import jax
from jax.experimental import multihost_utils


class Notice:
  """Between `with` and its end, SIGTERM asks instead of killing.

  In a run of many processes JAX listens, and agrees with the others on the step
  after which all of them stop.
  """

  def __init__(self):
    self._came = False

  def __enter__(self):
    if jax.process_count() == 1:
      self._before = signal.signal(signal.SIGTERM, self._note)
    return self

  def __exit__(self, *unused):
    if jax.process_count() == 1:
      signal.signal(signal.SIGTERM, self._before)

  def _note(self, *unused):
    self._came = True

  def stop_after(self, step: int) -> bool:
    """Returns whether this step should be the last; to be asked every step."""
    if jax.process_count() == 1:
      return self._came
    return multihost_utils.reached_preemption_sync_point(step)
