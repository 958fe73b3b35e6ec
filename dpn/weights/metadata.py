"""What a parameter file's numbers were trained for, beyond names and shapes.

The same arrays are another function under another GELU, epsilon or pixel range.
Our files say so in their metadata; those of timm and Hugging Face in the
config.json beside them, or by the defaults of the library.
"""

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import safetensors

from dpn.models import norms, placement, posemb_join, vit

# The options that say what the parameters compute; others are for training.
RECORDED = (
  "patch_size",
  "width",
  "depth",
  "mlp_dim",
  "num_heads",
  "stem_ln",
  "conv_stem",
  "posemb",
  "posemb_join",
  "block_ln",
  "norm",
  "gelu",
  "qkv_bias",
  "rep_size",
  "pool_type",
)
# Those that names and shapes do not give away, made comparable.
CHECKED = {
  "gelu": str,
  "norm": lambda text: _fields(norms.make(text)),
  "block_ln": placement.get,
  "posemb_join": posemb_join.get,
  "num_heads": int,
}
PIXELS = "pixels"
_HF_GELUS = {
  "gelu": "exact",
  "gelu_python": "exact",
  "gelu_new": "tanh",
  "gelu_fast": "tanh",
  "gelu_accurate": "tanh",
  "gelu_pytorch_tanh": "tanh",
}
_TIMM_GELUS = {"gelu": "exact", "gelu_tanh": "tanh"}
# timm's models whose GELU is not exact, though their config.json lacks it.
_TIMM_TANH = (
  r"vit_((base_patch32|so400m_patch16|giantopt_patch16)_siglip"
  r"|large_patch16_siglip_(gap_)?512)"
)
_TIMM_POOLS = {"token": "tok", "avg": "gap", "map": "map"}
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclasses.dataclass(frozen=True)
class Pixels:
  """Images are (x - mean) / std, of x in [0, 1]; one number per channel."""

  mean: tuple[float, ...]
  std: tuple[float, ...]

  def __post_init__(self):
    for name in ("mean", "std"):
      values = getattr(self, name)
      values = np.broadcast_to(values, max(3, np.size(values)))
      object.__setattr__(self, name, tuple(map(float, values)))

  def of(self, channels: int) -> tuple[list[float], list[float]]:
    """Returns mean and std for that many channels.

    Raises:
      ValueError: they differ, and there are not as many.
    """
    both = [self.mean, self.std]
    if any(len(x) != channels and len(set(x)) > 1 for x in both):
      raise ValueError(
        f"The pixels' {self} are for {len(self.mean)} channels, but the "
        f"images have {channels}."
      )
    mean, std = (list((x * channels)[:channels]) for x in both)
    return mean, std

  def close_to(self, other: "Pixels") -> bool:
    return np.allclose(
      [*self.mean, *self.std], [*other.mean, *other.std], atol=1e-3
    )

  def __str__(self):
    low = [-m / s for m, s in zip(self.mean, self.std, strict=True)]
    high = [(1 - m) / s for m, s in zip(self.mean, self.std, strict=True)]
    if len(set(low)) == len(set(high)) == 1:
      return f"value_range({low[0]:g}, {high[0]:g})"
    levels = [
      tuple(round(255 * v, 3) for v in t) for t in (self.mean, self.std)
    ]
    return f"vgg_value_range({levels[0]}, {levels[1]})"


