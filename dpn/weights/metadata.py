"""What a parameter file is for, beyond the names and shapes in it.

The same arrays are another function under another GELU, epsilon or pixel range.
Our files say so in their metadata; those of timm and Hugging Face in the
config.json beside them, or by the defaults of the library.
"""

import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
import safetensors
from absl import logging

from dpn import schema
from dpn.weights import files, libraries, preprocessing
from dpn.weights.files import Location
from dpn.weights.pixels import Pixels

# Options that names and shapes of parameters give away; files are not asked.
IN_SHAPES = (
  *("num_classes", "patch_size", "width", "depth", "mlp_dim"),
  *("qkv_bias", "rep_size"),
)
# Options that only sometimes show, and the parameters that show them then.
# Where those differ and may (`dont_load`), the option may differ as well.
IN_NAMES = {
  "stem_ln": r"(batch_stats/)?stem/.*",
  "stem": r"(embedding|patch_stats)/.*",
  "stem_kw": r"embedding/.*",
  "final_norm": r"Transformer/encoder_norm/.*",
  "pool_type": r"cls|(MAPHead|SequencePool)_0/.*",
  "posemb": r"(.*/)?pos_embedding|.*/rel_posemb/.*",
  "posemb_kw": r"(.*/)?pos_embedding|.*/rel_posemb/.*",
}
# Options that neither shows and that some files do not tell; the number of
# heads is in the shapes of our arrays, but not of PyTorch's.
_MAY_BE_UNKNOWN = ("gelu", "norm", "norm_kw", "pool_type", "num_heads")
PIXELS = "pixels"
PP = "pp"
LOADER = "loader"


@dataclasses.dataclass(frozen=True)
class ModelMetadata:
  """What is known about the model that a file is for.

  Attributes:
    layout: `ours` (and big_vision's), `timm` or `hf`.
    options: of the model, as `Task.model_options` gives them; those that are
      unknown are missing.
    pixels: of the images; None if unknown.
    pp: how images are prepared, see `preprocessing`; None if unknown.
    cls_row: whether the class token has a row in the position embeddings; None
      if unknown.
    source: where this is written, for messages.
    guessed: of the options, those that are only what the library does unless
      told otherwise.
    loader: what made the pixels, as `input_pipeline.fingerprint` tells; empty
      if unknown.
  """

  layout: str
  options: Mapping[str, Any]
  pixels: Pixels | None = None
  pp: str | None = None
  cls_row: bool | None = None
  source: str = "its metadata"
  guessed: tuple[str, ...] = ()
  loader: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def metadata(
  options: Mapping[str, Any],
  pixels: Pixels | None,
  layout: str = "ours",
  *,
  pp: str | None = None,
  **more,
) -> dict[str, str]:
  """Returns what `read` finds again in a file's metadata, as JSON by name."""
  # transformers reads only files that say "pt".
  result = {"format": "pt", "layout": layout, "model": json.dumps(options)}
  result[PP] = json.dumps(pp)
  if pixels:
    result[PIXELS] = json.dumps(dataclasses.asdict(pixels))
  return result | {name: json.dumps(value) for name, value in more.items()}


def read(
  where: Location, layout: str, arch: str | None = None
) -> ModelMetadata:
  """Returns what a file, or the config.json beside it, says about its model.

  Args:
    where: of the file.
    layout: see `ModelMetadata`.
    arch: name of the model in timm, if a person knows it.

  Raises:
    FileNotFoundError: checkpoints lie outside the folder of their run.
    ValueError: the model computes something that ours cannot, or the
      description is damaged.
  """
  said = _said_inside(where.path) if where.is_file else {}
  if "model" in said and "layout" in said:  # others have a `model` too
    place = f"the metadata of {where.path}"
    if arch:
      raise ValueError(f"{place} says what its model is: leave arch out.")
    options, pixels, pp, cls_row, loader = (
      schema.parse(f"{name} in {place}", said.get(name, "null"), hint)
      for name, hint in _OURS.items()
    )
    pixels = pixels and libraries.pixels(pixels.get("mean"), pixels.get("std"))
    if layout == "ours" and PP not in said:  # of a run before pp was recorded
      pp = preprocessing.of_run(_beside(where.folder, "config.json", _Run))
    loader = loader or {}
    return ModelMetadata(layout, options, pixels, pp, cls_row, loader=loader)
  beside = functools.partial(_beside, where.folder)
  if layout == "timm":
    said = libraries.timm(beside("config.json", libraries.Timm), arch)
    return ModelMetadata(layout, **said)
  if arch:
    raise ValueError(
      f"arch={arch!r} names a model of timm; {where.path!r} has names of "
      "another library. Leave it out."
    )
  if layout == "hf":
    config = beside("config.json", libraries.HuggingFace)
    image = beside("preprocessor_config.json", libraries.HuggingFaceImage)
    return ModelMetadata(layout, **libraries.hugging_face(config, image))
  beside = beside("config.json", _Run)
  if not where.is_file and not beside:
    raise FileNotFoundError(
      f"{where.folder}/config.json is missing: checkpoints do not say what "
      "model they hold. Keep them in their run's folder."
    )
  return _from_run(beside, _loader_of_run(where.folder))


