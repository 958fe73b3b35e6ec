"""Writes a checkpoint in the layout of another library.

  python -m scripts.convert runs/dpn dpn.safetensors --to timm

SRC is a run's folder, one of its checkpoints (…/checkpoints/1000), or a
parameter file of this code base, big_vision, timm, Hugging Face or vit-pytorch:
.npz, .safetensors, or a folder with config.json and model.safetensors. Which of
these it is, is recognized.

DST is an .npz file for big_vision and naflex_vit, else a .safetensors file. For
ours, timm and hf, a name without suffix makes a folder, with a config.json for
the latter two. DST must not exist yet.

docs/checkpoints.md lists names, and what no library but this has a place for.
"""

import ast
import contextlib
import sys
from collections.abc import Mapping, Sequence

import numpy as np

import dpn.tasks
from dpn import damage, errors
from dpn.models import vit
from dpn.scripts.conversion import folder, folding
from dpn.scripts.evaluation import labels
from dpn.scripts.results import output
from dpn.weights import export, positions, preprocessing, timm_vit, vit_params
from dpn.weights import resolution as resolutions


def convert(
  source: str,
  target: str,
  to: str,
  *,
  resolution: int | None = None,
  no_embed_class: bool = False,
  extra_modules: bool = False,
  fold_norms: bool = False,
  options: Mapping[str, object] | None = None,
  arch: str | None = None,
) -> list[str]:
  """Writes `target` and returns what the user should know about it.

  The arguments are the command line's, see `main`; `options` are from --set.

  Raises:
    ValueError, OSError: the checkpoint cannot be read, converted or written.
  """
  folder.check_target(target, to)
  model = read(source, options, arch)
  if resolution is not None:
    model = resolutions.at_resolution(model, (resolution, resolution))
  if fold_norms:
    model = folding.without_norms(model)
  exported = export.export(
    model, to, no_embed_class=no_embed_class, extra_modules=extra_modules
  )
  if count := model.options["num_classes"]:
    exported = labels.added(exported, labels.read(source, count), to)
  folder.write(target, exported, to, model)
  notes = [*model.notes, *exported.notes, *_of_another_size(model)]
  return [*notes, f"Wrote {target}."]


def _of_another_size(model):
  """Returns a note if images become another size than there are positions."""
  size = preprocessing.describe(model.pp)["size"]
  patch, stem = model.patch[:2], model.options["stem"]
  if not (size and model.grid) or (
    model.grid == positions.in_patches(size, patch, stem)
  ):
    return []
  fits = size[0] == size[1] and not np.mod(size, patch).any()
  advice = f" --resolution {size[0]} does it as the source's library."
  return [
    f"Images are prepared in {size} px, but the positions are for {model.grid} "
    f"patches: each library resizes them in its own way.{advice * fits}"
  ]


def read(
  path: str,
  options: Mapping[str, object] | None = None,
  arch: str | None = None,
) -> vit_params.VitParams:
  """Returns the model of any checkpoint; see `convert`."""
  with damage.reading(path):
    return vit_params.read(path, options or {}, arch, dpn.tasks.model_options)


def of_timm() -> str:
  """Returns timm's architectures, a line each, with whether they load by name.

  Raises:
    ValueError: timm is not installed.
  """
  try:
    import timm
  except ImportError as e:
    raise ValueError("--list asks timm for its names: pip install timm") from e
  names = timm.list_models(module="vision_transformer")
  how = ["loads" if timm_vit.find(n) else "by its arrays" for n in names]
  lines = [f"{by:<14}{name}" for by, name in zip(how, names, strict=True)]
  lines.append(
    f"{how.count('loads')} of {len(names)} load by name, with all that their "
    "files do not tell. Of the others a file loads if it has no parts but "
    "ours, and what is assumed is listed; else it is refused."
  )
  return "\n".join(lines)


def parse_options(items: Sequence[str]) -> dict[str, object]:
  """Returns {"gelu": "exact", …} for items such as "gelu=exact".

  Raises:
    ValueError: on an unknown option.
  """
  options = {}
  known = vit.options(vit.Model())
  for item in items:
    key, equals, value = item.partition("=")
    if not equals:
      raise ValueError(f"--set: expected OPTION=VALUE, got {item!r}.")
    if key not in known:
      raise ValueError("--set: " + errors.unknown("model option", key, known))
    with contextlib.suppress(ValueError, SyntaxError):  # else it is text
      value = ast.literal_eval(value)
    options[key] = value
  return options


def main(argv: Sequence[str] | None = None):
  """Runs the command line; see the module."""
  parser = output.parser(__doc__)
  add = parser.add_argument
  add("source", metavar="SRC")
  add("target", metavar="DST")
  add("--to", required=True, choices=list(export.SUFFIXES))
  help_ = "resize position embeddings for images of PX × PX pixels"
  add("--resolution", type=int, metavar="PX", help=help_)
  help_ = "timm: no position for the class token (its no_embed_class=True)"
  add("--no_embed_class", action="store_true", help=help_)
  help_ = "model options that the source does not tell: num_heads=3"
  add("--set", action="append", default=[], metavar="OPTION=VALUE", help=help_)
  help_ = "write Dual PatchNorm's norms, for a model to which you add them"
  add("--extra_modules", action="store_true", help=help_)
  help_ = "put norms that are linear in evaluation into the layers after them"
  add("--fold_norms", action="store_true", help=help_)
  help_ = "timm's name of the model, where the source does not tell it"
  add("--arch", metavar="NAME", help=help_)
  output.add_trust(parser)
  add("--list", action="store_true", help="list timm's architectures")
  given = argv if argv is not None else sys.argv[1:]
  if "--list" in given:
    with output.errors_in_a_line():
      output.say(of_timm())
    return
  args = vars(parser.parse_args(given))
  del args["list"], args["trust"]  # the latter has been done
  with output.errors_in_a_line():
    options = parse_options(args.pop("set"))
    output.say("\n".join(convert(**args, options=options)))


if __name__ == "__main__":
  main()
