"""Parts of JPEGs, decoded without the rest, to the same pixels.

With restart markers, smaller JPEGs are cut out: what follows a marker is
decoded without what precedes it (ITU-T T.81, E.1.4), so the intervals that
cover a box, behind the same headers, are a whole JPEG.
`dpn.input_pipeline.sources.restart_markers` adds the markers.

Without markers, nvImageCodec decodes parts if it is installed (the extra
`fast`; no GPU is needed). Its back end for CPUs wraps the library that OpenCV's
decoder wraps as well, and is set to interpolate colour as OpenCV does.
"""

import functools
import importlib
import math
import os
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpn.input_pipeline.pp import lazy_image

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
DHT, SOS, DRI = 0xC4, 0xDA, 0xDD
_SOF = (0xC0, 0xC1)  # baseline, and more tables or bits
_DQT, _COM, _RST = 0xDB, 0xFE, 0xD0
_APPS = range(0xE0, 0xF0)
_COLOUR_APPS = (0xE0, 0xEE)  # JFIF's and Adobe's, which say what colours are
_KNOWN = {*_SOF, DHT, DRI, _DQT, _COM, *_APPS}
_MAX_PIXELS = 2**27  # As for OpenCV, see input_pipeline/__init__.py.
_LOCK = threading.Lock()


class Header(NamedTuple):
  """What precedes the one scan of a sequential JPEG.

  Attributes:
    rows: of pixels.
    cols: of pixels.
    sampling: (across, down) of each component, in blocks of an MCU.
    mcu: rows and columns of pixels in an MCU.
    mcus: rows and columns of MCUs.
    interval: MCUs between restart markers, 0 without.
    segments: (marker, contents) of all that precedes the scan.
    scan: where the scan begins in the file.
  """

  rows: int
  cols: int
  sampling: list[tuple[int, int]]
  mcu: tuple[int, int]
  mcus: tuple[int, int]
  interval: int
  segments: list[tuple[int, bytes]]
  scan: int

  def with_size(self, rows: int, cols: int) -> bytes:
    """Returns the header of an image of another size, without metadata."""
    parts = [SOI]
    for marker, contents in self.segments:
      if marker in _SOF:
        size = struct.pack(">HH", rows, cols)
        contents = contents[:1] + size + contents[5:]
      metadata = marker in _APPS and marker not in _COLOUR_APPS
      if not metadata and marker != _COM:
        parts.append(segment(marker, contents))
    return b"".join(parts)


def segment(marker: int, contents: bytes) -> bytes:
  return struct.pack(">BBH", 0xFF, marker, len(contents) + 2) + contents


def read_header(data: bytes) -> Header | None:
  """Returns a header, None unless its scan is the only one, as usual.

  That is: 8-bit, sequential with Huffman coding, grey or three interleaved
  components, none larger than MCUs allow.
  """
  if data[:2] != SOI:
    return None
  segments, place = [], 2
  while place + 4 <= len(data):
    prefix, marker, size = struct.unpack_from(">BBH", data, place)
    contents = data[place + 4 : place + 2 + size]
    place += 2 + size
    if prefix != 0xFF or size < 2 or len(contents) != size - 2:
      return None
    segments.append((marker, contents))
    if marker == SOS:
      return _header(segments, place)
    if marker not in _KNOWN:
      return None
  return None


