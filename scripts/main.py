"""The command `dpn`: training and every script, from any folder.

  dpn                                  lists the commands
  dpn train --config configs/digits.py --workdir W
  dpn evaluate --help

`dpn NAME` is `python -m dpn.scripts.NAME`, and `dpn train` is `python -m
dpn.trainers.train`. A config that is not in the current folder is looked for
among those that come with the package, so that the documentation's commands
work without a checkout. Benchmarks, which only a checkout has, are started with
`python -m benchmarks.step` and the like.
"""

import ast
import importlib.util
import os
import pathlib
import pkgutil
import runpy
import sys
from collections.abc import Sequence

from dpn import configs, errors, scripts


def commands() -> dict[str, str]:
  """Returns {command: module} for everything that can be run."""
  names = sorted(found.name for found in pkgutil.iter_modules(scripts.__path__))
  return {"train": "dpn.trainers.train"} | {
    name: f"dpn.scripts.{name}"
    for name in names
    if name != "main"
    and not name.endswith("_test")
    and "__main__" in _source(f"dpn.scripts.{name}")
  }


def main(argv: Sequence[str] | None = None):
  """Runs the command that the first argument names, with the remaining ones."""
  command, *arguments = (sys.argv[1:] if argv is None else argv) or ["--help"]
  known = commands()
  if command in ("-h", "--help", "help"):
    print("usage: dpn COMMAND ARGUMENTS; dpn COMMAND --help tells more.\n")
    for name, module in known.items():
      summary = ast.get_docstring(ast.parse(_source(module))).partition("\n")[0]
      print(f"  {name:<17} {summary}")
    return
  if command not in known:
    sys.exit(f"Error: {errors.unknown('command', command, known)}")
  sys.path.insert(0, "")  # modules that a config names, as with python -m
  sys.argv = [command, *packaged_configs(arguments)]
  runpy.run_module(known[command], run_name="__main__", alter_sys=True)


def packaged_configs(arguments: Sequence[str]) -> list[str]:
  """Returns arguments in which the package's own configs have full paths."""
  result = []
  for i, argument in enumerate(arguments):
    flag, equals, value = argument.rpartition("--config=")
    if equals or (i and arguments[i - 1] == "--config"):
      path, colon, rest = value.partition(":")
      folder = os.path.realpath(configs.__path__[0])
      ours = os.path.join(folder, path.removeprefix("configs/"))
      is_ours = path.startswith("configs/") and os.path.exists(ours)
      if is_ours and not os.path.exists(path):
        value = f"{ours}{colon}{rest}"
    result.append(f"{flag}{equals}{value}")
  return result


def _source(module):
  return pathlib.Path(importlib.util.find_spec(module).origin).read_text()


if __name__ == "__main__":
  main()
