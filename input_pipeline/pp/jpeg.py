"""Decodes parts of JPEGs without the rest, to the same pixels.

With restart markers, smaller JPEGs are cut out: what follows a marker can be
decoded without what precedes it (ITU-T T.81, E.1.4), so the intervals that
cover a box make a whole JPEG when they are put behind the same headers.
`dpn.input_pipeline.sources.restart_markers` adds the markers.

Without markers, nvImageCodec decodes parts if it is installed (the extra
`fast`; no GPU is needed). Its CPU back end wraps the same library as OpenCV's
decoder, and is set to interpolate colour as OpenCV does.
"""

import functools
import importlib
import math
import os
import re
import struct
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpn.input_pipeline.pp import fused, lazy_image

SOI, EOI = b"\xff\xd8", b"\xff\xd9"
DHT, SOS, DRI = 0xC4, 0xDA, 0xDD
_SOF = (0xC0, 0xC1)  # baseline, and extended: more tables or bits
_SEQUENTIAL, _MAX_SCANS = tuple(bytes([x]) for x in _SOF), 100
_DQT, _COM, _RST = 0xDB, 0xFE, 0xD0
_JFIF, _ADOBE = 0xE0, 0xEE  # These say what the colours are.
_ONES, _HIGH_BITS = (np.uint64(0x0101010101010101 * x) for x in (1, 0x80))
_KEPT = {*_SOF, DHT, DRI, SOS, _DQT, _JFIF, _ADOBE}
_FILL = re.compile(rb"\xff+")
_KNOWN = {*_KEPT, *range(0xE0, 0xF0), _COM}
_MAX_PIXELS = 2**27  # As for OpenCV, see input_pipeline/__init__.py.
_LOCK = threading.Lock()


class Header(NamedTuple):
  """What precedes the one scan of a sequential JPEG."""

  rows: int  # of pixels
  cols: int
  # how many blocks (across, down) of each component are in an MCU
  sampling: list[tuple[int, int]]
  mcu: tuple[int, int]  # rows and columns of pixels in an MCU
  mcus: tuple[int, int]  # rows and columns of MCUs
  interval: int  # MCUs between restart markers, 0 without
  segments: list[bytes]  # before the scan: each marker, its length, contents
  scan: int  # where the scan begins in the file

  def with_size(self, rows: int, cols: int) -> bytes:
    """Returns the header of an image of another size, without metadata."""
    kept = [x for x in self.segments if x[1] in _KEPT]
    for i, raw in enumerate(kept):
      if raw[1] in _SOF:
        kept[i] = raw[:5] + struct.pack(">HH", rows, cols) + raw[9:]
    return b"".join([SOI, *kept])


def is_bomb(data: bytes) -> bool:
  """Returns whether a JPEG has so many scans that decoding takes minutes.

  Even a scan of a few bytes covers all pixels. Progressive JPEGs have ten.
  """
  place, components = 2, None
  while data[:2] == SOI and data[place : place + 1] == b"\xff":
    marker = data[place + 1 : place + 2]
    if marker == b"\xff":  # A fill byte, of which there may be many.
      place = _FILL.match(data, place).end() - 1
      continue
    if marker == bytes([SOS]):
      single = data[place + 4 : place + 5] == components
      return not single and data.count(b"\xff" + marker) > _MAX_SCANS
    if marker in _SEQUENTIAL:
      components = data[place + 9 : place + 10]
    place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
  return False


def read_header(data: bytes) -> Header | None:
  """Returns the header of a JPEG of the usual kind, None for any other.

  That is: a single scan, 8-bit, sequential with Huffman coding, grey or three
  interleaved components, none larger than MCUs allow.
  """
  if data[:2] != SOI:
    return None
  segments, place = [], 2
  while place + 4 <= len(data):
    prefix, marker, size = struct.unpack_from(">BBH", data, place)
    raw = data[place : place + 2 + size]
    place += 2 + size
    if prefix != 0xFF or size < 2 or len(raw) != size + 2:
      return None
    segments.append(raw)
    if marker == SOS:
      return _header(segments, place)
    if marker not in _KNOWN:
      return None
  return None


