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

from dpn import schema
from dpn.weights import pixels as pixel_values
from dpn.weights import timm_models
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
_HF_TANH = ("gelu_new", "gelu_fast", "gelu_accurate", "gelu_pytorch_tanh")
_HF_GELUS = {
  **dict.fromkeys(["gelu", "gelu_python"], "exact"),
  **dict.fromkeys(_HF_TANH, "tanh"),
}
_TIMM_GELUS = {"gelu": "exact", "gelu_tanh": "tanh"}
_TIMM_POOLS = {"token": "tok", "avg": "gap", "map": "map", "": "none"}
# Arguments of timm's class that make other functions of equal names.
_TIMM_OTHERS = ("norm_layer", "block_fn", "mlp_layer", "attn_layer")
_PRE = {"sa": "pre", "mlp": "pre", "post": "branch"}


@dataclasses.dataclass(frozen=True)
class ModelMetadata:
  """What is known about the model that a file is for.

  Attributes:
    layout: `ours` (and big_vision's), `timm` or `hf`.
    options: of the model, as `Task.model_options` gives them; those that are
      unknown are missing.
    pixels: of the images; None if unknown.
    cls_row: whether the class token has a row in the position embeddings; None
      if unknown.
    source: where this is written, for messages.
    guessed: of the options, those that are only what the library does unless
      told otherwise.
  """

  layout: str
  options: Mapping[str, Any]
  pixels: Pixels | None = None
  cls_row: bool | None = None
  source: str = "its metadata"
  guessed: tuple[str, ...] = ()


def metadata(
  options: Mapping[str, Any],
  pixels: Pixels | None,
  layout: str = "ours",
  **more,
) -> dict[str, str]:
  """Returns what `read` finds again in a file's metadata, as JSON by name."""
  # transformers reads only files that say "pt".
  result = {"format": "pt", "layout": layout, "model": json.dumps(options)}
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
    options, pixels, cls_row = (
      schema.parse(f"{name} in {place}", said.get(name, "null"), hint)
      for name, hint in _OURS.items()
    )
    pixels = pixels and _pixels(pixels.get("mean"), pixels.get("std"))
    return ModelMetadata(layout, options, pixels, cls_row)
  beside = functools.partial(_beside, where.folder)
  if layout == "timm":
    return _from_timm(beside("config.json", _Timm), arch)
  if arch:
    raise ValueError(
      f"arch={arch!r} names a model of timm; {where.path!r} has names of "
      "another library. Leave it out."
    )
  if layout == "hf":
    image = beside("preprocessor_config.json", _HuggingFaceImage)
    return _from_hf(beside("config.json", _HuggingFace), image)
  beside = beside("config.json", _Run)
  if not where.is_file and not beside:
    raise FileNotFoundError(
      f"{where.folder}/config.json is missing: checkpoints do not say what "
      "model they hold. Keep them in their run's folder."
    )
  return _from_run(beside)


class _PixelValues(TypedDict, total=False):
  mean: list[float] | float | None
  std: list[float] | float | None


class _TimmArgs(TypedDict, total=False):
  act_layer: str | None
  global_pool: str | None
  no_embed_class: bool | None
  num_heads: int


class _Timm(_PixelValues, total=False):
  """config.json of timm."""

  architecture: str
  global_pool: str | None
  model_args: _TimmArgs
  pretrained_cfg: _PixelValues


class _HuggingFace(TypedDict, total=False):
  """config.json of transformers."""

  hidden_act: str
  layer_norm_eps: float
  model_type: str
  num_attention_heads: int
  pooler_act: str


class _HuggingFaceImage(TypedDict, total=False):
  """preprocessor_config.json of transformers."""

  do_normalize: bool | None
  do_rescale: bool | None
  rescale_factor: float
  image_mean: list[float] | float | None
  image_std: list[float] | float | None


class _Input(TypedDict, total=False):
  pp: str | None


_OURS = {"model": dict, PIXELS: _PixelValues | None, "cls_row": bool | None}


class _Run(TypedDict, total=False):
  """config.json of a run."""

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


