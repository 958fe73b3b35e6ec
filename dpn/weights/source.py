"""What a path holds: arrays, and what is known about their model."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from absl import logging

from dpn import registry, schema
from dpn.models import vit
from dpn.weights import (
  big_vision,
  checkpoint,
  files,
  hf_vit,
  metadata,
  preprocessing,
  timm_vit,
  vit_pytorch,
)
from dpn.weights.metadata import ModelMetadata

LIBRARIES = {
  "timm": timm_vit.NAMES,
  "hf": hf_vit.NAMES,
  "vit_pytorch": vit_pytorch.VIT,
  "simple_vit": vit_pytorch.SIMPLE,
}
OptionsOfRun = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """What a path holds, not yet converted.

  Attributes:
    path: as given.
    arrays: by the names in the file.
    metadata: of the model.
    step: of the run, None if unknown.
  """

  path: str
  arrays: files.Flat
  metadata: ModelMetadata
  step: int | None = None

  def tower(self, name: str) -> "Checkpoint":
    """Returns the part that is a model of its own, such as "img"."""
    flat = files.subtree(self.arrays, name)
    if not flat:
      raise ValueError(
        f"{self.path!r} has no {name}/…: it does not hold all towers. Load "
        f"them one by one: model_init={{{name!r}: {self.path!r}}}."
      )
    said = _of_tower(self.metadata, name)
    if big_vision.is_naflex(flat):  # whose positions are resized differently
      said = dataclasses.replace(said, layout="naflex_vit")
    return Checkpoint(f"{self.path}:{name}", flat, said, self.step)


class _Input(TypedDict, total=False):
  pp: str | None


class _Start(TypedDict, total=False):
  """An entry of environment.json."""

  loader: dict | None


class _Run(TypedDict, total=False):
  """config.json of a run."""

  evals: dict[str, dict] | None
  input: _Input | None
  model: dict | None
  num_classes: int | None


# What our own files say in their metadata.
_OURS = {
  "model": dict,
  metadata.PIXELS: metadata.PixelValues | None,
  metadata.PP: str | None,
  "cls_row": bool | None,
  metadata.LOADER: dict | None,
}


def vit_options(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the options of a run's Vision Transformer, from its config.json."""
  name = config.get("model_name") or "vit"
  if name not in ("vit", "dpn.models.vit:Model"):
    raise ValueError(
      f"The run's config.json has model_name={name!r}, which only its task "
      "knows. Finish the run, whose params.safetensors says what it holds."
    )
  model = vit.Model(config.get("num_classes"), **(config.get("model") or {}))
  return vit.options(model)


def read(
  path: str, arch: str | None = None, options_of_run: OptionsOfRun = vit_options
) -> Checkpoint:
  """Returns the parameters that a path stands for, and their metadata.

  Args:
    path: see `files.locate`.
    arch: name of the model in timm, such as "vit_base_patch16_siglip_224", for
      files that do not say what they are.
    options_of_run: maps a run's config to its model's options, for checkpoints,
      which do not state them; the default knows our `vit` alone.

  Raises:
    FileNotFoundError, ValueError, OSError: see `files.read`.
    ValueError: names of an unknown library; or a model that ours cannot be,
      or that is not that of `arch`.
  """
  where = files.locate(path)
  arrays, step = read_arrays(where)
  arrays = _unwrapped(arrays)
  layout = _layout(path, arrays)
  said = read_metadata(where, layout, arch, options_of_run, arrays)
  if where.subtree:
    said = _of_tower(said, where.subtree)
  if arch:
    timm_vit.check(arch, arrays)
  return Checkpoint(path, arrays, said, step)


def read_arrays(where: files.Location) -> tuple[files.Flat, int | None]:
  """Returns the arrays of a file or checkpoint by name, and the run's step."""
  if where.is_file:
    return files.read(where)
  saved = checkpoint.Checkpointer(where.path, read_only=True)
  with contextlib.closing(saved):
    variables, step = saved.restore_variables(where.step)
  return files.flatten(variables), step


