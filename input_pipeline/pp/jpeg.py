"""Cuts smaller JPEGs out of those with restart markers, without decoding.

What follows a restart marker is decoded without what precedes it (ITU-T T.81,
E.1.4). So the intervals that cover a box, behind the same headers, are a whole
JPEG. `dpn.input_pipeline.sources.restart_markers` adds markers to files.

Compiled with Numba (the extra `restart`), so that threads do not wait for each
other here.
"""

from typing import NamedTuple

import numba
import numpy as np

EOI = b"\xff\xd9"
DHT, SOS, DRI = 0xC4, 0xDA, 0xDD
SOF, SOF_EXTENDED = 0xC0, 0xC1  # baseline, and more tables or bits
_DQT, _APP0, _APP15, _COM = 0xDB, 0xE0, 0xEF, 0xFE
_APP14 = 0xEE  # Adobe's, which like JFIF's APP0 says what the colours are
_RST = 0xD0
_ONES, _HIGH_BITS = (np.uint64(0x0101010101010101 * x) for x in (1, 0x80))


class Header(NamedTuple):
  """What precedes the one scan of a sequential JPEG; all 0 for other data."""

  rows: int
  cols: int
  mcu_rows: int  # pixels
  mcu_cols: int
  interval: int  # MCUs between restart markers, 0 without
  scan: int  # where the scan begins in the file

  @property
  def mcus(self) -> tuple[int, int]:
    """Rows and columns of MCUs."""
    return -(-self.rows // self.mcu_rows), -(-self.cols // self.mcu_cols)


_compiled = numba.njit(nogil=True, cache=True)
_NONE = Header(0, 0, 0, 0, 0, 0)


@_compiled
def _uint16(data, place):
  return np.int64(data[place]) << 8 | np.int64(data[place + 1])


@_compiled
def read_header(data: np.ndarray) -> Header:
  """Returns a header, all 0 unless its scan is the only one, as usual.

  That is: 8-bit, sequential with Huffman coding, grey or three interleaved
  components, none larger than MCUs allow.
  """
  if len(data) < 4 or _uint16(data, 0) != 0xFFD8:
    return _NONE
  place, frame, count, interval = 2, 0, 0, 0
  down, across = 1, 1
  while place + 4 <= len(data) and data[place] == 0xFF:
    marker, size = data[place + 1], _uint16(data, place + 2)
    place += 4
    end = place + size - 2
    if size < 2 or end > len(data):
      return _NONE
    if marker in (SOF, SOF_EXTENDED):
      if frame or size < 8 or data[place] != 8:
        return _NONE
      frame, count = place, np.int64(data[place + 5])
      if count not in (1, 3) or size != 8 + 3 * count:
        return _NONE
      for i in range(count):
        sampling = np.int64(data[place + 7 + 3 * i])
        if not (1 <= sampling >> 4 <= 4 and 1 <= sampling & 15 <= 4):
          return _NONE
        if count > 1:  # A.2.2: else MCUs are blocks, whatever the factors
          down, across = max(down, sampling & 15), max(across, sampling >> 4)
    elif marker == DRI:
      if size != 4:
        return _NONE
      interval = _uint16(data, place)
    elif marker == SOS:
      # A scan of all components, not of one after the other.
      if not frame or size != 6 + 2 * count or data[place] != count:
        return _NONE
      rows, cols = _uint16(data, frame + 1), _uint16(data, frame + 3)
      if rows * cols == 0:
        return _NONE
      return Header(rows, cols, 8 * down, 8 * across, interval, end)
    elif marker not in (DHT, _DQT, _COM) and not _APP0 <= marker <= _APP15:
      return _NONE
    place = end
  return _NONE


@_compiled
def _open(data):
  """Returns the header, and where every interval begins and the last ends.

  Intervals include the marker that follows. There are none unless all markers
  are as they should be, and divide rows of MCUs.
  """
  header = read_header(data)
  places = np.empty(0, np.int64)
  end = len(data) - 2
  if not header.interval or header.scan >= end or _uint16(data, end) != 0xFFD9:
    return header, places
  down = -(-header.rows // header.mcu_rows)
  across = -(-header.cols // header.mcu_cols)
  # An interval has at least a byte, and its marker two.
  if across % header.interval or down * across > header.interval * len(data):
    return header, places
  count = down * across // header.interval
  found = np.empty(count + 1, np.int64)
  found[0], found[count] = header.scan, len(data)
  if _find_markers(data, header.scan, found[1:count]):
    return header, found
  return header, places


@_compiled
def _find_markers(data, scan, found):
  """Writes what follows each marker; returns whether all are as they should be.

  Most words of 8 bytes have no 0xFF, which is seen without looking at each.
  """
  words = data[: data.size // 8 * 8].view(np.uint64)
  number, end = 0, data.size - 2
  for word in range(scan // 8, words.size + 1):
    if word < words.size:
      zeros = ~words[word]
      if (zeros - _ONES) & ~zeros & _HIGH_BITS == 0:
        continue
    for i in range(8 * word, 8 * word + 8):
      # 0 follows data. The last two conditions are rarely reached.
      if i < end and data[i] == 0xFF and data[i + 1] != 0 and i >= scan:
        if number == found.size or data[i + 1] != _RST + number % 8:
          return False
        found[number] = i + 2
        number += 1
  return number == found.size


@_compiled
def _copy(source, target):
  for i in range(source.size):  # faster than assigning, which checks overlap
    target[i] = source[i]


@_compiled
def _write_header(data, scan, rows, cols, out):
  """Writes what decoding needs of a header, for another size.

  Returns:
    How many bytes that are.
  """
  out[0], out[1] = data[0], data[1]
  size, place = 2, 2
  while place < scan:
    marker, end = data[place + 1], place + 2 + _uint16(data, place + 2)
    frame = marker in (SOF, SOF_EXTENDED)
    if not _APP0 < marker < _APP14 and marker != _APP15 and marker != _COM:
      begin = size
      _copy(data[place:end], out[size:])
      size += end - place
      if frame:
        out[begin + 5], out[begin + 6] = rows >> 8, rows & 255
        out[begin + 7], out[begin + 8] = cols >> 8, cols & 255
    place = end
  return size


@_compiled
def _cut(data, header, places, top, left, height, width):
  """See `Cutter.cut`."""
  step = header.mcu_cols * header.interval
  per_row = -(-header.cols // step)
  down = -(-header.rows // header.mcu_rows)
  first, begin = max(0, top - 1) // header.mcu_rows, max(0, left - 1) // step
  if begin and header.cols - begin * step <= header.mcu_cols // 4:
    begin -= 1  # libjpeg interpolates no colour in 1 or 2 columns of chroma
  last = min(down, -(-(top + height + 1) // header.mcu_rows))
  end = min(per_row, -(-(left + width + 1) // step))
  size = header.scan
  for row in range(first * per_row, last * per_row, per_row):
    size += places[row + end] - places[row + begin]
  out = np.empty(size, np.uint8)
  size = _write_header(
    data,
    header.scan,
    min(header.rows, last * header.mcu_rows) - first * header.mcu_rows,
    min(header.cols, end * step) - begin * step,
    out,
  )
  number = 0
  for row in range(first * per_row, last * per_row, per_row):
    source, target = places[row + begin], size
    _copy(data[source : places[row + end]], out[target:])
    for i in range(row + begin + 1, row + end + 1):
      size = target + places[i] - source
      out[size - 2], out[size - 1] = 0xFF, _RST + number % 8
      number += 1
  out[size - 1] = 0xD9
  return out[:size], top - first * header.mcu_rows, left - begin * step


class Cutter:
  """A JPEG out of which smaller ones can be cut."""

  def __init__(self, data: np.ndarray, header: Header, places: np.ndarray):
    """See `from_bytes`; `places` are as of `_open`."""
    self._data, self._header, self._places = data, header, places

  @classmethod
  def from_bytes(cls, data: bytes) -> "Cutter | None":
    """Returns None unless there are markers, all as they should be."""
    data = np.frombuffer(data, np.uint8)
    header, places = _open(data)
    return cls(data, header, places) if places.size else None

  @property
  def size(self) -> tuple[int, int]:
    """Rows and columns of the image."""
    return self._header.rows, self._header.cols

  def cut(
    self, top: int, left: int, height: int, width: int
  ) -> tuple[np.ndarray, int, int]:
    """Returns a JPEG that holds a box, and the box's top and left in it.

    Decoded, the box has the same pixels as in the whole: a pixel more at each
    side is kept, for decoders that interpolate colour.
    """
    return _cut(
      self._data, self._header, self._places, top, left, height, width
    )
