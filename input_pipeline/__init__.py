"""Images from files to devices; see `pipeline` and `loader`."""

import os

# OpenCV reads these when it is imported. The limit stops a damaged header from
# making it allocate gigabytes. OpenCV's log is off: our errors report damage.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(2**27))
os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")


def num_cores() -> int:
  """Returns how many cores this process may use."""
  if hasattr(os, "sched_getaffinity"):  # Linux
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