def of_tower(said: ModelMetadata, name: str) -> ModelMetadata:
  """Returns what is known about a part of a model, such as "img"."""
  return dataclasses.replace(said, options=said.options.get(name) or {})


class _Input(TypedDict, total=False):
  pp: str | None


_OURS = {
  "model": dict,
  PIXELS: libraries.PixelValues | None,
  PP: str | None,
  "cls_row": bool | None,
  LOADER: dict | None,
}


class _Start(TypedDict, total=False):
  """An entry of environment.json."""

  loader: dict | None


class _Run(TypedDict, total=False):
  """config.json of a run."""

  evals: dict[str, dict] | None
  input: _Input | None
  model: dict | None
  num_classes: int | None


class Difference(NamedTuple):
  """An option that a file's model has another value for than ours."""

  option: str
  file: Any
  model: Any

  def __str__(self):
    there, here = f"{self.file} in the file", f"{self.model} in the model"
    return f"  {self.option}: {there}, {here}"

  @property
  def remedy(self) -> str:
    """What to set in the config."""
    if self.option == PIXELS:
      return f"{self.file} in config.input.pp and config.evals"
    return f"config.model.{self.option}={self.file!r}"


def differences(
  file: ModelMetadata, options: Mapping[str, Any], pixels: Pixels | None = None
) -> list[Difference]:
  """Returns where a file's model is known to be another one than ours.

  Args:
    file: what is known about it.
    options: of our model, as `Task.model_options` gives them.
    pixels: of the images that it will see; None if unknown.
  """
  here = json.loads(json.dumps(options))  # tuples become lists, as in files
  result = [
    Difference(name, value, here[name])
    for name, value in file.options.items()
    if value is not None and name in here and value != here[name]
  ]
  if file.pixels and pixels and not file.pixels.close_to(pixels):
    result.append(Difference(PIXELS, file.pixels, pixels))
  return result


def check(
  path: str,
  file: ModelMetadata,
  differences: Sequence[Difference],
  differing: Iterable[str] = (),
  dont_check: Sequence[str] = (),
):
  """Raises ValueError if a model would make another function of a file.

  Args:
    path: of the file, for the message.
    file: what is known about it.
    differences: between both models.
    differing: parameters that differ in name or shape, and may.
    dont_check: names of options to ignore, or `pixels`.
  """
  shown = (
    option
    for option, names in IN_NAMES.items()
    if any(re.fullmatch(names, name) for name in differing)
  )
  ignored = {*IN_SHAPES, *dont_check, *shown}
  wrong = [d for d in differences if d.option not in ignored]
  if wrong:
    listed = "\n".join(map(str, wrong))
    raise ValueError(
      f"{path!r} was not made for this model, according to {file.source}:\n"
      f"{listed}\nThe parameters would compute something else. Set "
      f"{', '.join(d.remedy for d in wrong)}; or, to take them as they are, "
      f"config.model_load.dont_check={[d.option for d in wrong]}."
    )


def assumed(file: ModelMetadata, options: Mapping[str, Any]) -> list[str]:
  """Returns the options that a file leaves open, as "name=value".

  Args:
    file: what is known about it.
    options: of the model that is taken for the file's.
  """
  told = {*file.options, *(["num_heads"] if file.layout == "ours" else [])}
  unknown = [name for name in _MAY_BE_UNKNOWN if name not in told]
  if options.get("qk_norm", "none") != "none":
    unknown += ["qk_norm"] * ("qk_norm" not in told)
  if file.layout == "timm" and options.get("rep_size"):
    # Its activation is taken for tanh.
    unknown += ["rep_size"] * ("rep_size" not in told)
  return [
    f"{name}={options[name]!r}"
    for name in (*file.guessed, *unknown)
    if name in options
  ]


def _said_inside(path):
  """Returns the metadata in a file, as strings by name."""
  if path.endswith(".safetensors"):
    with safetensors.safe_open(path, "numpy") as file:
      return file.metadata() or {}
  if not path.endswith(".npz"):
    return {}
  with np.load(path, allow_pickle=False) as npz:
    if "metadata" in npz and npz["metadata"].dtype.kind == "U":
      return schema.parse(path, str(npz["metadata"]), dict[str, str])
  return {}


def _beside(folder, name, hint):
  path = os.path.join(folder, name)
  return schema.read_json(path, hint) if os.path.isfile(path) else {}


def _loader_of_run(folder):
  try:
    starts = _beside(folder, files.ENVIRONMENT, list[_Start])
  except ValueError as e:
    logging.warning("%s What loaded its images is unknown.", e)
    return {}
  return (starts and starts[-1].get(LOADER)) or {}


def _from_run(config, loader):
  """Reads the config.json of one of our runs, by its task."""
  if not ("model" in config and "input" in config):
    return ModelMetadata("ours", {}, source="nothing")
  import dpn.tasks  # a task may import this module

  options = dpn.tasks.make(config).model_options()
  pixels = preprocessing.describe(config["input"].get("pp"))["pixels"]
  pp = preprocessing.of_run(config)
  source = "the run's config.json"
  return ModelMetadata(
    "ours", options, pixels, pp, source=source, loader=loader
  )