def _header(segments, scan) -> Header | None:
  """Returns the header that ends where the scan begins."""
  frames = [raw[4:] for raw in segments if raw[1] in _SOF]
  intervals = [raw[4:] for raw in segments if raw[1] == DRI]
  if len(frames) != 1 or any(len(x) != 2 for x in intervals):
    return None
  [frame], start = frames, segments[-1][4:]
  if len(frame) < 6 or frame[0] != 8 or frame[5] not in (1, 3):
    return None
  # The scan must hold all components; other JPEGs have a scan for each.
  count = frame[5]
  if len(frame) != 6 + 3 * count or len(start) != 4 + 2 * count:
    return None
  sampling = [(x >> 4, x & 15) for x in frame[7::3]]
  rows, cols = struct.unpack_from(">HH", frame, 1)
  sides = {side for both in sampling for side in both}
  if start[0] != count or rows * cols == 0 or not sides <= {1, 2, 3, 4}:
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

  def __init__(self, data: np.ndarray, header: Header, places: np.ndarray):
    """See `from_bytes`; `places` are where intervals begin, and the end."""
    self._data, self._header, self._places = data, header, places

  @classmethod
  def from_bytes(cls, data: bytes) -> "Cutter | None":
    """Returns a cutter; None unless there are markers, all as they should be.

    That is: numbered, one after every interval, and dividing rows of MCUs. Also
    None without Numba (the extra `restart`).
    """
    # In a small file, reading the header takes a tenth of the time of decoding,
    # and searching for a marker takes none; in large files it is the reverse.
    if len(data) < 2**14 and bytes([0xFF, DRI]) not in data:
      return None
    header = read_header(data)
    if not header or not header.interval or header.mcus[1] % header.interval:
      return None
    find = fused.compiled(_find_markers)
    # An interval has at least a byte, and its marker two.
    count = math.prod(header.mcus) // header.interval
    if find is None or count > len(data) or data[-2:] != EOI:
      return None
    levels = np.frombuffer(data, np.uint8)
    places = np.empty(count + 1, np.int64)
    places[0], places[count] = header.scan, len(data)
    if not find(levels, header.scan, places[1:count]):
      return None
    return cls(levels, header, places)

  @property
  def size(self) -> tuple[int, int]:
    """Rows and columns of the image."""
    return self._header.rows, self._header.cols

  def cut(
    self, top: int, left: int, height: int, width: int
  ) -> tuple[bytes, int, int]:
    """Returns a JPEG that holds a box, and the box's top and left in it.

    The box decodes to the same pixels as in the whole image: one pixel more is
    kept at each side, for decoders that interpolate colour.
    """
    header = self._header
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
    box = first, last, begin, end, per_row
    join = fused.compiled(_join)
    part = join(np.frombuffer(head, np.uint8), self._data, self._places, box)
    return part.tobytes(), top - first * mcu_rows, left - begin * step


def _find_markers(data, scan, found):
  """Writes the place after each marker; returns whether all are as required.

  Most words of 8 bytes have no 0xFF, which one test of the whole word shows.
  """
  words = data[: data.size // 8 * 8].view(np.uint64)
  number, end = 0, data.size - 2
  for word in range(scan // 8, words.size + 1):
    if word < words.size:
      zeros = ~words[word]
      if (zeros - _ONES) & ~zeros & _HIGH_BITS == 0:
        continue
    for i in range(8 * word, 8 * word + 8):
      # A 0 marks 0xFF as data. The last two conditions are rarely reached.
      if i < end and data[i] == 0xFF and data[i + 1] != 0 and i >= scan:
        if number == found.size or data[i + 1] != _RST + number % 8:
          return False
        found[number] = i + 2
        number += 1
  return number == found.size


def _join(head, data, places, box):
  """Returns a header and the intervals of a box, with markers renumbered."""
  first, last, begin, end, per_row = box
  size = head.size
  for row in range(first * per_row, last * per_row, per_row):
    size += places[row + end] - places[row + begin]
  out = np.empty(size, np.uint8)
  for i in range(head.size):  # faster than assigning, which checks overlap
    out[i] = head[i]
  size, number = head.size, 0
  for row in range(first * per_row, last * per_row, per_row):
    source = data[places[row + begin] : places[row + end]]
    for i in range(source.size):
      out[size + i] = source[i]
    for i in range(row + begin + 1, row + end + 1):
      marker = size + places[i] - places[row + begin] - 2
      out[marker], out[marker + 1] = 0xFF, _RST + number % 8
      number += 1
    size += source.size
  out[size - 1] = 0xD9
  return out


def lazy(
  data: bytes, decode: Callable[[bytes], np.ndarray]
) -> lazy_image.LazyImage | None:
  """Returns a JPEG of which only the needed part will be decoded, or None.

  None leaves `data` to OpenCV: there are no markers and nvImageCodec is not
  installed; or this is not a JPEG, has four colours, or lacks an end, so that
  OpenCV may find it to be damaged. `decode` decodes all of `data` where that is
  needed or a part is damaged.
  """
  if not isinstance(data, bytes) or data[:3] + data[-2:] != SOI + b"\xff" + EOI:
    return None
  if is_bomb(data):
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
  """nvImageCodec, with a decoder per thread, as threads must not share one."""

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
    """Returns a stream, None unless its colours and its size are usual."""
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
  # nvImageCodec prints which GPU libraries are missing. The lock is there so
  # that no thread takes the silenced stream for the original.
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
