"""Images from files to devices; see `pipeline`."""

import contextlib
import ctypes
import os

# OpenCV reads these when it is imported. A damaged header must not make it take
# gigabytes; and what it has to say about damage, our errors say.
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(2**27))
os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")

# Images come and go, each larger than what the C library keeps by default: it
# would return their memory to the system, and ask for it again, every time.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
with contextlib.suppress(AttributeError, OSError):  # Other C libraries.
  _mallopt = ctypes.CDLL(None).mallopt
  _mallopt(_M_TRIM_THRESHOLD, -1)  # Never; as in dpn.host_memory.
  _mallopt(_M_MMAP_THRESHOLD, 2**25)
