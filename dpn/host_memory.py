"""How a process gets memory from the C library, and how much it took."""

import contextlib
import ctypes
import sys

LEAST_BYTES = 3 * 2**30  # of address space, little of which is used
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # as in malloc.h


def keep_images():
  """Keeps freed memory, in pieces of up to 32 MB, for the next allocation.

  By default the C library returns an image's memory to the system every time.
  """
  _set(_TRIM_THRESHOLD, -1)  # Never.
  _set(_MMAP_THRESHOLD, 2**25)


def keep_between_steps():
  """Lets steps on CPUs reuse earlier steps' memory; call it before the first.

  XLA's CPU back end allocates a step's temporary arrays anew each time, and
  Linux clears every page it gives out: a quarter of the time of a ViT's step.
  With this the C library (glibc) never returns freed memory. Only the main
  thread may hold much, so it also runs the steps. With accelerators, which have
  memory of their own, only small computations on the CPU run differently.
  """
  import jax  # which the processes that read images do not need

  jax.config.update("jax_cpu_enable_async_dispatch", False)
  if jax.default_backend() == "cpu":
    _set(_TRIM_THRESHOLD, -1)
    _set(_MMAP_MAX, 0)


def check_limit():
  """Raises ValueError under a `ulimit -v` with which JAX aborts."""
  with contextlib.suppress(ImportError):
    import resource  # which Windows lacks

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= limit < LEAST_BYTES:
      raise ValueError(
        f"This process may address {limit / 2**30:.1f} GiB of memory, of which "
        "JAX alone takes 3. Raise that limit: ulimit -v unlimited."
      )


def peak_bytes() -> int:
  """Returns the most memory that this process has used so far."""
  import resource  # which Windows lacks

  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  return peak if sys.platform == "darwin" else peak * 1024


def _set(option, value):
  # Other C libraries have no mallopt; Windows has no library of name None.
  with contextlib.suppress(AttributeError, OSError, TypeError):
    ctypes.CDLL(None).mallopt(option, value)
