"""Parts of JPEGs, decoded without the rest, where nvImageCodec is installed.

Its back end for CPUs (the extra `fast`; no GPU is needed) wraps the library
that OpenCV's decoder wraps as well, and skips what lies outside. It is set to
interpolate colour as OpenCV does: the pixels are the same.
"""

import functools
import importlib
import os
import threading
from collections.abc import Callable

import numpy as np

from input_pipeline.pp import lazy_image

_START, _END = b"\xff\xd8\xff", b"\xff\xd9"
_MAX_PIXELS = 2**27  # As for OpenCV, see input_pipeline/__init__.py.


def open_lazily(
  data: bytes, decode: Callable[[bytes], np.ndarray]
) -> lazy_image.LazyImage | None:
  """Returns a JPEG of which the part that is needed will be decoded, or None.

  None means that `data` is for OpenCV to decode: because nvImageCodec is not
  installed, or because this is no JPEG, one with four colours, or one without
  an end, which OpenCV may find to be damaged.

  Args:
    data: the file.
    decode: what decodes all of it, where that is needed or a part is damaged.
  """
  if not (isinstance(data, bytes) and data.startswith(_START)):
    return None
  codec = _codec()
  if codec is None or not data.endswith(_END):
    return None
  try:
    stream = codec.library.CodeStream(data)
  except RuntimeError:
    return None
  rows, cols = stream.height, stream.width
  usual = stream.num_channels in (1, 3) and stream.precision in (0, 8)
  if not usual or not 0 < rows * cols <= _MAX_PIXELS:
    return None

  def cut(top, left, height, width):
    part = None
    if (height, width) != (rows, cols):
      box = codec.library.Region(top, left, top + height, left + width)
      part = codec.decoder.decode(
        stream.get_sub_code_stream(region=box), params=codec.parameters
      )
    if part is None:
      return lazy_image.cut(decode(data), top, left, height, width)
    return np.asarray(part)

  return lazy_image.LazyImage((rows, cols, 3), cut)


class _Codec(threading.local):
  """nvImageCodec, with a decoder for each thread, which no other may use."""

  def __init__(self, library):
    self.library = library
    self.decoder = library.Decoder(
      device_id=library.NVIMGCODEC_DEVICE_CPU_ONLY,
      max_num_cpu_threads=1,
      backends=[library.Backend(library.BackendKind.CPU_ONLY)],
      options=":fancy_upsampling=1",
    )
    self.parameters = library.DecodeParams(
      apply_exif_orientation=False,
      color_spec=library.ColorSpec.SRGB,
      sample_format=library.SampleFormat.I_RGB,
    )


@functools.cache
def _codec() -> _Codec | None:
  os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
  # It prints which libraries for GPUs are missing.
  stderr = os.dup(2)
  try:
    with open(os.devnull, "w") as nowhere:
      os.dup2(nowhere.fileno(), 2)
    return _Codec(importlib.import_module("nvidia.nvimgcodec"))
  except ImportError:
    return None
  finally:
    os.dup2(stderr, 2)
    os.close(stderr)
