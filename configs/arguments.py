"""Arguments of configs and of their sweeps: what follows the colon."""

import ast
import itertools
from collections.abc import Callable, Mapping

import ml_collections

from dpn import errors

# The config's argument for each argument of a sweep.
_AXES = {
  "variants": "variant",
  "stems": "stem_ln",
  "joins": "posemb_join",
  "fractions": "fraction",
  "tasks": "task",
  "lrs": "lr",
}


def parse_arg(arg: str | None, **spec) -> ml_collections.ConfigDict:
  """Returns the arguments of a config, as attributes.

  Args:
    arg: what follows the colon on the command line, "name=value,flag,…". A
      boolean needs no value. A single value without a name is for the first
      argument of `spec`, unless it is the name of a boolean. Items of a
      dictionary are given as "name.key=value".
    **spec: default of each argument, to whose type the value is converted; or
      (default, function that converts a string). Values in a dictionary are
      Python literals or else text.

  Raises:
    ValueError: on an unknown name or a value of the wrong type.
  """
  given = {}
  for part in filter(None, (arg or "").split(",")):
    name, has_value, value = part.partition("=")
    if not has_value and name not in spec and "," not in arg:
      name, value = next(iter(spec)), part
    elif not has_value:
      value = "True"
    name, has_key, key = name.partition(".")
    if isinstance(spec.get(name), dict):
      if not key:
        raise ValueError(
          f"Config argument {part}: expected an item of it, {name}.key=value."
        )
      given.setdefault(name, {})[key] = _literal(value)
      continue
    errors.check_known("config argument", name + has_key + key, spec)
    given[name] = value
  result = ml_collections.ConfigDict(type_safe=False)
  for name, default in spec.items():
    convert = _bool if isinstance(default, bool) else type(default)
    if isinstance(default, tuple):
      default, convert = default
    result[name] = default
    if isinstance(default, dict):
      result[name] = default | given.get(name, {})
    elif name in given:
      try:
        result[name] = convert(given[name])
      except ValueError as e:
        raise ValueError(
          f"Config argument {name}={given[name]!r}: expected something like "
          f"{default!r}."
        ) from e
  return result


def _literal(text: str):
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError):
    return text


def _bool(text: str) -> bool:
  table = {"true": True, "1": True, "false": False, "0": False, "": False}
  if text.lower() not in table:
    raise ValueError(text)
  return table[text.lower()]


def parse_sweep(arg: str | None, **spec) -> ml_collections.ConfigDict:
  """Returns the arguments of a sweep, as `parse_arg` does.

  An argument with a tuple as default is given as "a+b". Every sweep has `seeds`
  (how many, from 0; 1 unless `spec` says otherwise) and `runlocal`.
  """
  spec = {**spec, "seeds": spec.get("seeds", 1), "runlocal": False}
  for name, default in spec.items():
    if isinstance(default, tuple):
      spec[name] = (default, lambda text: tuple(text.split("+")))
  return parse_arg(arg, **spec)


def sweep(name: str, **values) -> Callable:
  """Returns a config's sweep, a function of its argument; see `grid`."""
  return lambda arg=None: grid(arg, name, **values)


def grid(
  arg: str | ml_collections.ConfigDict | None,
  name: str,
  *,
  arms: Mapping[str, Mapping] | Callable[..., Mapping] | None = None,
  first_seed: int = 0,
  cell: str | None = None,
  candidate: Callable[[Mapping], str] | None = None,
  **values,
) -> list[dict]:
  """Returns a sweep: an arm for each combination of tuples' values and seeds.

  Args:
    arg: of sweep(), parsed with `values` as defaults; or what `parse_sweep` has
      returned, to which `values` are added as they are.
    name: pattern of the arms' names, such as "{stem_ln}_{variant}". Slashes are
      left out.
    arms: arguments that change together, by what "{arm}" is in `name`: the
      fastest axis after the seed. Or a function that makes them of the parsed
      arguments; what it sets is taken from it, and not from `values`.
    first_seed: where the seeds begin.
    cell: pattern of the table cell in which arms are candidates, see
      `dpn.scripts.select_best`.
    candidate: returns an arm's name as a candidate, given its arguments.
    **values: arguments of the config. A tuple is an axis, under the name that
      `_AXES` has for it. In text, "{seed}" becomes the seed, "{variant}" the
      variant without its slash, and so on. Defaults that are empty or zero
      are left to the config.
  """
  parsed, used = isinstance(arg, ml_collections.ConfigDict), {"seeds"}
  sweep = arg if parsed else parse_sweep(arg, **values)
  if callable(arms):
    arms = arms(sweep)
    used.update(*arms.values())
  if not parsed:
    values = {
      key: sweep[key]
      for key, default in values.items()
      if _AXES.get(key, key) not in used and (default or sweep[key])
    }
  axes = {_AXES.get(k, k): v for k, v in values.items() if type(v) is tuple}
  fixed = {k: v for k, v in values.items() if type(v) is not tuple}
  if sweep.runlocal:
    fixed["runlocal"] = True
  seeds = range(first_seed, first_seed + sweep.seeds)
  result = []
  for *point, (arm, own), seed in itertools.product(
    *axes.values(), (arms or {"": {}}).items(), seeds
  ):
    given = {**dict(zip(axes, point, strict=True)), **own, **fixed}
    given["seed"] = seed
    entry = {
      "name": name.format(**given, arm=arm).replace("/", ""),
      "arg": ",".join(f"{k}={_fill(str(v), given)}" for k, v in given.items()),
      "seed": seed,
    }
    if cell:
      entry |= {"cell": cell.format(**given), "candidate": candidate(given)}
    result.append(entry)
  return result


def _fill(text, given):
  """Returns text with "{variant}" etc. filled in, fit for a folder's name."""
  for key, value in given.items():
    text = text.replace(f"{{{key}}}", str(value).replace("/", ""))
  return text