def _unwrapped(arrays):
  """Returns arrays without the prefix of wrappers in each name: "module."."""
  inner = arrays
  while not any(library.matches(inner) for library in LIBRARIES.values()):
    heads = {name.partition(".")[0] for name in inner}
    if len(heads) != 1 or heads & inner.keys():
      return arrays
    inner = {name.partition(".")[2]: x for name, x in inner.items()}
  return inner


def _layout(path, arrays) -> str:
  """Returns the layout, see `ModelMetadata`."""
  for key, library in LIBRARIES.items():
    if library.matches(arrays):
      return key
  if any("." in name for name in arrays) and not any("/" in x for x in arrays):
    signs = [f"{names.title} ({names.sign})" for names in LIBRARIES.values()]
    raise ValueError(
      f"{path!r} has an unknown layout: {', '.join(sorted(arrays)[:4])}, … "
      "Expected a Vision Transformer of this code base, of big_vision, of "
      f"{' or of '.join(signs)}."
    )
  return "naflex_vit" if big_vision.is_naflex(arrays) else "ours"


def read_metadata(
  where: files.Location,
  layout: str,
  arch: str | None = None,
  options_of_run: OptionsOfRun = vit_options,
  arrays: files.Flat | None = None,
) -> ModelMetadata:
  """Returns what a file, or the JSON beside it, says about its model.

  Arguments as in `read`; `layout` is one of `ModelMetadata`, and `arrays` are
  those in the file, for layouts that tell more by them.

  Raises:
    FileNotFoundError: checkpoints lie outside the folder of their run.
    ValueError: the model computes something that ours cannot, or the
      description is damaged.
  """

  def beside(name, hint):
    path = os.path.join(where.folder, name)
    return schema.read_json(path, hint) if os.path.isfile(path) else {}

  said = files.read_metadata(where.path) if where.is_file else {}
  if "model" in said and "layout" in said:  # others have a `model` too
    place = f"the metadata of {where.path}"
    if arch:
      raise ValueError(f"{place} says what its model is: leave arch out.")
    options, values, pp, cls_row, loader = (
      schema.parse(f"{name} in {place}", said.get(name, "null"), hint)
      for name, hint in _OURS.items()
    )
    values = metadata.pixels_of(**values) if values else None
    # Runs did not always record it.
    if layout == "ours" and metadata.PP not in said:
      pp = preprocessing.of_run(beside("config.json", _Run))
    loader = loader or {}
    return ModelMetadata(layout, options, values, pp, cls_row, loader=loader)
  if layout == "timm":
    config = beside("config.json", timm_vit.Config)
    return timm_vit.describe(config, arch, arrays or {})
  if arch:
    raise ValueError(
      f"arch={arch!r} names a model of timm; {where.path!r} has names of "
      "another library. Leave it out."
    )
  if layout in vit_pytorch.SUPPORTED:
    return vit_pytorch.describe(arrays or {}, layout)
  if layout == "hf":
    image = beside("preprocessor_config.json", hf_vit.ImageConfig)
    return hf_vit.describe(beside("config.json", hf_vit.Config), image)
  return _of_run(where, layout, options_of_run, beside)


def _of_run(where, layout, options_of_run, beside):
  """Returns what the config.json of a run says, if it is one."""
  config = beside("config.json", _Run)
  if not where.is_file and not config:
    raise FileNotFoundError(
      f"{where.folder}/config.json is missing: checkpoints do not say what "
      "model they hold. Keep them in their run's folder."
    )
  if not ("model" in config and "input" in config):
    return ModelMetadata(layout, {}, source="nothing")
  of_model = {k: v for k, v in config.items() if k not in ("input", "evals")}
  registry.check_names(f"{where.folder}/config.json", of_model)
  return ModelMetadata(
    "ours",
    options_of_run(config),
    preprocessing.describe(config["input"].get("pp"))["pixels"],
    preprocessing.of_run(config),
    source="the run's config.json",
    loader=_loader_of_run(beside),
  )


def _loader_of_run(beside):
  try:
    starts = beside(files.ENVIRONMENT, list[_Start])
  except ValueError as e:
    logging.warning("%s What loaded its images is unknown.", e)
    return {}
  return (starts and starts[-1].get(metadata.LOADER)) or {}


def _of_tower(said, name):
  return dataclasses.replace(said, options=said.options.get(name) or {})
