"""Parts of JPEGs, decoded without the rest, where nvImageCodec is installed.

Its back end for CPUs (the extra `fast`; no GPU is needed) wraps the library
that OpenCV's decoder wraps as well, and skips what lies outside. It is set to
interpolate colour as OpenCV does: the pixels are the same.
"""

import contextlib
import functools
import importlib
import os
import threading

import numpy as np

_START, _END = b"\xff\xd8\xff", b"\xff\xd9"
_MAX_PIXELS = 2**27  # As for OpenCV, see __init__.py.
_DECODERS = threading.local()


def open_stream(data: bytes):
  """Returns what `region` reads, with `height` and `width`, or None.

  None means that `data` is for OpenCV to decode: because nvImageCodec is not
  installed, or because this is no JPEG, one with four colours, or one without
  an end, which OpenCV may find to be damaged.
  """
  if not (isinstance(data, bytes) and data.startswith(_START)):
    return None
  library = _library()
  if library is None or not data.endswith(_END):
    return None
  try:
    stream = library.CodeStream(data)
  except RuntimeError:
    return None
  usual = stream.num_channels in (1, 3) and stream.precision in (0, 8)
  small = 0 < stream.height * stream.width <= _MAX_PIXELS
  return stream if usual and small else None


def region(
  stream, top: int, left: int, height: int, width: int
) -> np.ndarray | None:
  """Returns that part of an image, uint8 (height, width, 3).

  None if it is damaged.
  """
  library = _library()
  box = library.Region(top, left, top + height, left + width)
  decoder, parameters = _decoder(library)
  image = decoder.decode(
    stream.get_sub_code_stream(region=box), params=parameters
  )
  return None if image is None else np.asarray(image)


@functools.cache
def _library():
  """Returns the module, or None."""
  os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")
  with _silence():
    try:
      return importlib.import_module("nvidia.nvimgcodec")
    except ImportError:
      return None


@contextlib.contextmanager
def _silence():
  """Drops what is printed meanwhile about libraries for GPUs."""
  with open(os.devnull, "w") as nowhere:
    stderr = os.dup(2)
    os.dup2(nowhere.fileno(), 2)
    try:
      yield
    finally:
      os.dup2(stderr, 2)
      os.close(stderr)


def _decoder(library):
  """Returns this thread's decoder, which no other thread may use."""
  if not hasattr(_DECODERS, "decoder"):
    _DECODERS.decoder = library.Decoder(
      device_id=library.NVIMGCODEC_DEVICE_CPU_ONLY,
      max_num_cpu_threads=1,
      backends=[library.Backend(library.BackendKind.CPU_ONLY)],
      options=":fancy_upsampling=1",
    )
    _DECODERS.parameters = library.DecodeParams(
      apply_exif_orientation=False,
      color_spec=library.ColorSpec.SRGB,
      sample_format=library.SampleFormat.I_RGB,
    )
  return _DECODERS.decoder, _DECODERS.parameters
