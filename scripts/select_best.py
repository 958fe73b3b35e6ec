"""Chooses the best candidate for each cell of a sweep, then tests it once.

  python -m scripts.select_best runs/table3 [--test]

As VTAB does (arXiv 1910.04867): of the candidates, three learning rates for
example, the one with the highest mean validation accuracy over its seeds. Reads
OUT/sweep.json and the final metrics of its runs, which all have to be done;
writes OUT/selection.json: the choice for each cell, the means, its run folders.

Then it prints the commands that evaluate the chosen runs on the test split;
--test runs those that have not been run. Each writes test.json in the run's
folder: a row like those of metrics.jsonl.
"""

import argparse
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pandas as pd

from dpn.weights import checkpoint
from scripts.jobs import arms as arms_lib
from scripts.results import output, render, runs

SELECTION = "selection.json"
TEST = "test.json"


def best(scores: Mapping[str, Mapping[int, float]]) -> str:
  """Returns the candidate with the highest mean score; of equals the first.

  Args:
    scores: of each candidate by seed, higher is better.

  Raises:
    ValueError: there is no candidate, one lacks a seed that another has, or a
      score is not finite.
  """
  seeds = set().union(*scores.values())
  if not seeds:
    raise ValueError("There is nothing to choose from: no candidate, no seed.")
  for candidate, by_seed in scores.items():
    if missing := seeds - by_seed.keys():
      raise ValueError(
        f"Candidate {candidate} lacks seed {min(missing)}, which others have: "
        "means over different seeds do not compare."
      )
    if wrong := [s for s, score in by_seed.items() if not math.isfinite(score)]:
      raise ValueError(f"Candidate {candidate}, seed {wrong[0]}: not finite.")
  # Correctly rounded means: equal scores tie in whatever order they come.
  return max(scores, key=lambda c: math.fsum(scores[c].values()))


def choose(out: str, metric: str) -> dict[str, dict]:
  """Returns the choice for each cell of a sweep.

  Args:
    out: folder of the sweep.
    metric: of the runs, at their last step.

  Returns:
    {cell: {"candidate", "mean" of each candidate, "runs": folders}}.

  Raises:
    ValueError: it has no candidates, or a run is not done or lacks the metric.
  """
  _, arms = arms_lib.read_index(out)
  competing = [arm for arm in arms.values() if arm.cell and arm.candidate]
  if not competing:
    raise ValueError(
      f"The sweep in {out} has no candidates to choose from: each arm is a "
      "result of its own."
    )
  if undone := [arm.workdir for arm in competing if not arm.done]:
    more = f" and {len(undone) - 5} more" if len(undone) > 5 else ""
    raise ValueError(
      f"{len(undone)} of {len(competing)} runs are not done: "
      f"{', '.join(undone[:5])}{more}. Finish the sweep first."
    )
  scores = pd.DataFrame(
    (arm.cell, arm.candidate, arm.seed, runs.read(arm.workdir).final(metric),
     os.path.basename(arm.workdir))
    for arm in competing
  ).set_axis(["cell", "candidate", "seed", "score", "run"], axis=1)  # fmt: skip
  result = {}
  for cell, of_cell in scores.groupby("cell", sort=False):
    by_candidate = of_cell.groupby("candidate", sort=False)
    try:
      chosen = best(
        {c: dict(zip(g.seed, g.score, strict=True)) for c, g in by_candidate}
      )
    except ValueError as e:
      raise ValueError(f"{cell}: {e}") from e
    result[cell] = {
      "candidate": chosen,
      "mean": by_candidate.score.mean().to_dict(),
      "runs": list(of_cell.run[of_cell.candidate == chosen]),
    }
  return result


def test_commands(
  out: str, choices: Mapping[str, Mapping]
) -> dict[str, list[str]]:
  """Returns how to test each chosen run, by the file it writes.

  Without the interpreter; the config has an argument `test` that adds an
  evaluator of that name.
  """
  config, arms = arms_lib.read_index(out)
  commands = {}
  for choice in choices.values():
    for name in choice["runs"]:
      arm = arms[os.path.join(out, name)]
      file = os.path.join(arm.workdir, TEST)
      commands[file] = [
        *("-m", "scripts.evaluate"),
        *("--config", f"{config}:{arm.arg},test"),
        *("--checkpoint", arm.workdir),
        *("--evals", "test"),
        *("--out", file),
        *(f"--config.{k}={v}" for k, v in arm.overrides.items()),
      ]
  return commands


def table(choices: Mapping[str, Mapping]) -> str:
  """Returns a line for each cell: the choice and the candidates' means."""
  means = lambda mean: ", ".join(f"{c}: {m:.4f}" for c, m in mean.items())
  rows = [(k, c["candidate"], means(c["mean"])) for k, c in choices.items()]
  return render.grid(
    pd.DataFrame(rows, columns=["cell", "chosen", "of"]), keys=3
  )


def main(argv: Sequence[str] | None = None):
  parser = argparse.ArgumentParser(
    prog="python -m scripts.select_best", description=__doc__.splitlines()[0]
  )
  parser.add_argument("out", help="folder of a sweep")
  parser.add_argument("--metric", default="minival/prec@1", help="to choose by")
  parser.add_argument("--test", action="store_true", help="test the chosen")
  args = parser.parse_args(argv)
  out = os.path.normpath(args.out)
  choices = choose(out, args.metric)
  path = os.path.join(out, SELECTION)
  checkpoint.write_json(path, {"metric": args.metric, "cells": choices})
  print(table(choices))
  print(f"Wrote {path}.", flush=True)
  todo = {
    file: command
    for file, command in test_commands(out, choices).items()
    if not os.path.exists(file)
  }
  if not args.test:
    for command in todo.values():
      print(shlex.join(["python", *command]))
    return
  failed = []
  for i, (file, command) in enumerate(todo.items(), 1):
    print(f"[{i}/{len(todo)}] {file}", flush=True)
    if subprocess.run([sys.executable, *command], check=False).returncode:
      failed.append(file)
  if failed:
    raise ValueError(
      f"{len(failed)} of {len(todo)} tests failed, see above; the first is "
      f"{failed[0]}. The same command tries them again."
    )


if __name__ == "__main__":
  with output.errors_in_a_line():
    main()
