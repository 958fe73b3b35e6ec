"""Notices that the scheduler wants the machine back (SIGTERM)."""

import contextlib
import signal

import jax
from jax.experimental import multihost_utils


class Preempted(BaseException):  # no `except Exception` may swallow it
  """SIGTERM came where it may interrupt."""


class Notice:
  """Between `with` and its end, SIGTERM asks instead of killing.

  In a run of many processes JAX listens, and agrees with the others on the step
  after which all of them stop.
  """

  def __init__(self):
    self._came = self._may_interrupt = False

  def __enter__(self):
    if jax.process_count() == 1:
      self._before = signal.signal(signal.SIGTERM, self._note)
    return self

  def __exit__(self, *unused):
    if jax.process_count() == 1:
      signal.signal(signal.SIGTERM, self._before)

  def _note(self, *unused):
    self._came = True
    if self._may_interrupt:
      raise Preempted

  @contextlib.contextmanager
  def interrupts(self):
    """Lets SIGTERM end what happens inside at once, by Preempted.

    In a run of many processes it does not: the others would wait.
    """
    self._may_interrupt = jax.process_count() == 1
    try:
      if self._came and self._may_interrupt:
        raise Preempted
      yield
    finally:
      self._may_interrupt = False

  def stop_after(self, step: int) -> bool:
    """Returns whether this step should be the last; to be asked every step."""
    if jax.process_count() == 1:
      return self._came
    return multihost_utils.reached_preemption_sync_point(step)
