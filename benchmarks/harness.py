"""Shared by the benchmarks: worker processes, rounds, ratios and tables."""

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
  """Returns a parser with --json, described by the first line of `doc`."""
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
  """Returns the last line that `python -m module` prints, read as JSON.

  The module gets its arguments as JSON. If it fails, the result is {"error":
  the line of stderr that says why}. stderr is passed on, unless the error is
  that a library is missing.
  """
  command = [python or sys.executable, "-m", module, json.dumps(arguments)]
  # Otherwise JAX ends a message with remarks about its own traceback.
  env = os.environ | {"JAX_TRACEBACK_FILTERING": "off"}
  done = subprocess.run(command, capture_output=True, text=True, env=env)
  error = ""
  if done.returncode:
    lines = done.stderr.strip().splitlines()
    # Messages of exit handlers, or lists of buffers, may follow the error.
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
  """Returns `rounds` measurements of each key, taking turns.

  This way, other load on the machine affects all of them alike. A key that
  failed (its measurement has an "error") is not measured again.
  """
  found = {key: [] for key in keys}
  for _, key in tqdm.tqdm([*itertools.product(range(rounds), found)]):
    if not any("error" in measured for measured in found[key]):
      found[key].append(measure(key))
  return found


def compare(figures: Mapping[str, dict], speed: str) -> dict[str, float]:
  """Returns everyone's `speed` and, as "ratio", ours over the best peer's.

  Failed measurements are left out.
  """
  speeds = {who: row[speed] for who, row in figures.items() if speed in row}
  peers = [value for who, value in speeds.items() if who != OURS]
  if OURS in speeds and peers:
    speeds["ratio"] = speeds[OURS] / max(peers)
  return speeds


def table(
  figures: Mapping[str, dict], columns: Mapping[str, tuple[str, str]]
) -> pd.DataFrame:
  """Returns figures as text, one row each, with the "error" of failed ones.

  `columns` maps keys to (title, format); keys that no row has are left out.
  """
  found = pd.DataFrame.from_dict(figures, orient="index")
  columns = {**columns, "error": ("error", "{:.120}")}
  shown = {
    title: found[key].map(pattern.format, na_action="ignore")
    for key, (title, pattern) in columns.items()
    if key in found
  }
  return pd.DataFrame(shown, index=found.index)
