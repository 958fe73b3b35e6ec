"""Starts a model from a parameter file, strictly.

Files of big_vision and its predecessors load unchanged; arrays of timm and
Hugging Face are renamed to our names. Any difference between the file and the
model is an error unless allowed.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from dpn import errors, trees
from dpn.weights import big_vision, files, metadata, names, positions, source
from dpn.weights.pixels import Pixels


def load_variables(
  path: str | source.Checkpoint,
  variables: Mapping[str, Any],
  *,
  options: Mapping[str, Any] | None = None,
  pixels: Pixels | None = None,
  advice: str | None = None,
  arch: str | None = None,
  options_of_run: source.OptionsOfRun = source.vit_options,
  dont_load: Sequence[str] = (),
  dont_check: Sequence[str] = (),
  image_size: Sequence[int] | None = None,
  posemb_grid: Sequence[int] | None = None,
  posemb_align_corners: bool = True,
  tell: Callable[[str], None] = logging.info,
) -> dict[str, Any]:
  """Returns `variables` with the values of a parameter file.

  Other layouts are converted, and so are scanned blocks to looped ones or back.
  A `pos_embedding` for another grid of patches is resized.

  Args:
    path: see `files.locate`; or what `source.read` returned for it.
    variables: a model's `params` and, if it has any, `batch_stats`, which files
      hold as "batch_stats/<name>". `jax.ShapeDtypeStruct`s suffice for all that
      is loaded. Other collections are returned as they are.
    options: the model's, as `Task.model_options` gives them. They must match
      those that the file says it was made for. None: nothing is compared.
    pixels: of the images that the model will see, compared likewise.
    advice: what to do if names or shapes differ; None: about `dont_load`.
    arch: see `source.read`.
    options_of_run: see `source.read`.
    dont_load: regular expressions on whole names such as "head/kernel". Leaves
      that match keep their value in `variables` and are ignored in the file.
    dont_check: options not to be compared, such as "gelu", or "pixels".
    image_size: (rows, cols) of the model's images in pixels, None if unknown.
    posemb_grid: (rows, cols) of the model's patches, if `image_size` does not
      tell them and they form no square.
    posemb_align_corners: see `positions.bilinear`.
    tell: is called with a sentence if positions are resized.

  Returns:
    NumPy arrays with the structure, shapes and dtypes of `variables`; leaves
    that `dont_load` matches as they were given.

  Raises:
    FileNotFoundError, ValueError, OSError: see `source.read`.
    ValueError: names or shapes differ and `dont_load` does not match them; or
      options differ and `dont_check` does not name them.
  """
  found = (
    source.read(path, arch, options_of_run) if isinstance(path, str) else path
  )
  path, wanted = found.path, files.flatten(variables)
  flat = _in_our_names(found, wanted)
  file, options = _as_written(found.metadata, flat), options or {}
  differences = metadata.differences(file, options, pixels)
  loaded, resized = positions.fit(
    big_vision.match_scan(flat, wanted),
    wanted,
    file,
    options,
    image_size=image_size,
    grid=posemb_grid,
    align_corners=posemb_align_corners,
  )
  patterns = _listed(dont_load)
  masks = trees.masks({**loaded, **wanted}, patterns, "model_load.dont_load")
  kept = {name for mask in masks for name in mask if mask[name]}
  every = wanted.keys() | loaded.keys()
  differing = {n for n in every if _shape(wanted, n) != _shape(loaded, n)}
  if wrong := differing - kept:
    table = _table(wrong, wanted, loaded)
    advice = advice or _advice(wrong, every, posemb_grid)
    raise ValueError(
      f"{path!r} does not fit the model. Expected equal names and shapes, got\n"
      + "\n".join([table, *map(str, differences), advice])
    )
  metadata.check(path, file, differences, differing, _listed(dont_check))
  taken = {k: loaded[k] for k in wanted.keys() - kept}
  _check_finite(path, taken, wanted, advice is None)
  _tell(path, metadata.assumed(file, options), resized, tell)
  result = {
    name: leaf if name in kept else loaded[name].astype(leaf.dtype, copy=False)
    for name, leaf in wanted.items()
  }
  return {**variables, **files.unflatten(result)}


def load_towers(
  path: str | source.Checkpoint | Mapping[str, str],
  variables: Mapping[str, Any],
  towers: Sequence[str],
  *,
  options: Mapping[str, Any],
  dont_load: Sequence[str] = (),
  options_of_run: source.OptionsOfRun = source.vit_options,
  **kw: Any,
) -> dict[str, Any]:
  """Returns `variables` of several towers with the values of parameter files.

  Args:
    path: one file of the whole model; or a file for each tower by its name,
      where "image" and "text" are other names of `img` and `txt`.
    variables: see `load_variables`.
    towers: names of the subtrees that are models of their own.
    options: of each tower by its name, and others.
    dont_load: patterns for arrays that belong to no tower.
    options_of_run: see `source.read`.
    **kw: see `load_variables`. `<tower>_load_kw` has more for one tower.

  Raises:
    ValueError, OSError: see `load_variables`.
  """
  of_tower = {t: dict(kw.pop(f"{t}_load_kw", None) or {}) for t in towers}
  pixels, arch = kw.pop("pixels", None), kw.pop("arch", None)
  result = {name: dict(tree) for name, tree in variables.items()}
  present = [t for t in towers if t in variables["params"]]
  read = functools.partial(source.read, options_of_run=options_of_run)
  inside = re.compile(f"({'|'.join(towers)})/")
  whole = path if isinstance(path, str | source.Checkpoint) else None
  _check_patterns(_listed(dont_load or ()), whole, inside)
  if whole is None:
    sources = _read_each(path, present, read, arch, of_tower)
  elif any("arch" in own for own in of_tower.values()):
    raise ValueError(
      "img_load_kw.arch and txt_load_kw.arch are for a file of each tower, and "
      f"{path!r} is one of all. Give config.model_load.arch."
    )
  else:
    whole = read(whole, arch) if isinstance(whole, str) else whole
    sources = {name: whole.tower(name) for name in present}
    rest = {k: x for k, x in whole.arrays.items() if not inside.search(k)}
    own = {k: v for k, v in result["params"].items() if k not in present}
    whole = dataclasses.replace(whole, arrays=rest)
    own = load_variables(whole, {"params": own}, dont_load=dont_load, **kw)
    result["params"] |= own["params"]
  for name, found in sources.items():
    own = {k: tree[name] for k, tree in variables.items() if name in tree}
    more = {"options": options.get(name), **kw, **of_tower[name]}
    more["pixels"] = None if name == "txt" else pixels
    for key, tree in _load_tower(name, found, own, more).items():
      result[key][name] = tree
  return result


def _check_patterns(patterns, whole, inside):
  """Raises ValueError if `dont_load` is about a tower, which has its own."""
  if patterns and (whole is None or any(map(inside.match, patterns))):
    raise ValueError(
      f"config.model_load.dont_load={patterns!r} is for what belongs to no "
      "tower, in one file of all of them. Give img_load_kw or txt_load_kw "
      'instead, as in img_load_kw.dont_load=("head/.*",).'
    )


def _read_each(paths, towers, read, arch, of_tower):
  """Returns what a file of each tower holds; takes `arch` out of `of_tower`."""
  sources, aliases = {}, {"image": "img", "text": "txt"}
  for name, path in paths.items():
    name = aliases.get(name, name)
    errors.check_known("tower in config.model_init:", name, towers)
    default = None if name == "txt" else arch  # timm has no texts
    sources[name] = read(path, of_tower[name].pop("arch", default))
  return sources


def _load_tower(name, found, variables, kw):
  """Returns `load_variables`, with errors that name the tower's options."""
  try:
    return load_variables(found, variables, **kw)
  except ValueError as e:
    section = {"img": "image", "txt": "text"}.get(name, name)
    text = str(e).replace("config.model.", f"config.model.{section}.")
    if " dont_load=" in text:
      setting = f"config.model_load.{name}_load_kw.dont_load"
      text += f" Here dont_load is {setting}."
    raise ValueError(text) from e


