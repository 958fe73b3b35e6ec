"""Adds restart markers to JPEGs, without touching a coefficient.

A marker resets the prediction of DC coefficients (ITU-T T.81, E.1.4), so the
first differences of an interval are coded again; everything else is copied, bit
for bit. `dpn.input_pipeline.pp.jpeg` reads parts of the result.
Needs the extra `restart` (Numba).
"""

import functools
import math
import struct

import numba
import numpy as np

from dpn.input_pipeline.pp import jpeg, ops_image

_LONGEST_PX = 64  # between markers; see docs/input_performance.md
# Codes for the DC differences of 8-bit images, table K.3: lengths, categories.
_ALL_CATEGORIES = (
  bytes([0, 1, 5, 1, 1, 1, 1, 1, 1, *bytes(7)]),
  bytes(range(12)),
)


def add(data: bytes) -> bytes:
  """Returns a JPEG with the same coefficients and restart markers.

  Data are returned as they are if they are no JPEG of the usual kind (8-bit,
  sequential, Huffman, grey or three colours in one scan), are damaged, or have
  suitable markers. OpenCV's decoder verifies that the pixels stay the same.

  Raises:
    ValueError: the pixels would differ.
  """
  header = jpeg.read_header(data)
  if header is None or data[-2:] != jpeg.EOI:
    return data
  longest = _LONGEST_PX // header.mcu[1]
  if header.interval <= longest and jpeg.Cutter.from_bytes(data):
    return data
  interval = max(n for n in range(1, longest + 1) if header.mcus[1] % n == 0)
  result = _recode(data, header, interval)
  if result is None:
    return data
  try:
    pixels = ops_image.decode_image(data)
  except ValueError:
    return data
  same = np.array_equal(pixels, ops_image.decode_image(result))
  if not same or jpeg.Cutter.from_bytes(result) is None:
    raise ValueError(
      f"restart markers change the pixels of a JPEG of {len(data)} bytes, "
      f"{header.rows} x {header.cols} pixels: this is a mistake here."
    )
  return result


def _recode(data, header, interval):
  """Returns `data` with another restart interval, None if it is damaged."""
  segments, sampling = header.segments, header.sampling
  tables = _huffman_tables(segments)
  scan = segments[-1][4:]
  blocks, dc, ac = [], [], []  # of each block in an MCU: component and tables
  for i, (across, down) in enumerate(sampling):
    count = across * down if len(sampling) > 1 else 1
    blocks += count * [i]
    dc += count * [scan[2 + 2 * i] >> 4]
    ac += count * [16 + (scan[2 + 2 * i] & 15)]
  if not {*dc, *ac} <= tables.keys():
    return None
  new = {i: tables[i] for i in dc}
  extra = [(jpeg.DRI, struct.pack(">H", interval))]
  if any(len(values) < 12 for _, values in new.values()):
    new = dict.fromkeys(dc, _ALL_CATEGORIES)
    codes = [bytes([i]) + b"".join(_ALL_CATEGORIES) for i in new]
    extra.append((jpeg.DHT, b"".join(codes)))
  bits = np.frombuffer(data, np.uint8)[header.scan : -2]
  bits = bits[np.append(True, (bits[:-1] != 0xFF) | (bits[1:] != 0))]
  num_mcus = math.prod(header.mcus)
  out = np.empty(2 * bits.size + 16 * num_mcus + 1024, np.uint8)
  size = _recode_scan(
    np.append(bits, np.zeros(8, np.uint8)),
    np.array(blocks),
    np.stack([_lookup(*tables[i]) for i in dc]),
    np.stack([_lookup(*tables[i]) for i in ac]),
    np.stack([_codes(*new[i]) for i in dc]),
    num_mcus,
    header.interval,
    interval,
    out,
  )
  if size < 0:
    return None
  kept = [x for x in segments[:-1] if x[1] != jpeg.DRI]
  head = [*kept, *(_segment(*x) for x in extra), segments[-1]]
  return b"".join([jpeg.SOI, *head, out[:size].tobytes(), jpeg.EOI])


def _segment(marker, contents):
  return struct.pack(">BBH", 0xFF, marker, len(contents) + 2) + contents


def _huffman_tables(segments):
  """Returns (code counts by length, symbols) by table: 0–3 DC, 16–19 AC."""
  tables = {}
  for raw in segments:
    marker, contents = raw[1], raw[4:]
    while marker == jpeg.DHT and len(contents) > 17:
      end = 17 + sum(contents[1:17])
      if end > len(contents):
        return {}  # damaged
      tables[contents[0]] = contents[1:17], contents[17:end]
      contents = contents[end:]
  return tables