def _header(segments, scan) -> Header | None:
  """Returns the header that ends where the scan begins."""
  frames = [contents for marker, contents in segments if marker in _SOF]
  intervals = [contents for marker, contents in segments if marker == DRI]
  if len(frames) != 1 or any(len(x) != 2 for x in intervals):
    return None
  [frame], start = frames, segments[-1][1]
  if len(frame) < 6 or frame[0] != 8 or frame[5] not in (1, 3):
    return None
  # A scan of all components, not of one after the other.
  count = frame[5]
  if len(frame) != 6 + 3 * count or (len(start), *start[:1]) != (
    4 + 2 * count,
    count,
  ):
    return None
  sampling = [(x >> 4, x & 15) for x in frame[7::3]]
  rows, cols = struct.unpack_from(">HH", frame, 1)
  if rows * cols == 0 or not all(1 <= x <= 4 for x in sum(sampling, ())):
    return None
  across, down = (8 * max(x) for x in zip(*sampling, strict=True))
  if count == 1:  # A.2.2: MCUs are blocks, whatever the factors
    across = down = 8
  mcus = -(-rows // down), -(-cols // across)
  interval = int.from_bytes(intervals[-1], "big") if intervals else 0
  return Header(
    *(rows, cols, sampling, (down, across), mcus, interval, segments, scan)
  )


class Cutter:
  """A JPEG out of which smaller ones can be cut."""

  def __init__(self, data: bytes, header: Header, places: np.ndarray):
    """See `from_bytes`; `places` are where intervals begin, and the end."""
    self._data, self._header, self._places = data, header, places

  @classmethod
  def from_bytes(cls, data: bytes) -> "Cutter | None":
    """Returns None unless there are markers, and all as they should be.

    That is: numbered, one after every interval, and dividing rows of MCUs.
    """
    header = read_header(data)
    if not header or not header.interval or header.mcus[1] % header.interval:
      return None
    levels = np.frombuffer(data, np.uint8)
    places = np.flatnonzero(levels[header.scan : -1] == 0xFF) + header.scan
    markers = levels[places + 1]
    is_marker = markers != 0  # 0 follows data
    places, markers = places[is_marker], markers[is_marker]
    count = math.prod(header.mcus) // header.interval
    if data[-2:] != EOI or len(markers) != count:
      return None
    if (markers[:-1] != _RST + np.arange(count - 1) % 8).any():
      return None
    return cls(data, header, np.append(header.scan, places + 2))

  @property
  def size(self) -> tuple[int, int]:
    """Rows and columns of the image."""
    return self._header.rows, self._header.cols

  def cut(
    self, top: int, left: int, height: int, width: int
  ) -> tuple[bytes, int, int]:
    """Returns a JPEG that holds a box, and the box's top and left in it.

    Decoded, the box has the same pixels as in the whole: a pixel more at each
    side is kept, for decoders that interpolate colour.
    """
    header, data = self._header, self._data
    mcu_rows, mcu_cols = header.mcu
    down, across = header.mcus
    step, per_row = mcu_cols * header.interval, across // header.interval
    first, begin = max(0, top - 1) // mcu_rows, max(0, left - 1) // step
    if begin and header.cols - begin * step <= mcu_cols // 4:
      begin -= 1  # libjpeg interpolates no colour in 1 or 2 columns of chroma
    last = min(down, -(-(top + height + 1) // mcu_rows))
    end = min(per_row, -(-(left + width + 1) // step))
    head = header.with_size(
      min(header.rows, last * mcu_rows) - first * mcu_rows,
      min(header.cols, end * step) - begin * step,
    )
    rows = np.arange(first, last)[:, None] * per_row
    ends = self._places[rows + np.arange(begin, end + 1)]
    bounds = zip(ends[:, 0].tolist(), ends[:, -1].tolist(), strict=True)
    result = bytearray().join([head, *(data[a:b] for a, b in bounds)])
    # Markers are numbered anew; the last one ends the image.
    marks = len(head) - 1 + np.diff(ends).cumsum()
    levels = np.frombuffer(result, np.uint8)
    levels[marks] = _RST + np.arange(len(marks)) % 8
    result[-2:] = EOI
    return bytes(result), top - first * mcu_rows, left - begin * step


def lazy(
  data: bytes, decode: Callable[[bytes], np.ndarray]
) -> lazy_image.LazyImage | None:
  """Returns a JPEG of which the part that is needed will be decoded, or None.

  None means that `data` is for OpenCV to decode: because there are no markers
  and nvImageCodec is not installed, or because this is no JPEG, one with four
  colours, or one without an end, which OpenCV may find to be damaged. `decode`
  decodes all of `data` where that is needed or a part is damaged.
  """
  if not isinstance(data, bytes) or data[:3] + data[-2:] != SOI + b"\xff" + EOI:
    return None
  if cutter := Cutter.from_bytes(data):
    size = cutter.size

    def part(*box):
      smaller, top, left = cutter.cut(*box)
      return lazy_image.cut(decode(smaller), top, left, *box[2:])

  elif (codec := _codec()) is None or (stream := codec.open(data)) is None:
    return None
  else:
    size = stream.height, stream.width

    def part(*box):
      pixels = codec.decode(stream, *box)
      if pixels is None:
        return lazy_image.cut(decode(data), *box)
      return np.asarray(pixels)

  cut = lambda *box: decode(data) if box[2:] == size else part(*box)
  return lazy_image.LazyImage((*size, 3), cut)


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

  def open(self, data):
    """Returns a stream, None unless it is one of usual colours and size."""
    try:
      stream = self.library.CodeStream(data)
    except RuntimeError:
      return None
    usual = stream.num_channels in (1, 3) and stream.precision in (0, 8)
    fits = 0 < stream.height * stream.width <= _MAX_PIXELS
    return stream if usual and fits else None

  def decode(self, stream, top, left, height, width):
    box = self.library.Region(top, left, top + height, left + width)
    part = stream.get_sub_code_stream(region=box)
    return self.decoder.decode(part, params=self.parameters)


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