def _from_run(config):
  """Reads the config.json of one of our runs, by its task."""
  if not ("model" in config and "input" in config):
    return ModelMetadata("ours", {}, source="nothing")
  import dpn.tasks  # a task may import this module

  options = dpn.tasks.make(config).model_options()
  pixels = pixel_values.of_pp(config["input"].get("pp") or "")
  return ModelMetadata("ours", options, pixels, source="the run's config.json")


def _from_timm(config, arch):
  args = config.get("model_args", {})
  said = str(config.get("architecture", "")).partition(".")[0]
  if arch and said not in ("", arch.partition(".")[0]):
    raise ValueError(
      f"arch={arch!r} contradicts the file's config.json, which has {said!r}."
    )
  name = arch or said
  others = [x for x in _TIMM_OTHERS if x in args]
  if "_rpn_" in name or others:
    raise ValueError(
      "The file's model has other blocks or norms than ours, although their "
      f"arrays have the same names: {', '.join(others) or name}."
    )
  model = timm_models.find(name)
  options = {
    "gelu": "exact",
    **{"norm": "layernorm", "norm_kw": {"eps": 1e-6}},
    **{"block_ln": "placement", "block_ln_kw": _PRE},
    **(model.options if model else {}),
  }
  guessed = [] if model else ["gelu", "norm_kw", "block_ln_kw"]
  if "act_layer" in args:
    options["gelu"] = _gelu(args["act_layer"], _TIMM_GELUS)
    guessed = guessed[1:]
  if args.get("num_heads"):
    options["num_heads"] = args["num_heads"]
  pool = args.get("global_pool", config.get("global_pool"))
  if pool is not None:
    if pool not in _TIMM_POOLS:
      raise ValueError(
        f"The file's model pools by {pool!r}, according to its config.json; "
        f"ours has {', '.join(map(repr, _TIMM_POOLS))}."
      )
    options["pool_type"] = _TIMM_POOLS[pool]
  row = None if model is None else model.cls_row
  if "no_embed_class" in args:
    row = not args["no_embed_class"]
  source = "its config.json" if config else "timm's defaults"
  image = config.get("pretrained_cfg", config)
  return ModelMetadata(
    "timm",
    options,
    _pixels(image.get("mean"), image.get("std")),
    row,
    f"timm's {arch}" if arch else source,
    tuple(guessed),
  )


def _from_hf(config, image):
  if (act := config.get("pooler_act", "tanh")) != "tanh":
    raise ValueError(
      f"The file's model has the activation {act!r} behind its pooler, "
      "according to its config.json; ours has tanh."
    )
  options = {
    "gelu": _gelu(config.get("hidden_act", "gelu"), _HF_GELUS),
    "norm": "layernorm",
    "norm_kw": {"eps": config.get("layer_norm_eps", 1e-12)},
    "num_heads": config.get("num_attention_heads"),
    # I-JEPA alone has no class token.
    "pool_type": None if config.get("model_type") == "ijepa" else "tok",
  }
  mean, std = image.get("image_mean"), image.get("image_std")
  if image.get("do_normalize") is False:
    mean, std = (0.0,), (1.0,)
  # Both are of levels from 0 to 255 times a factor, ours of levels to 1.
  factor = image.get("rescale_factor", 1 / 255)
  white = 255 * (factor if image.get("do_rescale", True) else 1)
  source, guessed = "its config.json", ()
  if not config:
    source, guessed = "the defaults of transformers", ("gelu", "norm_kw")
  pixels = _pixels(mean, std, white)
  return ModelMetadata("hf", _known(options), pixels, True, source, guessed)


def _known(options):
  return {name: value for name, value in options.items() if value is not None}


def _pixels(mean, std, white=1.0):
  if not mean or not std:
    return None
  if np.size(mean) != np.size(std) or np.min(std) <= 0 or white <= 0:
    raise ValueError(
      f"The file's pixels have mean {mean} and std {std}; expected as many of "
      "both, and each std above 0."
    )
  return Pixels(np.divide(mean, white), np.divide(std, white))


def _gelu(act, known):
  if act not in known:
    raise ValueError(
      f"The file's model has the activation {act!r}; ours has GELU, exact or "
      f"approximated by tanh ({', '.join(known)})."
    )
  return known[act]
