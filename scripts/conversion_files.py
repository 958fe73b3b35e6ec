"""Files that a conversion writes: whole, or not at all."""

import dataclasses
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dpn.weights import checkpoint

SUFFIXES = {
  "ours": [".safetensors"],
  "big_vision": [".npz"],
  "timm": [".safetensors", ""],
  "hf": [".safetensors", ""],
}


@dataclasses.dataclass(frozen=True)
class Written:
  """What to write.

  Attributes:
    arrays: by name.
    metadata: of the file.
    config: what a folder's other files hold, as {file: JSON}.
    notes: for the person who asked for it.
  """

  arrays: Mapping[str, np.ndarray]
  metadata: Mapping[str, str]
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  notes: Sequence[str] = ()


def check_target(target: str, to: str):
  """Raises ValueError or OSError if `target` cannot be made.

  Args:
    target: file or folder.
    to: key of `SUFFIXES`.
  """
  suffix = os.path.splitext(target)[1]
  if suffix not in SUFFIXES[to]:
    known = " or ".join(s or "no suffix (a folder)" for s in SUFFIXES[to])
    raise ValueError(
      f"{target!r} is no name for --to {to}: expected {known}, got "
      f"{suffix or 'none'!r}."
    )
  if os.path.lexists(target):
    raise FileExistsError(
      f"{target!r} exists and is never overwritten. Remove it, or give another "
      "name."
    )
  parent = os.path.dirname(os.path.abspath(target))
  if os.path.isfile(parent):
    raise NotADirectoryError(
      f"{parent!r} is a file, so there can be no {target!r}. Give another name."
    )
  if not os.path.isdir(parent):
    raise FileNotFoundError(
      f"The folder {parent!r} of the result is missing. Make it first: "
      f"mkdir -p {parent}"
    )


def write(target: str, written: Written):
  """Writes a file, or a folder if `target` has no suffix.

  Raises:
    OSError: it cannot be written; nothing is left behind.
  """
  partial = f"{target}.partial"
  try:
    if os.path.splitext(target)[1]:
      checkpoint.write_atomically(target, _bytes(target, written))
      return
    os.makedirs(partial)
    checkpoint.write_atomically(
      os.path.join(partial, "model.safetensors"), _bytes("", written)
    )
    for name, value in written.config.items():
      checkpoint.write_json(os.path.join(partial, name), value)
    os.rename(partial, target)
  except OSError as error:
    if os.path.isdir(partial):
      shutil.rmtree(partial, ignore_errors=True)
    elif os.path.exists(partial):
      os.remove(partial)
    raise OSError(f"Cannot write {target!r}: {error}.") from error


def _bytes(target, written):
  if not target.endswith(".npz"):
    arrays = {k: np.ascontiguousarray(x) for k, x in written.arrays.items()}
    return checkpoint.safetensors_bytes(arrays, written.metadata)
  buffer = io.BytesIO()
  metadata = np.array(json.dumps(dict(written.metadata)))
  np.savez(buffer, **written.arrays, metadata=metadata)
  return buffer.getvalue()
