"""Finds parameters and reads their arrays by name. Never opens a pickle."""

import dataclasses
import json
import os
import re
import zlib
from collections.abc import Mapping
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jax.experimental import multihost_utils

from dpn import atomic, damage, errors, paths, schema, trees
from dpn.weights import hub

Flat = dict[str, Any]

STATISTICS = "batch_stats"
CHECKPOINTS = "checkpoints"  # the folder in a run's folder
ENVIRONMENT = "environment.json"  # what each start of a run was made by
_CRC = "crc32"  # of the header without this key, and of the numbers
_INDEX = "model.safetensors.index.json"
# What a folder may hold: a run's parameters; or parameters of Hugging Face or
# timm, in one file or in several.
FILES_IN_FOLDERS = ("params.safetensors", "model.safetensors", _INDEX)
PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".pickle", ".tar")


class Index(TypedDict):
  """The JSON index of a checkpoint that consists of several files."""

  weight_map: dict[str, str]  # from arrays to files


class Done(TypedDict, total=False):
  """done.json of a run."""

  step: int
  metrics_crc32: str  # of metrics.jsonl
  seconds: float | None
  core_hours: float | None
  images_per_sec: float | None
  mfu: float | None
  metrics: dict[str, float]
  lost_rows: int
  damaged: list[str]
  extended_at: list[int]  # steps at which the run had been done before


@dataclasses.dataclass(frozen=True)
class Location:
  """Where the parameters are that a path stands for.

  Attributes:
    path: of a parameter file, or of a run's folder of checkpoints.
    is_file: whether `path` is a file.
    subtree: the part of the file to read; None: all.
    step: the step of the checkpoint to read; None: the latest.
  """

  path: str
  is_file: bool = True
  subtree: str | None = None
  step: int | None = None

  @property
  def folder(self) -> str:
    """The folder with the config.json of the model, if there is one."""
    return os.path.dirname(os.path.abspath(self.path))


def locate(path: str) -> Location:
  """Returns where the parameters are that a path stands for.

  Args:
    path: the folder of a run (its params.safetensors, or else its latest
      checkpoint), its folder of checkpoints or one of them
      ("run/checkpoints/1000"), a folder as timm and Hugging Face write it, or
      an .npz or .safetensors file. A suffix ":img" picks a subtree of a file.
      If nothing is there, a name on the Hugging Face hub, see `hub.fetch`.

  Raises:
    FileNotFoundError: there is nothing, or no parameters in it.
    ValueError: the parameters are pickled.
  """
  match = re.fullmatch(r"(.+(\.\w+))(?::([^:]+))?", path)
  file, suffix, subtree = match.groups() if match else (path, "", None)
  problem = f"There is no {file!r}"
  if subtree and os.path.isdir(file):
    problem = f"{path!r}: a part, as {subtree!r}, is of a file, not of a folder"
  pickles = [path] if suffix in PICKLES else []
  if os.path.isdir(path):
    files = [os.path.join(path, name) for name in FILES_IN_FOLDERS]
    if found := [file for file in files if os.path.isfile(file)]:
      return Location(found[0])
    for folder in (os.path.join(path, CHECKPOINTS), path):
      if _has_checkpoints(folder):
        return Location(folder, is_file=False)
    problem = f"The folder {path!r} has no {' or '.join(FILES_IN_FOLDERS)}"
    files = [os.path.join(path, name) for name in os.listdir(path)]
    pickles = sorted(file for file in files if file.endswith(PICKLES))
  elif os.path.isfile(file):
    if suffix in READERS or file.endswith(_INDEX):
      return Location(file, subtree=subtree)
    problem = f"{file!r} has no known format"
  parent, last = os.path.split(os.path.normpath(path))
  if last.isdigit() and _has_checkpoints(parent or "."):
    return Location(parent or ".", is_file=False, step=int(last))
  if pickles:
    new = os.path.join(os.path.dirname(pickles[0]), "model.safetensors")
    raise ValueError(
      f"{pickles[0]!r} is a pickle, which can run any code and is never opened "
      "here. If you trust it, save it again: safetensors.torch.save_file("
      f"torch.load({pickles[0]!r}, weights_only=True), {new!r})."
    )
  try:
    if downloaded := hub.fetch(path):
      return locate(downloaded)
    unavailable = ""
  except FileNotFoundError as error:
    unavailable = f" {error}"
  raise FileNotFoundError(
    f"{problem}. Expected the folder of a run, one of its checkpoints "
    f"('run/{CHECKPOINTS}/1000'), a folder of timm or Hugging Face, or a "
    f"parameter file ({' or '.join(READERS)}, with ':<subtree>' behind it if "
    "need be), or a name on the Hugging Face hub. From a bucket nothing is "
    f"downloaded: copy it.{unavailable}"
  )


