"""Starts a model of several towers from parameter files, as `load` does one."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from dpn import errors
from dpn.weights import files, load, metadata


def load_variables(
  path: str | load.Checkpoint | Mapping[str, str],
  variables: Mapping[str, Any],
  towers: Sequence[str],
  *,
  options: Mapping[str, Any],
  dont_load: Sequence[str] = (),
  **kw: Any,
) -> dict[str, Any]:
  """Returns `variables` of several towers with the values of parameter files.

  Args:
    path: of a file of the whole model; or those of the towers by name, where
      "image" and "text" are other names of `img` and `txt`.
    variables: see `load.load_variables`.
    towers: names of the subtrees that are models of their own.
    options: of each tower by its name, and others.
    dont_load: of what belongs to no tower.
    **kw: see `load.load_variables`. `<tower>_load_kw` are more for one of them.

  Raises:
    ValueError, OSError: see `load.load_variables`.
  """
  of_tower = {t: dict(kw.pop(f"{t}_load_kw", None) or {}) for t in towers}
  result = {name: dict(tree) for name, tree in variables.items()}
  towers = [t for t in towers if t in variables["params"]]
  if not isinstance(path, str | load.Checkpoint):
    if dont_load:
      raise ValueError(
        "config.model_load.dont_load is for one file of all towers; config."
        "model_init names several. Give img_load_kw or txt_load_kw instead."
      )
    sources, aliases = {}, {"image": "img", "text": "txt"}
    for name, file in path.items():
      name = aliases.get(name, name)
      errors.check_known("tower in config.model_init:", name, towers)
      sources[name] = load.read(file)
  else:
    whole = load.read(path) if isinstance(path, str) else path
    sources = {name: _tower(whole, name) for name in towers}
    inside = lambda name: any(f"{tower}/" in name for tower in of_tower)
    rest = {k: x for k, x in whole.arrays.items() if not inside(k)}
    own = {k: v for k, v in result["params"].items() if k not in towers}
    own = load.load_variables(
      dataclasses.replace(whole, arrays=rest),
      {"params": own},
      dont_load=dont_load,
      **kw,
    )
    result["params"] |= own["params"]
  for name, source in sources.items():
    own = {k: tree[name] for k, tree in variables.items() if name in tree}
    more = {"dont_load": (), "options": options.get(name), **kw}
    loaded = load.load_variables(source, own, **{**more, **of_tower[name]})
    for key, tree in loaded.items():
      result[key][name] = tree
  return result


def _tower(whole: load.Checkpoint, name: str) -> load.Checkpoint:
  """Returns the part of a larger model that is a model of its own."""
  start = f"{name}/"
  flat = {
    k.replace(start, "", 1): x
    for k, x in whole.arrays.items()
    if k.removeprefix(f"{files.STATISTICS}/").startswith(start)
  }
  if not flat:
    raise ValueError(
      f"{whole.path!r} has no {start}…: it is no checkpoint of all towers. "
      f"Load them one by one: model_init={{{name!r}: {whole.path!r}}}."
    )
  said = metadata.of_tower(whole.metadata, name)
  path = f"{whole.path}:{name}"
  return load.Checkpoint(path, flat, said, whole.step)
