"""Calls as configs write them: `resize(224)|flip_lr`, `fsdp(axis="data")`."""

import ast
import re
from typing import Any, NamedTuple

from dpn import registry

# One op: what stands between bars, ignoring bars inside strings.
OP = re.compile(r"""[^\s|](?:'[^']*'|"[^"]*"|[^|])*""")


class Call(NamedTuple):
  """A name with literal arguments, as written in `text`."""

  text: str
  name: str
  args: list[Any]
  kw: dict[str, Any]


def parse(text: str) -> Call:
  """Parses `name` or `name(1, x=2)`; ValueError if the text is neither."""
  try:
    node = ast.parse(text, mode="eval").body
    call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
    if not isinstance(call.func, ast.Name) or any(
      k.arg is None for k in call.keywords
    ):
      raise TypeError
    args = [ast.literal_eval(arg) for arg in call.args]
    kw = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    return Call(text, call.func.id, args, kw)
  except (SyntaxError, AttributeError, TypeError) as e:
    raise ValueError(f"{text!r} is no call with literal arguments.") from e


def describe(pp: str) -> dict[str, Any]:
  """Returns what a preprocessing string does, see `input_pipeline.pp.describe`.

  `dpn` must not import the input pipeline, so its parser is looked up by import
  path, like anything else a config names, and only when a string is parsed. The
  user's own ops are known once `config.pp_modules` has been read.
  """
  return registry.import_path("pp", "dpn.input_pipeline.pp:describe")(pp)
