"""Files of arrays by name: .npz and .safetensors, never a pickle."""

import json
import os
import re
import zipfile
import zlib

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from dpn import errors

STATISTICS = "batch_stats"
_INDEX = "model.safetensors.index.json"
# A run's folder; one of Hugging Face or timm, in one file or in several.
FILES_IN_FOLDERS = ("params.safetensors", "model.safetensors", _INDEX)
PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".pickle", ".tar")


def locate(path: str) -> tuple[str, str | None]:
  """Returns the file and the subtree that a path such as "x.npz:img" names.

  A folder stands for the file in it that is one of `FILES_IN_FOLDERS`.

  Raises:
    FileNotFoundError, ValueError: see `read`.
  """
  if os.path.isdir(path):
    return _in_folder(path), None
  match = re.fullmatch(r"(.+(\.\w+))(?::([^:]+))?", path)
  file, suffix, subtree = match.groups() if match else (path, "", None)
  if suffix in PICKLES:
    raise ValueError(
      f"Cannot load {path!r}: {suffix} files hold Python's pickles, which can "
      "run any code and are never opened here. Where you trust the file, "
      "save it again: safetensors.torch.save_file(torch.load(path, "
      "weights_only=True), 'x.safetensors')."
    )
  if suffix not in READERS and not file.endswith(_INDEX):
    raise ValueError(
      f"Cannot load parameters from {path!r}. Expected a file of format "
      f"{' or '.join(READERS)}, with ':<subtree>' behind it if need be, or a "
      "folder that exists and holds one."
    )
  if not os.path.isfile(file):
    raise FileNotFoundError(
      f"There is no file {file!r}. Files elsewhere, such as in a bucket, have "
      "to be copied to this machine or mounted first."
    )
  return file, subtree


def _in_folder(folder):
  files = [os.path.join(folder, name) for name in FILES_IN_FOLDERS]
  if found := [file for file in files if os.path.isfile(file)]:
    return found[0]
  pickled = sorted(f for f in os.listdir(folder) if f.endswith(PICKLES))
  hint = f" {pickled[0]!r} is a pickle and never opened." if pickled else ""
  raise FileNotFoundError(
    f"The folder {folder!r} has no {' or '.join(FILES_IN_FOLDERS)}.{hint} Give "
    "the folder of a finished run, or a parameter file."
  )


def read(path: str) -> dict[str, np.ndarray]:
  """Returns the arrays in a file, by name.

  Of a whole training state, as big_vision saves it, only the parameters and
  running statistics.

  Args:
    path: an .npz or .safetensors file, on this machine, or a folder that holds
      one, see `locate`. A suffix picks a subtree and drops its name:
      "siglip.npz:img".

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the format or the subtree is unknown, or the file is damaged.
  """
  file, subtree = locate(path)
  flat = _read_shards(file) if file.endswith(_INDEX) else _read_file(file)
  if not flat:
    raise ValueError(f"{file!r} is empty: there are no arrays in it.")
  for wrapper in ("params", "opt/target"):
    if inner := _subtree(flat, wrapper):
      stats = _subtree(flat, STATISTICS)
      flat = inner | {f"{STATISTICS}/{k}": x for k, x in stats.items()}
      break
  if not subtree:
    return flat
  if inner := _subtree(flat, subtree.strip("/")):
    return inner
  known = {name.partition("/")[0] for name in flat if "/" in name}
  raise ValueError(f"{file!r}: " + errors.unknown("subtree", subtree, known))


def _read_file(file):
  suffix = os.path.splitext(file)[1]
  try:
    return READERS[suffix](file)
  except _DAMAGE as error:
    why = "It may be truncated, or no such file at all: copy it again."
    if "allow_pickle" in str(error):
      why = (
        "What it holds are Python's pickles, which can run any code and are "
        "never opened here: save plain arrays."
      )
    raise ValueError(
      f"{file!r} is not a readable {suffix} file of arrays ({error}). {why}"
    ) from error


def _read_shards(index):
  """Returns the arrays of all files that an index lists; strict."""
  try:
    with open(index, encoding="utf-8") as f:
      where = json.load(f)["weight_map"]
    files = sorted(set(where.values()))
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    raise ValueError(
      f"{index!r} is not a readable index of safetensors files: expected JSON "
      "with a 'weight_map' of names to files. It may be truncated."
    ) from error
  flat = {}
  for name in files:
    file = os.path.join(os.path.dirname(index), os.path.basename(name))
    if not os.path.isfile(file):
      raise FileNotFoundError(
        f"{index!r} lists {len(files)} files, of which {name!r} is missing. "
        "Copy it as well."
      )
    flat |= _read_file(file)
  if differ := sorted(flat.keys() ^ where.keys()):
    raise ValueError(
      f"{index!r} and its files do not have the same arrays: "
      f"{', '.join(differ[:4])}. They may be of two checkpoints."
    )
  return flat


def _read_npz(path):
  with (
    open(path, "rb") as f,
    np.lib.npyio.NpzFile(f, allow_pickle=False) as npz,
  ):
    arrays = {name: npz[name] for name in npz}
  if wrong := [k for k, x in arrays.items() if not isinstance(x, np.ndarray)]:
    raise ValueError(f"{wrong[0]!r} in it is no array of NumPy's")
  return {name: _recover_bfloat16(x) for name, x in arrays.items()}


def _recover_bfloat16(x):
  """NumPy's format does not know bfloat16 and stores two bytes of void."""
  return x.view(jnp.bfloat16) if x.dtype == "V2" else x


def _read_safetensors(path):
  try:
    return safetensors.numpy.load_file(path)
  except AttributeError as error:  # float8 and the like
    raise ValueError(f"NumPy does not know its type: {error}") from error


READERS = {".npz": _read_npz, ".safetensors": _read_safetensors}
_DAMAGE = (
  EOFError,
  ValueError,
  zipfile.BadZipFile,
  zlib.error,
  safetensors.SafetensorError,
)


def _subtree(flat, prefix):
  start = len(prefix) + 1
  return {
    name[start:]: x for name, x in flat.items() if name.startswith(f"{prefix}/")
  }