def _has_checkpoints(folder):
  return os.path.isdir(folder) and any(map(str.isdigit, os.listdir(folder)))


def read(where: Location) -> tuple[Flat, int | None]:
  """Returns the arrays of a file by name, and the step of the run it is from.

  From big_vision's training states, only the parameters and running statistics.
  The step is None if it is unknown.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the format or the subtree is unknown, or the file is damaged.
  """
  file = where.path
  flat = _read_shards(file) if file.endswith(_INDEX) else _read_file(file)
  if not flat:
    raise ValueError(f"{file!r} is empty: there are no arrays in it.")
  for wrapper in ("params", "opt/target"):
    if any(name.startswith(f"{wrapper}/") for name in flat):
      flat = subtree(flat, wrapper, statistics="")
      break
  if where.subtree:
    inner = subtree(flat, where.subtree.strip("/"))
    if not inner:
      known = {name.partition("/")[0] for name in flat if "/" in name}
      message = errors.unknown("subtree", where.subtree, known)
      raise ValueError(f"{file!r}: {message}")
    flat = inner
  done, step = os.path.join(where.folder, "done.json"), None
  if os.path.basename(file) == FILES_IN_FOLDERS[0] and os.path.isfile(done):
    step = schema.read_json(done, Done).get("step")
  return flat, step


def read_metadata(file: str) -> dict[str, str]:
  """Returns the metadata in a parameter file: JSON by name."""
  if file.endswith(".safetensors"):
    with damage.reading(file), safetensors.safe_open(file, "numpy") as f:
      return f.metadata() or {}
  if not file.endswith(".npz"):
    return {}
  with damage.reading(file), damage.open_npz(file, times=100) as npz:
    if "metadata" in npz and npz["metadata"].dtype.kind == "U":
      return schema.parse(file, str(npz["metadata"]), dict[str, str])
  return {}


