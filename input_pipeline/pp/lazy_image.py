"""Images of which only the pixels that are needed get computed.

`decode`, and resizing by area, return a `LazyImage`; a crop cuts a box out of
it, and the rest is never computed. Ops get arrays unless they declare `lazy`.

Parts of JPEGs are decoded without the rest, to the same pixels, where they have
restart markers and Numba is installed (the extra `restart`; see `jpeg`), or
else where nvImageCodec is. Its back end for CPUs (the extra `fast`; no GPU is
needed) wraps the library that OpenCV's decoder wraps as well, and is set to
interpolate colour as OpenCV does.
"""

import dataclasses
import functools
import importlib
import os
import threading
import types
from collections.abc import Callable

import numpy as np

_JPEG_ENDS = b"\xff\xd8\xff\xff\xd9"
_MAX_PIXELS = 2**27  # As for OpenCV, see input_pipeline/__init__.py.
_LOCK = threading.Lock()


@dataclasses.dataclass
class LazyImage:
  """An image of known shape that is not computed yet.

  Attributes:
    shape: (rows, cols, channels).
    cut: function of (top, left, height, width) that returns a box's pixels.
  """

  shape: tuple[int, int, int]
  cut: Callable[..., np.ndarray]


def cut(
  image: np.ndarray | LazyImage, top: int, left: int, height: int, width: int
) -> np.ndarray:
  """Returns a box of an image; of an array, a view."""
  if isinstance(image, LazyImage):
    return image.cut(top, left, height, width)
  return image[top : top + height, left : left + width]


def materialize(value):
  """Returns all pixels of a lazy image, anything else as it is."""
  if isinstance(value, LazyImage):
    return value.cut(0, 0, *value.shape[:2])
  return value


def from_jpeg(
  data: bytes, decode: Callable[[bytes], np.ndarray]
) -> LazyImage | None:
  """Returns a JPEG of which the part that is needed will be decoded, or None.

  None means that `data` is for OpenCV to decode: because there are no markers
  and nvImageCodec is not installed, or because this is no JPEG, one with four
  colours, or one without an end, which OpenCV may find to be damaged. `decode`
  decodes all of `data` where that is needed or a part is damaged.
  """
  if not isinstance(data, bytes) or data[:3] + data[-2:] != _JPEG_ENDS:
    return None
  if (jpeg := compiled("jpeg")) and (cutter := jpeg.Cutter.from_bytes(data)):

    def cut_file(top, left, height, width):
      if (height, width) == cutter.size:
        return decode(data)
      part, above, before = cutter.cut(top, left, height, width)
      return cut(decode(part.tobytes()), above, before, height, width)

    return LazyImage((*cutter.size, 3), cut_file)
  if (codec := _codec()) is None:
    return None
  try:
    stream = codec.library.CodeStream(data)
  except RuntimeError:
    return None
  rows, cols = stream.height, stream.width
  usual = stream.num_channels in (1, 3) and stream.precision in (0, 8)
  if not usual or not 0 < rows * cols <= _MAX_PIXELS:
    return None

  def cut_jpeg(top, left, height, width):
    part = None
    if (height, width) != (rows, cols):
      box = codec.library.Region(top, left, top + height, left + width)
      part = codec.decoder.decode(
        stream.get_sub_code_stream(region=box), params=codec.parameters
      )
    if part is None:
      return cut(decode(data), top, left, height, width)
    return np.asarray(part)

  return LazyImage((rows, cols, 3), cut_jpeg)


@functools.cache
def compiled(name: str) -> types.ModuleType | None:
  """Returns a module of this folder that needs Numba (`restart`), or None."""
  try:
    return importlib.import_module(f"dpn.input_pipeline.pp.{name}")
  except (ImportError, RuntimeError):  # or no folder for Numba's cache
    return None


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
  # It prints which libraries for GPUs are missing. One thread at a time, so
  # that none takes the silenced stream for the original.
  with _LOCK, open(os.devnull, "w") as nowhere:
    stderr = os.dup(2)
    os.dup2(nowhere.fileno(), 2)
    try:
      return _Codec(importlib.import_module("nvidia.nvimgcodec"))
    except ImportError:
      return None
    finally:
      os.dup2(stderr, 2)
      os.close(stderr)