@dataclasses.dataclass(frozen=True)
class Origin:
  """What is known about a file.

  Attributes:
    layout: `ours` (and big_vision's), `timm` or `hf`.
    options: of `vit.Model`, with `num_classes`, that the parameters are for.
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


def describe(model) -> dict[str, Any]:
  """Returns the `RECORDED` options and num_classes of a `vit.Model`."""
  options = {name: getattr(model, name) for name in RECORDED}
  return {"num_classes": model.num_classes, **options}


def pixels_of(pp: str) -> Pixels | None:
  """Returns what a preprocessing string makes of pixels, None if unknown."""
  if "vgg_value_range" in pp:
    plain = re.search(r"vgg_value_range(\(\s*\))?\s*(\||$)", pp)
    return Pixels(*IMAGENET) if plain else None
  if not (match := re.search(r"value_range\(?([^|)]*)", pp)):
    return None
  values = [-1.0, 1.0]
  for i, text in enumerate(filter(None, map(str.strip, match[1].split(",")))):
    text = text.removeprefix(("vmin=", "vmax=")[min(i, 1)])
    try:
      values[i] = float(text)
    except (ValueError, IndexError):
      return None
  low, high = values
  return Pixels((-low / (high - low),), (1 / (high - low),))


def metadata(
  options: Mapping[str, Any],
  pixels: Pixels | None,
  layout: str = "ours",
  **more,
) -> dict[str, str]:
  """Returns the strings that `read` finds again in a file's metadata.

  Args:
    options: see `Origin`.
    pixels: of the images, None if unknown.
    layout: see `Origin`.
    **more: further values, written as JSON.
  """
  # transformers reads only files that say "pt".
  result = {"format": "pt", "layout": layout, "model": json.dumps(options)}
  if pixels:
    result[PIXELS] = json.dumps(dataclasses.asdict(pixels))
  return result | {name: json.dumps(value) for name, value in more.items()}


def read(path: str, layout: str) -> Origin:
  """Returns what a file, or the config.json beside it, says about itself.

  Args:
    path: a readable .npz or .safetensors file.
    layout: see `Origin`.

  Raises:
    ValueError: the model computes something that ours cannot, or the
      description is damaged.
  """
  said = _said_inside(path)
  if "model" in said and "layout" in said:  # others have a `model` too
    return _from_metadata(path, layout, said)
  beside = _read_json(os.path.join(os.path.dirname(path), "config.json"))
  if layout == "timm":
    return _from_timm(beside)
  if layout == "hf":
    image = _read_json(
      os.path.join(os.path.dirname(path), "preprocessor_config.json")
    )
    return _from_hf(beside, image)
  return _from_run(beside)


def read_run(workdir: str) -> Origin:
  """Returns what the config.json of one of our runs says.

  Raises:
    FileNotFoundError: there is none.
  """
  path = os.path.join(workdir, "config.json")
  if not os.path.isfile(path):
    raise FileNotFoundError(
      f"{path} is missing: checkpoints do not say what model they hold. Keep "
      "them in their run's folder."
    )
  return _from_run(_read_json(path))


def check(
  path: str,
  origin: Origin,
  model,
  *,
  pixels: Pixels | None = None,
  dont_check: Sequence[str] = (),
):
  """Raises ValueError if `model` would make another function of the file.

  Args:
    path: of the file, for the message.
    origin: of the file.
    model: as `vit.Model` makes it.
    pixels: of the images that the model will see; None if unknown.
    dont_check: names of options to ignore, or `pixels`.
  """
  rows = []
  for name, comparable in CHECKED.items():
    there, here = origin.options.get(name), getattr(model, name)
    if there is not None and comparable(there) != comparable(here):
      rows.append((name, there, here, f"config.model.{name}={there!r}"))
  there, here = origin.options.get("pool_type"), model.pool_type
  same_names = [("gap", "0"), ("0", "gap")]
  if origin.layout == "timm":  # averages patches beside a class token, too
    same_names.append(("gap", "tok"))
  if (there, here) in same_names:
    rows.append(("pool_type", there, here, f"config.model.pool_type={there!r}"))
  there, here = origin.options.get("stem_ln", "none"), model.stem_ln
  if "none" not in (there, here) and there != here:
    rows.append(("stem_ln", there, here, f"config.model.stem_ln={there!r}"))
  if origin.pixels and pixels and not origin.pixels.close_to(pixels):
    fix = f"{origin.pixels} in config.input.pp and config.evals"
    rows.append((PIXELS, origin.pixels, pixels, fix))
  rows = [row for row in rows if row[0] not in dont_check]
  if not rows:
    return
  differences = "\n".join(
    f"  {name}: {there} in the file, {here} in the model"
    for name, there, here, _ in rows
  )
  raise ValueError(
    f"{path!r} was not made for this model, according to {origin.source}:\n"
    f"{differences}\nThe parameters would compute something else. Set "
    f"{', '.join(fix for *_, fix in rows)}; or, to take them as they are, "
    f"model_load.dont_check={[name for name, *_ in rows]}."
  )


def _fields(module):
  ignored = ("parent", "name", "layout", "dtype")
  values = {
    f.name: getattr(module, f.name)
    for f in dataclasses.fields(module)
    if f.name not in ignored
  }
  return type(module), values


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
    value = json.loads(text)
  except json.JSONDecodeError as error:
    raise ValueError(f"{path!r}: expected JSON in it, {error}.") from error
  return value


def _read_json(path):
  if not os.path.isfile(path):
    return {}
  with open(path, encoding="utf-8") as file:
    value = _parse(path, file.read())
  return value if isinstance(value, dict) else {}


def _from_metadata(path, layout, said):
  where = f"the metadata of {path!r}"
  options = _parse(where, said["model"])
  pixels = _parse(where, said[PIXELS]) if PIXELS in said else None
  row = _parse(where, said["cls_row"]) if "cls_row" in said else None
  return Origin(layout, options, pixels and Pixels(**pixels), row)


def _from_run(config):
  """Reads the config.json of one of our runs."""
  ours = "model" in config and "input" in config
  if not ours or config.get("task", "classification") != "classification":
    return Origin("ours", {}, source="nothing")
  model = vit.Model(config.get("num_classes"), **config["model"])
  pixels = pixels_of(config["input"].get("pp") or "")
  return Origin("ours", describe(model), pixels, source="the run's config.json")


def _from_timm(config):
  args = config.get("model_args", {})
  name = str(config.get("architecture", ""))
  tanh = re.match(_TIMM_TANH, name)
  act = args.get("act_layer") or ("gelu_tanh" if tanh else "gelu")
  pool = args.get("global_pool") or config.get("global_pool") or None
  if pool and pool not in _TIMM_POOLS:
    raise ValueError(
      f"The file's model pools by {pool!r}, according to its config.json; ours "
      f"has {', '.join(_TIMM_POOLS)}."
    )
  options = {
    "gelu": _gelu(act, _TIMM_GELUS),
    "norm": "layernorm,eps=1e-06",
    "num_heads": args.get("num_heads"),
    "pool_type": _TIMM_POOLS.get(pool),
  }
  image = config.get("pretrained_cfg", config)
  pixels = None
  if "mean" in image and "std" in image:
    pixels = Pixels(tuple(image["mean"]), tuple(image["std"]))
  no_embed_class = args.get("no_embed_class")
  return Origin(
    "timm",
    options,
    pixels,
    None if no_embed_class is None else not no_embed_class,
    "its config.json" if config else "timm's defaults (it has no config.json)",
  )


def _from_hf(config, image):
  eps = config.get("layer_norm_eps", 1e-12)
  if (act := config.get("pooler_act", "tanh")) != "tanh":
    raise ValueError(
      f"The file's model has the activation {act!r} behind its pooler, "
      "according to its config.json; ours has tanh."
    )
  options = {
    "gelu": _gelu(config.get("hidden_act", "gelu"), _HF_GELUS),
    "norm": f"layernorm,eps={eps:g}",
    "num_heads": config.get("num_attention_heads"),
  }
  pixels = None
  if image.get("do_normalize") is False:
    pixels = Pixels((0.0,), (1.0,))
  elif image.get("image_mean") and image.get("image_std"):
    pixels = Pixels(tuple(image["image_mean"]), tuple(image["image_std"]))
  return Origin(
    "hf",
    options,
    pixels,
    True,
    "its config.json"
    if config
    else "the defaults of transformers (it has no config.json)",
  )


def _gelu(act, known):
  if act not in known:
    raise ValueError(
      f"The file's model has the activation {act!r}; ours has GELU, exact or "
      f"approximated by tanh ({', '.join(known)})."
    )
  return known[act]