def _canonical(lengths, symbols):
  """Yields (code, its length, symbol), as C.2 of T.81 numbers the codes."""
  code, left = 0, iter(symbols)
  for size in range(1, 17):
    for _ in range(lengths[size - 1]):
      yield code, size, next(left)
      code += 1
    code *= 2


@functools.lru_cache(16)
def _lookup(lengths, symbols):
  """Returns, by the next 16 bits, a code's length * 256 + symbol; 0 if none."""
  table = np.zeros(2**16, np.uint16)
  for code, size, symbol in _canonical(lengths, symbols):
    begin = code << 16 - size
    table[begin : begin + (1 << 16 - size)] = size << 8 | symbol
  return table


@functools.lru_cache(16)
def _codes(lengths, symbols):
  """Returns (code, length) by symbol, for DC tables: (16, 2)."""
  table = np.zeros((16, 2), np.int64)
  for code, size, symbol in _canonical(lengths, symbols):
    table[symbol & 15] = code, size
  return table


@numba.njit(nogil=True, cache=True)
def _bits(data, place, count):
  """Returns up to 32 bits from bit `place` on."""
  first, value = place >> 3, 0
  for i in range(5):
    value = value << 8 | np.int64(data[first + i])
  return value >> (40 - (place & 7) - count) & ((1 << count) - 1)


@numba.njit(nogil=True, cache=True)
def _recode_scan(
  data, components, dc, ac, new_dc, num_mcus, old_interval, interval, out
):
  """Writes a scan with restart markers to `out`, and returns its length.

  Args:
    data: the scan's bytes, without the zeros that follow 0xFF, and 8 more.
    components: the component of each block in an MCU.
    dc: what the next 16 bits mean, see `_lookup`, for each block.
    ac: the same for AC.
    new_dc: codes to write, see `_codes`, for each block.
    num_mcus: in the image.
    old_interval: MCUs between markers in `data`, 0 without.
    interval: MCUs between markers in `out`.
    out: bytes.

  Returns:
    -1 if the data are damaged.
  """
  place, end = 0, 8 * (data.size - 8)
  size, pending, num_pending = 0, 0, 0
  old, new = np.zeros(4, np.int64), np.zeros(4, np.int64)  # predictions
  for mcu in range(num_mcus):
    if old_interval and mcu and mcu % old_interval == 0:
      place = (place + 7 >> 3 << 3) + 16
      old[:] = 0
    if interval and mcu and mcu % interval == 0:
      size, pending, num_pending = _flush(out, size, pending, num_pending)
      out[size], out[size + 1] = 0xFF, 0xD0 + (mcu // interval - 1) % 8
      size += 2
      new[:] = 0
    for block in range(components.size):
      if place >= end or size + 512 > out.size:
        return -1
      component = components[block]
      entry = np.int64(dc[block, _bits(data, place, 16)])
      category = entry & 255
      if entry == 0 or category > 11:
        return -1
      difference = _bits(data, place + (entry >> 8), category)
      place += (entry >> 8) + category
      if category and difference >> category - 1 == 0:
        difference -= (1 << category) - 1
      old[component] += difference
      difference = old[component] - new[component]
      new[component] = old[component]
      category, rest = 0, abs(difference)
      while rest:
        category, rest = category + 1, rest >> 1
      if category > 11 or new_dc[block, category, 1] == 0:
        return -1
      if difference < 0:
        difference += (1 << category) - 1
      value = new_dc[block, category, 0] << category | difference
      size, pending, num_pending = _put(
        out, size, pending, num_pending,
        value, new_dc[block, category, 1] + category,
      )  # fmt: skip
      k = 1
      while k < 64:
        entry = np.int64(ac[block, _bits(data, place, 16)])
        run, length = entry >> 4 & 15, entry & 15
        count = (entry >> 8) + length
        if entry == 0 or place + count > end:
          return -1
        size, pending, num_pending = _put(
          out, size, pending, num_pending, _bits(data, place, count), count
        )
        place += count
        if length == 0 and run < 15:
          break  # no more of this block
        k += run + 1
      if k > 64:
        return -1
  size, pending, num_pending = _flush(out, size, pending, num_pending)
  return size


@numba.njit(nogil=True, cache=True)
def _put(out, size, pending, num_pending, value, count):
  """Appends bits; returns the number of bytes, and the bits that are left."""
  pending, num_pending = pending << count | value, num_pending + count
  while num_pending >= 8:
    num_pending -= 8
    byte = pending >> num_pending & 255
    out[size] = byte
    size += 1
    if byte == 255:
      out[size] = 0
      size += 1
  return size, pending & (1 << num_pending) - 1, num_pending


@numba.njit(nogil=True, cache=True)
def _flush(out, size, pending, num_pending):
  """Fills the last byte up with ones."""
  rest = -num_pending % 8
  return _put(out, size, pending, num_pending, (1 << rest) - 1, rest)
