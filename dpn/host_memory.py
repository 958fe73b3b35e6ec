"""How a process gets memory from the C library."""

import contextlib
import ctypes

import jax

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def keep_between_steps():
  """Lets steps on CPUs reuse the memory of those before; call it before any.

  XLA's CPU back end takes a step's temporary arrays anew each time, and Linux
  clears every page it gives out: a quarter of the time of a ViT's step. With
  this the C library (glibc) never returns what is freed. Only the main thread
  may hold much, so it also runs the steps. Accelerators have memory of their
  own; then nothing changes but how small computations on the CPU are run.
  """
  jax.config.update("jax_cpu_enable_async_dispatch", False)
  if jax.default_backend() == "cpu":
    with contextlib.suppress(AttributeError, OSError):  # Other C libraries.
      mallopt = ctypes.CDLL(None).mallopt
      mallopt(_M_MMAP_MAX, 0)
      mallopt(_M_TRIM_THRESHOLD, -1)  # Never.
