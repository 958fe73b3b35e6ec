"""Cuts smaller JPEGs out of those with restart markers, without decoding.

What follows a restart marker is decoded without what precedes it (ITU-T T.81,
E.1.4). So the intervals that cover a box, behind the same headers, are a whole
JPEG. `dpn.input_pipeline.sources.restart_markers` adds markers to files.
"""

import dataclasses
import struct
from collections.abc import Sequence

import numpy as np

SOF, DHT, SOS, DRI = (0xC0, 0xC1), 0xC4, 0xDA, 0xDD  # baseline, extended
EOI = b"\xff\xd9"
# What decoding needs: JFIF and Adobe's segment say which colours these are.
_DECODED = {*SOF, DHT, SOS, 0xDB, 0xE0, 0xEE}


@dataclasses.dataclass(frozen=True)
class Header:
  """What precedes the one scan of a sequential JPEG.

  Attributes:
    size: (rows, cols) in pixels.
    sampling: of each component, its (horizontal, vertical) factor.
    interval: MCUs between restart markers, 0 without.
    segments: (marker, contents) of all but the restart interval, SOS last.
    scan: where the scan begins in the file.
  """

  size: tuple[int, int]
  sampling: tuple[tuple[int, int], ...]
  interval: int
  segments: tuple[tuple[int, bytes], ...]
  scan: int

  @property
  def mcu(self) -> tuple[int, int]:
    """Rows and columns of pixels in an MCU."""
    if len(self.sampling) == 1:  # A.2.2: blocks, whatever the factors
      return 8, 8
    across, down = zip(*self.sampling, strict=True)
    return 8 * max(down), 8 * max(across)

  @property
  def mcus(self) -> tuple[int, int]:
    """Rows and columns of MCUs."""
    down, across = (
      -(-x // y) for x, y in zip(self.size, self.mcu, strict=True)
    )
    return down, across

  def to_bytes(
    self,
    size: tuple[int, int],
    interval: int,
    extra: Sequence[tuple[int, bytes]] = (),
  ) -> bytes:
    """Returns the header for an image of another size and restart interval.

    `extra` are more segments, which take precedence.
    """
    more = [*extra, (DRI, struct.pack(">H", interval)), self.segments[-1]]
    parts = [b"\xff\xd8"]
    for marker, contents in [*self.segments[:-1], *more]:
      if marker in SOF:
        contents = contents[:1] + struct.pack(">HH", *size) + contents[5:]
      parts.append(_segment(marker, contents))
    return b"".join(parts)


def _segment(marker, contents):
  return struct.pack(">BBH", 0xFF, marker, len(contents) + 2) + contents


def read_header(data: bytes) -> Header | None:
  """Returns what precedes the scan; None unless it is the only one, as usual.

  That is: 8-bit, sequential with Huffman coding, grey or three interleaved
  components, none larger than MCUs allow.
  """
  if not isinstance(data, bytes) or data[:3] != b"\xff\xd8\xff":
    return None
  found, place, segments = {}, 2, []
  while data[place : place + 1] == b"\xff" and SOS not in found:
    if place + 4 > len(data):
      return None
    marker, size = struct.unpack_from(">xBH", data, place)
    contents = data[place + 4 : place + 2 + size]
    other = marker != DHT and 0xC0 <= marker <= 0xCF
    if other or marker in (SOS, DRI):
      found[marker] = contents
    if marker != DRI:
      segments.append((marker, contents))
    place += 2 + size
  frame = found.get(SOF[0]) or found.get(SOF[1]) or b""
  count = (len(frame) - 6) // 3
  known = found.keys() <= {*SOF, SOS, DRI} and SOS in found
  # A scan of all components, not of one after the other.
  if not known or count not in (1, 3) or found[SOS][:1] != frame[5:6]:
    return None
  if len(found[SOS]) < 1 + 2 * count:
    return None
  precision, rows, cols, components = struct.unpack_from(">BHHB", frame)
  sampling = tuple((x >> 4, x & 15) for x in frame[7::3][:count])
  if precision != 8 or components != count or not rows * cols:
    return None
  if any(not 1 <= x <= 4 for pair in sampling for x in pair):
    return None
  (interval,) = struct.unpack(">H", found.get(DRI, b"\0\0")[:2].rjust(2, b"\0"))
  return Header((rows, cols), sampling, interval, tuple(segments), place)


class Cutter:
  """A JPEG out of which smaller ones can be cut."""

  def __init__(self, data: bytes, header: Header, markers: np.ndarray):
    """See `from_bytes`; `markers` is where the restart markers begin."""
    self._data = np.frombuffer(data, np.uint8)
    needed = tuple(x for x in header.segments if x[0] in _DECODED)
    self._header = header = dataclasses.replace(header, segments=needed)
    ends = np.append(markers, len(data) - len(EOI))
    begins = np.append(header.scan, markers + 2)
    per_row = header.mcus[1] // header.interval
    self._begins, self._ends = (x.reshape(-1, per_row) for x in (begins, ends))

  @classmethod
  def from_bytes(cls, data: bytes) -> "Cutter | None":
    """Returns None unless there are markers, all as they should be."""
    header = read_header(data)
    if header is None or not header.interval or data[-2:] != EOI:
      return None
    down, across = header.mcus
    if across % header.interval:
      return None
    scan = np.frombuffer(data, np.uint8)[header.scan : -2]
    markers = np.flatnonzero(scan[:-1] == 0xFF)
    kinds = scan[markers + 1]
    markers, kinds = markers[kinds != 0], kinds[kinds != 0]  # 0 follows data
    count = down * across // header.interval - 1
    expected = 0xD0 + np.arange(count) % 8
    if not np.array_equal(kinds, expected) or scan[-1:] == 0xFF:
      return None
    return cls(data, header, markers + header.scan)

  @property
  def size(self) -> tuple[int, int]:
    """Rows and columns of the image."""
    return self._header.size

  @property
  def interval(self) -> int:
    """MCUs between restart markers."""
    return self._header.interval

  def cut(
    self, top: int, left: int, height: int, width: int
  ) -> tuple[bytes, int, int]:
    """Returns a JPEG that holds a box, and the box's top and left in it.

    Decoded, the box has the same pixels as in the whole: a pixel more at each
    side is kept, for decoders that interpolate colour.
    """
    header = self._header
    rows, cols = header.size
    mcu_rows, step = header.mcu[0], header.mcu[1] * header.interval
    first, last = (
      max(0, top - 1) // mcu_rows,
      -(-(top + height + 1) // mcu_rows),
    )
    begin, end = max(0, left - 1) // step, -(-(left + width + 1) // step)
    begins, ends = (
      x[first:last, begin:end] for x in (self._begins, self._ends)
    )
    size = (
      min(rows, last * mcu_rows) - first * mcu_rows,
      min(cols, end * step) - begin * step,
    )
    head = np.frombuffer(header.to_bytes(size, header.interval), np.uint8)
    # Each row with the marker that follows it.
    parts = [
      self._data[a:b]
      for a, b in zip(begins[:, 0], ends[:, -1] + 2, strict=True)
    ]
    joined = np.concatenate([head, *parts])
    after = len(head) + np.cumsum(ends - begins + 2) - 1
    joined[after] = 0xD0 + np.arange(after.size) % 8
    joined[-2:] = np.frombuffer(EOI, np.uint8)
    return joined.tobytes(), top - first * mcu_rows, left - begin * step