def to_bytes(
  flat: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> bytes:
  """Returns a safetensors file, equal for equal arrays and metadata.

  The library's own order of metadata differs between processes.
  """
  if not metadata:
    return safetensors.numpy.save(dict(flat))
  data = safetensors.numpy.save(dict(flat), dict(metadata))
  start = 8 + int.from_bytes(data[:8], "little")
  header = json.loads(data[8:start])
  header["__metadata__"] = dict(sorted(metadata.items()))
  header["__metadata__"].pop(_CRC, None)
  rest = memoryview(data)[start:]
  header["__metadata__"][_CRC] = _checksum(header, rest)
  text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
  header = text.ljust(-(-len(text) // 8) * 8)
  return b"".join([len(header).to_bytes(8, "little"), header, rest])


def save_params(
  path: str,
  params: Any,
  batch_stats: Any = None,
  metadata: Mapping[str, str] | None = None,
):
  """Writes parameters as float32 safetensors, names joined by "/".

  Running statistics are called "batch_stats/<name>". In a run of many processes
  all must call this; the first one writes.
  """
  flat = {}
  variables = {"params": params, STATISTICS: batch_stats or {}}
  for name, leaf in flatten(variables).items():
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
      leaf = multihost_utils.process_allgather(leaf, tiled=True)
    flat[name] = np.asarray(leaf, np.float32, order="C")  # keeps ()
  if jax.process_index() == 0:
    atomic.write(path, to_bytes(flat, metadata))


def _checksum(header, numbers) -> str:
  said = json.dumps(header, sort_keys=True).encode()
  return f"{zlib.crc32(numbers, zlib.crc32(said)):08x}"


def flatten(variables: Mapping[str, Any]) -> Flat:
  """Returns parameters by name, running statistics by "batch_stats/<name>"."""
  stats = {STATISTICS: variables.get(STATISTICS, {})}
  return trees.flatten(variables["params"]) | trees.flatten(stats)


def unflatten(flat: Flat) -> dict[str, Any]:
  """Returns {"params": …} and, if there are any, {"batch_stats": …}."""
  tree = trees.unflatten(flat)
  stats = tree.pop(STATISTICS, None)
  return {"params": tree} | ({STATISTICS: stats} if stats else {})


def subtree(flat: Flat, name: str, statistics: str | None = None) -> Flat:
  """Returns a part of the parameters and of the running statistics.

  Args:
    flat: arrays by name.
    name: of the part, such as "img".
    statistics: the part's name within "batch_stats"; None: `name`.
  """
  stats = f"{STATISTICS}/{name if statistics is None else statistics}"
  return _below(flat, name) | {
    f"{STATISTICS}/{k}": x for k, x in _below(flat, stats.strip("/")).items()
  }


def _below(flat, parent):
  start = f"{parent}/"
  return {k[len(start) :]: x for k, x in flat.items() if k.startswith(start)}


def _read_file(file):
  suffix = os.path.splitext(file)[1]
  try:
    return READERS[suffix](file)
  except OSError:
    raise
  except Exception as error:  # libraries that read files do not say which
    raise ValueError(
      f"{file!r} is not a readable {suffix} file of arrays ({error}). It may "
      "be truncated, or hold pickles, which are never opened here."
    ) from error


def _read_shards(index):
  """Returns the arrays of all files that an index lists; strict."""
  where = schema.read_json(index, Index)["weight_map"]
  files = sorted(set(where.values()))
  flat = {}
  for name in files:
    file = paths.join(os.path.dirname(os.path.abspath(index)), name)
    if os.path.splitext(name)[1] not in READERS:
      raise ValueError(
        f"{index!r} lists {name!r}. Expected files in {' or '.join(READERS)}; "
        "others may be pickles, which can run any code."
      )
    if not os.path.isfile(file):
      raise FileNotFoundError(
        f"{index!r} lists {len(files)} files, of which {name!r} is missing. "
        "Copy it as well."
      )
    arrays = _read_file(file)
    if differ := arrays.keys() ^ {k for k, at in where.items() if at == name}:
      raise ValueError(
        f"{index!r} and {name!r} do not have the same arrays: "
        f"{', '.join(sorted(differ)[:4])}. They may be of two checkpoints."
      )
    flat |= arrays
  return flat


def _read_npz(path):
  with damage.open_npz(path, times=100) as npz:
    arrays = {name: npz[name] for name in npz}
  for name, x in arrays.items():
    kind = getattr(x, "dtype", np.dtype("O"))  # else no array of NumPy's
    if kind.kind not in "biuf" and kind != "V2" and name != "metadata":
      raise ValueError(f"{name!r} in it holds no real numbers, but {kind}")
  # NumPy's format does not know bfloat16 and stores two bytes of void.
  return {
    name: x.view(jnp.bfloat16) if x.dtype == "V2" else x
    for name, x in arrays.items()
  }


def _read_safetensors(path):
  try:
    arrays = safetensors.numpy.load_file(path)
  except AttributeError as error:  # float8 and the like
    raise ValueError(f"NumPy does not know its type: {error}") from error
  raw = np.memmap(path, mode="r")
  start = 8 + int.from_bytes(raw[:8].tobytes(), "little")
  header = json.loads(raw[8:start].tobytes())
  told = header.get("__metadata__", {}).pop(_CRC, None)
  if told is not None and told != (found := _checksum(header, raw[start:])):
    raise ValueError(
      f"its checksum is {found}, expected {told}: something in it has changed. "
      f"If that was done on purpose, take {_CRC!r} out of its metadata"
    )
  return arrays


READERS = {".npz": _read_npz, ".safetensors": _read_safetensors}
