"""How a process gets memory from Linux."""

import os
import sys

TUNABLES = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb"


def use_huge_pages():
  """Starts this program anew with huge pages, unless it has been told already.

  Image decoders take memory for each image anew, and XLA's CPU back end for
  each step. In pages of 4 KB Linux spends a fifth of the input's time on that,
  and an eighth of a ViT's step. glibc reads the setting only when a process
  starts; set to 0 in the environment it stays off. Does nothing without glibc.
  """
  tunables = os.environ.get(TUNABLES, "")
  if HUGE_PAGES in tunables or not _has_glibc():
    return
  os.environ[TUNABLES] = ":".join(filter(None, [tunables, f"{HUGE_PAGES}=1"]))
  os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _has_glibc():
  try:
    return os.confstr("CS_GNU_LIBC_VERSION").startswith("glibc")
  except (AttributeError, OSError, ValueError):  # Windows, macOS, musl
    return False
