"""How to tell damage from other errors, and where damaged files are put."""

import contextlib
import errno
import itertools
import os
import pathlib
import re
from collections.abc import Iterator

import numpy as np

from dpn import paths

# How errors from a shortage or a network look: codes in Python, texts in C++.
_PASSING = (
  *(errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
  *(errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNRESET),
  errno.EHOSTUNREACH,
)
_SHORTAGE = re.compile(
  "RESOURCE_EXHAUSTED|can't start new thread|Too many open files"
)


def described(path: str, error: Exception) -> str:
  """Returns an error's message, after the path unless it names the path."""
  text = str(error) or type(error).__name__
  return text if str(path) in text else f"{path}: {text}"


@contextlib.contextmanager
def reading(path: str) -> Iterator[None]:
  """Converts whatever a damaged or hostile file makes its reader raise.

  That may be anything: libraries that read files do not document it.

  Raises:
    ValueError: the file is damaged, or larger than the memory; it is named.
    OSError: from the system or a library; it names the file.
  """
  try:
    yield
  except ImportError:
    raise
  except OSError as e:
    if e.errno is not None:
      e.filename = e.filename or path
    elif str(path) not in str(e):
      raise type(e)(f"{path}: {e}") from e
    raise
  except ValueError as e:
    raise ValueError(described(path, e)) from e
  except Exception as e:
    if is_shortage(e):
      raise OSError(f"{path}: {e}") from e
    raise ValueError(
      f"{path} is damaged or hostile, or larger than the memory "
      f"({type(e).__name__}: {e}). Get it again from where it came."
    ) from e


def check_unpacked(path: str, size: int, times: int):
  """Raises ValueError if `size`, in memory, is above `times` a file's size."""
  if size > max(2**26, times * os.path.getsize(path)):
    raise ValueError(
      f"it would be {size:,} bytes when uncompressed, more than {times} times "
      "its size. If that is right, write it without compression."
    )


@contextlib.contextmanager
def open_npz(path: str, times: int) -> Iterator[np.lib.npyio.NpzFile]:
  """Opens a .npz file, unless it would unpack to more than `times` its size.

  Raises:
    ValueError: it would, or two arrays have the same name.
  """
  with (
    paths.open_regular(path) as f,
    np.lib.npyio.NpzFile(f, allow_pickle=False) as npz,
  ):
    members = npz.zip.infolist() if npz.zip else []
    sizes = [member.file_size for member in members]
    check_unpacked(path, sum(sizes), times)
    if len({*npz}) < len(sizes):
      raise ValueError("two arrays in it have the same name")
    yield npz


def reraise_if_transient(folder: pathlib.Path, error: Exception) -> None:
  """Re-raises an error from reading a folder unless it is due to damage.

  Without memory, threads, descriptors, permission or a file server, nothing can
  be read.
  """
  for path in folder.rglob("*"):
    if path.is_file():
      path.open("rb").close()
  if is_shortage(error) or any(
    isinstance(e, MemoryError) for e in _causes(error)
  ):
    raise error


def is_shortage(error: BaseException) -> bool:
  """Returns whether a shortage or a network, not damage, caused an error.

  A MemoryError does not count: a damaged file may ask for any amount.
  """
  return any(
    getattr(e, "errno", None) in _PASSING or _SHORTAGE.search(str(e))
    for e in _causes(error)
  )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
  while error:
    yield error
    error = error.__cause__ or error.__context__


def free_name(path: pathlib.Path) -> pathlib.Path:
  """Returns `<path>.damaged`, or the next such name that is free."""
  suffixes = (f".damaged-{number}" for number in itertools.count(2))
  names = (path.name + s for s in itertools.chain([".damaged"], suffixes))
  return next(p for p in map(path.with_name, names) if not p.exists())


def found(folder: pathlib.Path) -> list[str]:
  """Returns what was set aside in a folder and in its subfolders."""
  pattern = "*.damaged*"
  paths = {*folder.glob(pattern), *folder.glob(f"*/{pattern}")}
  return sorted(path.relative_to(folder).as_posix() for path in paths)