def _tell(path, assumed, resized, tell):
  """Says what a file left open, and which of its positions are resized."""
  if assumed:
    logging.warning(
      "%r does not say everything about its model. Assumed, as configured: %s "
      "(state it with config.model).",
      *(path, ", ".join(assumed)),
    )
  for change in sorted(resized):
    tell(f"the position embeddings of {path} are resized, {change}.")


def _as_written(file, flat):
  """Returns a file's metadata, where positions that it holds count as learned.

  Other libraries' files have fixed positions written out.
  """
  if "pos_embedding" not in flat or "posemb" not in file.options:
    return file
  learned = {**file.options, "posemb": "learn", "posemb_kw": {}}
  return dataclasses.replace(file, options=learned)


def _check_finite(path, arrays, wanted, may_skip):
  """Raises ValueError if an array holds a NaN, an infinity, or integers.

  Integers are fine where `wanted` has them, as in a norm's counter of steps.
  """
  for name, x in sorted(arrays.items()):
    whole = x.dtype.kind in "biu" and wanted[name].dtype.kind not in "biu"
    if whole or not np.isfinite(np.asarray(x, np.float32)).all():
      kind = x.dtype if whole else "NaN or infinity"
      skip = f" Or, to do without it, set dont_load=[{re.escape(name)!r}]."
      raise ValueError(
        f"{path!r}: {name!r} holds {kind}, so its run diverged, or the file is "
        f"damaged or quantized. Give another checkpoint.{skip * may_skip}"
      )


