"""What a parameter file is for, beyond the names and shapes in it.

The same arrays compute another function under another GELU, epsilon or pixel
range. Our files state these in their metadata; for files of other libraries,
JSON files beside them do, or the library's defaults.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np

from dpn import errors
from dpn.weights import names
from dpn.weights.pixels import Pixels

# Options that names and shapes of parameters show; metadata is not consulted.
IN_SHAPES = (
  *("num_classes", "patch_size", "width", "depth", "mlp_dim"),
  *("head_dim", "qkv_bias", "rep_size"),
)
# Options that only sometimes show, and the parameters that then show them.
# Where parameters may differ (`dont_load`) and do, so may the option.
IN_NAMES = {
  "stem_ln": r"(batch_stats/)?stem/.*",
  "stem": r"(embedding|patch_stats)/.*",
  "stem_kw": r"(embedding|patch_stats)/.*",
  "final_norm": r"Transformer/encoder_norm/.*",
  "registers": r"registers",
  "prefix_norm": r".*_prefix/(scale|bias)",
  "pool_norm": r"fc_norm/.*",
  "pool_type": r"cls|(MAPHead|SequencePool)_0/.*",
  "posemb": r"(.*/)?pos_embedding|.*/rel_posemb/.*",
  "posemb_kw": r"(.*/)?pos_embedding|.*/rel_posemb/.*",
}
# Options that neither names nor shapes show and that some files do not state;
# the number of heads is in the shapes of our arrays, but not of PyTorch's.
_MAY_BE_UNKNOWN = ("gelu", "norm", "norm_kw", "pool_type", "num_heads")
PIXELS = "pixels"
PP = "pp"
LOADER = "loader"


@dataclasses.dataclass(frozen=True)
class ModelMetadata:
  """What is known about the model that a file is for.

  Attributes:
    layout: `ours` (and big_vision's), `naflex_vit` (big_vision's, too), or a
      key of `source.LIBRARIES`.
    options: of the model, as `Task.model_options` gives them; unknown options
      are missing.
    pixels: of the images; None if unknown.
    pp: how images are prepared, see `preprocessing`; None if unknown.
    cls_row: whether the class token has a row in the position embeddings; None
      if unknown.
    image_size: (rows, cols) in pixels for which it has positions, likewise.
    source: where this is written, for messages.
    guessed: names of options that are only the library's defaults.
    loader: what made the pixels, as `input_pipeline.fingerprint` tells; empty
      if unknown.
  """

  layout: str
  options: Mapping[str, Any]
  pixels: Pixels | None = None
  pp: str | None = None
  cls_row: bool | None = None
  image_size: tuple[int, int] | None = None
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
  """Returns what `source.read` finds in a file's metadata, as JSON by name."""
  # transformers reads only files that say "pt".
  result = {"format": "pt", "layout": layout, "model": json.dumps(options)}
  result[PP] = json.dumps(pp)
  if pixels:
    result[PIXELS] = json.dumps(dataclasses.asdict(pixels))
  return result | {name: json.dumps(value) for name, value in more.items()}


class PixelValues(TypedDict, total=False):
  mean: list[float] | float | None
  std: list[float] | float | None


def pixels_of(mean=None, std=None, white: float = 1.0) -> Pixels | None:
  """Returns pixels of images from 0 to `white`; None if a file lacks them."""
  if mean in (None, []) or std in (None, []):
    return None
  if np.size(mean) != np.size(std) or np.min(std) <= 0 or white <= 0:
    raise ValueError(
      f"The file's pixels have mean {mean} and std {std}; expected as many of "
      "both, and each std above 0."
    )
  return Pixels(np.divide(mean, white), np.divide(std, white))


def translate(kind: str, value: Any, known: Mapping[str, Any]) -> Any:
  """Returns our name for a value in a config.json, such as an activation."""
  errors.check_known(f"value in its config.json: the {kind}", value, known)
  return known[value]


def agree(value: Any, stated: Any) -> bool:
  """Returns whether an option is as stated, a dictionary as far as stated."""
  if isinstance(stated, dict) and isinstance(value, dict):
    return all(k in value and value[k] == x for k, x in stated.items())
  return value == stated


class Difference(NamedTuple):
  """An option whose value in a file's model differs from ours."""

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
  """Returns where a file's model is known to differ from ours.

  Ours has these `options`, as `Task.model_options` gives them, and will see
  images of these `pixels`; None if they are unknown.
  """
  here = json.loads(json.dumps(options))  # tuples become lists, as in files
  result = [
    Difference(name, value, here[name])
    for name, value in file.options.items()
    if name in here
    and not agree(here[name], value)
    # For other options that are None, names of parameters tell.
    and (value is not None or name == "cls_blocks")
    # An initial value only, and other libraries' may be in the layers before.
    and not (name == "layer_scale" and (here[name] or file.layout != "ours"))
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
  """Raises ValueError if a file would compute something else in our model.

  Parameters in `differing` may differ in name or shape; `dont_check` names
  options to ignore, or `pixels`.
  """
  shown = (
    option
    for option, pattern in IN_NAMES.items()
    if any(re.fullmatch(pattern, name) for name in differing)
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

  The values are the model's, which are taken for the file's.
  """
  unknown = [*_MAY_BE_UNKNOWN]
  if file.layout in ("ours", "naflex_vit"):
    unknown.remove("num_heads")
  told = ("qk_norm", "v_norm", "mlp", "rope", "logit_scale", "posemb_join")
  for option in (*told, "block_ln"):
    if options.get(option, value := names.PLAIN[option][0]) != value:
      unknown.append(option)
  if file.layout == "timm" and options.get("rep_size"):
    unknown.append("rep_size")  # its activation is taken for tanh
  unknown = [name for name in unknown if name not in file.options]
  return [
    f"{name}={options[name]!r}"
    for name in (*file.guessed, *unknown)
    if name in options
  ]
