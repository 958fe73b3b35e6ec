"""Reads TFRecord files, without TensorFlow."""

import os
import struct
from collections.abc import Iterator

from tensorboardX import record_writer

from dpn import paths


def records(path: str, check: bool) -> Iterator[bytes]:
  """Yields the records of a TFRecord file.

  Each is its length (8 bytes), a checksum (4), the data, a checksum (4). The
  checksum of the data is compared only if `check`; without the package `crc32c`
  that runs at only some 7 MB a second.

  Raises:
    ValueError: the file is cut off or damaged.
  """
  left, found = os.path.getsize(path), 0
  with paths.open_regular(path) as file:
    while header := file.read(12):
      left -= 16
      length, checksum = header[:8], header[8:]
      size = struct.unpack("<Q", length)[0] if len(header) == 12 else left
      if not 0 <= size <= left or checksum != _masked_crc(length):
        raise ValueError(f"{path} is damaged, cut off, or not a TFRecord file.")
      record, checksum = file.read(size), file.read(4)
      if check and checksum != _masked_crc(record):
        raise ValueError(f"{path}: record {found}, from 0, is damaged.")
      yield record
      left, found = left - size, found + 1


def _masked_crc(data: bytes) -> bytes:
  return struct.pack("<I", record_writer.masked_crc32c(data))