def _in_our_names(found, wanted):
  """Returns a file's arrays by our names, split into the model's heads."""
  file = found.metadata
  patch = _shape_of(wanted, "embedding/kernel")[:3]
  if file.layout not in source.LIBRARIES:
    return big_vision.to_ours(found.arrays, patch[:2])
  queries = (x for name, x in wanted.items() if name.endswith("/query/kernel"))
  heads = next((x.shape[-2] for x in queries), 1)
  told = file.options.get("num_heads", heads)
  if told != heads:
    raise ValueError(
      f"{found.path!r} has {told} attention heads, says {file.source}; the "
      f"model has {heads}. Set config.model.num_heads={told}."
    )
  library = source.LIBRARIES[file.layout]
  scaled = any("/LayerScale_" in name for name in wanted)
  flat = names.to_ours(found.arrays, library, heads, patch, scaled)
  flat = positions.without_register_rows(flat, file)
  is_pooled = "cls" in wanted
  return flat if is_pooled else positions.class_token_as_register(flat, file)


def _listed(patterns):
  return [patterns] if isinstance(patterns, str) else list(patterns)


def _shape(flat, name):
  return str(_shape_of(flat, name)) if name in flat else "-"


def _shape_of(flat, name):
  return tuple(flat[name].shape) if name in flat else ()


def _table(names, wanted, loaded) -> str:
  """Returns both sides' shapes and what is wrong with each name, aligned."""
  rows = [("parameter", "model", "file", "")]
  for name in sorted(names):
    problem = "reshaped" if name in wanted else "unexpected"
    if name not in loaded:
      problem = "missing"
    rows.append((name, _shape(wanted, name), _shape(loaded, name), problem))
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return "\n".join(
    "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows
  )


def _advice(wrong: set[str], every: set[str], posemb_grid) -> str:
  """Returns what to do, with short patterns that match `wrong` alone."""
  right = every - wrong
  patterns = set()
  for name in wrong:
    parents = [name[: slash.end()] for slash in re.finditer("/", name)]
    whole = [p for p in parents if not any(n.startswith(p) for n in right)]
    patterns.add(re.escape(whole[0]) + ".*" if whole else re.escape(name))
  advice = (
    "Fix the path or the model; or, to leave all of these as they are in the "
    f"model, set dont_load={sorted(patterns)}."
  )
  text = "Embed_0/embedding" in every
  if "pos_embedding" in wrong and not (posemb_grid or text):
    advice += " Images that are not square need posemb_grid, too."
  return advice
