"""What a parameter file is for, beyond the names and shapes in it.

The same arrays are another function under another GELU, epsilon or pixel range.
Our files say so in their metadata; those of timm and Hugging Face in the
config.json beside them, or by the defaults of the library.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors

from dpn.weights import pixels as pixel_values
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
  "stem_ln": r"stem/.*",
  "stem": r"(embedding|patch_stats)/.*",
  "stem_kw": r"embedding/.*",
  "pool_type": r"cls|(MAPHead|SequencePool)_0/.*",
  "posemb": r"pos_embedding|.*/rel_posemb/.*",
  "posemb_kw": r"pos_embedding|.*/rel_posemb/.*",
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
# What timm's architectures have although their config.json lacks it.
_TIMM_TANH = (
  r"vit_((base_patch32|so400m_patch16|giantopt_patch16)_siglip"
  r"|large_patch16_siglip_(gap_)?512)"
)
_TIMM_HEADS = {"vit_base_patch16_gap_224": 16}


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
  """

  layout: str
  options: Mapping[str, Any]
  pixels: Pixels | None = None
  cls_row: bool | None = None
  source: str = "its metadata"


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


def read(where: Location, layout: str) -> ModelMetadata:
  """Returns what a file, or the config.json beside it, says about its model.

  Raises:
    FileNotFoundError: checkpoints lie outside the folder of their run.
    ValueError: the model computes something that ours cannot, or the
      description is damaged.
  """
  said = _said_inside(where.path) if where.is_file else {}
  if "model" in said and "layout" in said:  # others have a `model` too
    options, pixels, cls_row = (
      _parse(f"the metadata of {where.path}", said.get(name, "null"))
      for name in ("model", PIXELS, "cls_row")
    )
    return ModelMetadata(layout, options, pixels and Pixels(**pixels), cls_row)
  beside = _read_json(where.folder, "config.json")
  if layout == "timm":
    return _from_timm(beside)
  if layout == "hf":
    return _from_hf(
      beside, _read_json(where.folder, "preprocessor_config.json")
    )
  if not where.is_file and not beside:
    raise FileNotFoundError(
      f"{where.folder}/config.json is missing: checkpoints do not say what "
      "model they hold. Keep them in their run's folder."
    )
  return _from_run(beside)


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
  return [f"{name}={options[name]!r}" for name in unknown if name in options]


def _said_inside(path):
  """Returns the metadata in a file, as strings by name."""
  if path.endswith(".safetensors"):
    with safetensors.safe_open(path, "numpy") as file:
      return file.metadata() or {}
  if not path.endswith(".npz"):
    return {}
  with np.load(path, allow_pickle=False) as npz:
    if "metadata" in npz and npz["metadata"].dtype.kind == "U":
      return _parse(path, str(npz["metadata"]))
  return {}


def _parse(path, text):
  try:
    return json.loads(text)
  except json.JSONDecodeError as error:
    raise ValueError(f"{path!r}: expected JSON in it, {error}.") from error


def _read_json(folder, name):
  path = os.path.join(folder, name)
  if not os.path.isfile(path):
    return {}
  with open(path, encoding="utf-8") as file:
    return _parse(path, file.read())


def _from_run(config):
  """Reads the config.json of one of our runs, by its task."""
  if not ("model" in config and "input" in config):
    return ModelMetadata("ours", {}, source="nothing")
  import dpn.tasks  # a task may import this module

  options = dpn.tasks.make(config).model_options()
  pixels = pixel_values.of_pp(config["input"].get("pp") or "")
  return ModelMetadata("ours", options, pixels, source="the run's config.json")


def _from_timm(config):
  args = config.get("model_args", {})
  name = str(config.get("architecture", ""))
  tanh = re.match(_TIMM_TANH, name)
  act = args.get("act_layer") or ("gelu_tanh" if tanh else "gelu")
  pool = args.get("global_pool", config.get("global_pool"))
  if pool is not None and pool not in _TIMM_POOLS:
    raise ValueError(
      f"The file's model pools by {pool!r}, according to its config.json; ours "
      f"has {', '.join(map(repr, _TIMM_POOLS))}."
    )
  options = {
    "gelu": _gelu(act, _TIMM_GELUS),
    "norm": "layernorm",
    "norm_kw": {"eps": 1e-6},
    "num_heads": args.get("num_heads", _TIMM_HEADS.get(name)),
    "pool_type": _TIMM_POOLS.get(pool),
  }
  image = config.get("pretrained_cfg", config)
  no_embed_class = args.get("no_embed_class")
  return ModelMetadata(
    "timm",
    _known(options),
    _pixels(image.get("mean"), image.get("std")),
    None if no_embed_class is None else not no_embed_class,
    "its config.json" if config else "timm's defaults (it has no config.json)",
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
  source = "its config.json"
  if not config:
    source = "the defaults of transformers (it has no config.json)"
  return ModelMetadata("hf", _known(options), _pixels(mean, std), True, source)


def _known(options):
  return {name: value for name, value in options.items() if value is not None}


def _pixels(mean, std):
  return Pixels(mean, std) if mean and std else None


def _gelu(act, known):
  if act not in known:
    raise ValueError(
      f"The file's model has the activation {act!r}; ours has GELU, exact or "
      f"approximated by tanh ({', '.join(known)})."
    )
  return known[act]
