"""What the benchmarks share: worker processes, rounds, ratios and tables."""

import argparse
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import pandas as pd
import tqdm

OURS = "ours"
_ERROR = re.compile(r"[\w.]*(Error|Exception|Failed)\b")


def parser(doc: str) -> argparse.ArgumentParser:
  """Returns a parser that describes itself by a docstring and has --json."""
  made = argparse.ArgumentParser(description=doc.partition("\n")[0])
  made.add_argument("--json", help="file for the numbers")
  return made


def write_json(path: str | None, results: Mapping[str, Any]):
  """Writes the results, if there is a path."""
  if path:
    pathlib.Path(path).write_text(json.dumps(results, indent=2))


def worker(
  module: str, arguments: Mapping[str, Any], python: str | None = None
) -> dict[str, Any]:
  """Returns what `python -m module` prints last, if given arguments as JSON.

  Where it fails, that is {"error": the line of stderr that says why}. All of
  stderr is passed on, unless a library is missing, which that line says.
  """
  command = [python or sys.executable, "-m", module, json.dumps(arguments)]
  # Otherwise JAX ends a message with words on its own traceback.
  env = os.environ | {"JAX_TRACEBACK_FILTERING": "off"}
  done = subprocess.run(command, capture_output=True, text=True, env=env)
  error = ""
  if done.returncode:
    lines = done.stderr.strip().splitlines()
    # What libraries say at exit, or lists of buffers, may come after it.
    errors = [line for line in lines if _ERROR.match(line)]
    error = (errors or lines or [f"exit status {done.returncode}"])[-1]
  if not error.startswith("ModuleNotFoundError"):
    sys.stderr.write(done.stderr)
  if error:
    return {"error": error}
  return json.loads(done.stdout.strip().splitlines()[-1])


def in_turn(
  measure: Callable[[Hashable], dict], keys: Iterable[Hashable], rounds: int
) -> dict[Hashable, list[dict]]:
  """Returns `rounds` measurements of each key, all keys in turn each round.

  So other load on the machine affects them all alike. A key whose measurement
  has an "error" gets no further round.
  """
  found = {key: [] for key in keys}
  for _, key in tqdm.tqdm([*itertools.product(range(rounds), found)]):
    if not any("error" in measured for measured in found[key]):
      found[key].append(measure(key))
  return found


def compare(figures: Mapping[str, dict], speed: str) -> dict[str, float]:
  """Returns everyone's `speed`, and "ratio": ours to that of the best peer.

  Whose measurement failed is left out.
  """
  speeds = {who: row[speed] for who, row in figures.items() if speed in row}
  peers = [value for who, value in speeds.items() if who != OURS]
  if OURS in speeds and peers:
    speeds["ratio"] = speeds[OURS] / max(peers)
  return speeds


def table(
  figures: Mapping[str, dict], columns: Mapping[str, tuple[str, str]]
) -> str:
  """Returns `cells` as aligned text."""
  return cells(figures, columns).to_string(na_rep="-")


def cells(
  figures: Mapping[str, dict], columns: Mapping[str, tuple[str, str]]
) -> pd.DataFrame:
  """Returns figures as text, a row each; failures with their "error".

  Columns are figure → (title, format); those that no row has are left out.
  """
  found = pd.DataFrame.from_dict(figures, orient="index")
  columns = {**columns, "error": ("error", "{:.120}")}
  shown = {
    title: found[key].map(pattern.format, na_action="ignore")
    for key, (title, pattern) in columns.items()
    if key in found
  }
  return pd.DataFrame(shown, index=found.index)
