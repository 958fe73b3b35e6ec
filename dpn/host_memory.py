"""How a process gets memory from Linux."""

import glob
import os
import sys

TUNABLES = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb"
# Device files of AMD's and NVIDIA's GPUs and of TPUs.
ACCELERATORS = ("/dev/kfd", "/dev/nvidia[0-9]*", "/dev/accel*", "/dev/vfio/*")


def use_huge_pages():
  """Starts this program anew with huge pages, unless it has been told already.

  XLA's CPU back end takes memory for each step anew. In pages of 4 KB Linux
  spends an eighth of a ViT's step on that. glibc reads the setting only when a
  process starts; set to 0 in the environment it stays off. Does nothing
  without glibc, or with an accelerator, where host memory does not matter so.
  """
  tunables = os.environ.get(TUNABLES, "")
  if HUGE_PAGES in tunables or not _has_glibc():
    return
  if any(map(glob.glob, ACCELERATORS)):
    return
  os.environ[TUNABLES] = ":".join(filter(None, [tunables, f"{HUGE_PAGES}=1"]))
  os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _has_glibc():
  try:
    return os.confstr("CS_GNU_LIBC_VERSION").startswith("glibc")
  except (AttributeError, OSError, ValueError):  # Windows, macOS, musl
    return False
