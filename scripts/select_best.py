"""Chooses the best candidate for each cell of a sweep, then tests it once.

  python -m scripts.select_best runs/table3 [--test]

As VTAB does (arXiv 1910.04867), it chooses the candidate, for example one of
three learning rates, with the highest mean validation accuracy over its seeds;
--metric names another metric; if that is a loss, the lowest mean wins. It reads
OUT/sweep.json and the final metrics of the runs there, which all have to be
done; a candidate with a diverged run is not chosen. It writes
OUT/selection.json: for each cell the choice, the means, the chosen run folders.

Then it prints the commands that evaluate the chosen runs on the test split and
have not been run; --test runs them instead. Each writes test.json in the run's
folder: a row like those of metrics.jsonl.
"""

import math
import os
import runpy
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pandas as pd

from dpn import atomic, configs, errors, registry
from dpn.input_pipeline import sources
from dpn.scripts.jobs import arms as arms_lib
from dpn.scripts.results import aggregate, output, render, run_files
from dpn.trainers import cli, workdir


def lower_is_better(metric: str) -> bool:
  """Returns whether lower values of a metric are better, as of a loss.

  Raises:
    ValueError: its name does not say: it is neither a loss nor a fraction, or
      seems to be both.
  """
  is_loss = "loss" in metric.rpartition("/")[2]
  if is_loss == aggregate.is_fraction(metric):
    raise ValueError(
      f"Cannot tell whether more or less of {metric} is better; expected a "
      "loss (val/loss) or a fraction (val/prec@1, val/miou). Choose by one of "
      "these."
    )
  return is_loss


def best(scores: pd.DataFrame, lowest: bool = False) -> str:
  """Returns the candidate with the best mean score; among equals the first.

  Args:
    scores: (candidates, seeds).
    lowest: whether lower is better, not higher.

  Raises:
    ValueError: a score is missing or not finite.
  """
  for candidate, by_seed in scores.iterrows():
    if len(wrong := by_seed.index[~by_seed.map(math.isfinite)]):
      raise ValueError(
        f"Candidate {candidate} has no finite score with seed {wrong[0]}: "
        "means over different seeds do not compare."
      )
  # Correctly rounded sums: equal scores tie in whatever order they come.
  sums = scores.apply(math.fsum, axis=1)
  return sums.idxmin() if lowest else sums.idxmax()


def choose(out: str, metric: str) -> dict[str, dict]:
  """Returns the choice for each cell of the sweep in a folder.

  Args:
    out: folder of the sweep.
    metric: of the runs, at their last step; see `lower_is_better`.

  Returns:
    {cell: {"candidate", "mean" of each candidate, "runs": folders}}; the mean
    is None where a run diverged.

  Raises:
    ValueError: the sweep has no candidates, a run is not done or lacks the
      metric, runs of a candidate differ in more than the seed, or it is unknown
      which of the metric's values are better.
  """
  _, arms = arms_lib.read_index(out)
  competing = [arm for arm in arms.values() if arm.cell and arm.candidate]
  if not competing:
    raise ValueError(
      f"The sweep in {out} has no candidates to choose from: each arm is a "
      "result of its own."
    )
  scored = [arm for arm in competing if not arm.diverged]
  if undone := [arm.workdir for arm in scored if not arm.done]:
    raise ValueError(
      f"{len(undone)} of {len(competing)} runs are not done: "
      f"{errors.some_of(undone, 5)}. Finish the sweep first, or "
      f"take those that it shall not have out of {arms_lib.INDEX}."
    )
  read = {arm.workdir: run_files.read(arm.workdir) for arm in scored}
  frame = pd.DataFrame(competing)  # a column for each field of an arm
  frame["run"], frame["path"] = frame.workdir.map(read.get), frame.workdir
  result, lowest = {}, lower_is_better(metric)
  for cell, of_cell in frame.groupby("cell", sort=False):
    try:
      result[cell] = _choice(of_cell, metric, lowest)
    except ValueError as e:
      raise ValueError(f"{cell}: {e}") from e
  return result


def _choice(arms: pd.DataFrame, metric: str, lowest: bool) -> dict:
  """Returns the choice among a cell's arms; see `choose`."""
  diverged = sorted({*arms.candidate[arms.run.isna()]})
  arms = arms[~arms.candidate.isin(diverged)]
  if arms.empty:
    raise ValueError(
      f"a run of each candidate diverged: {errors.some_of(diverged)}. Add a "
      "lower learning rate to the sweep."
    )
  for _, runs in arms.groupby("candidate"):
    aggregate.check_alike(runs)
  arms = arms.assign(score=[run.final(metric) for run in arms.run])
  scores = arms.set_index(["candidate", "seed"]).score.unstack(sort=False)
  chosen = best(scores, lowest)
  folders = arms.workdir[arms.candidate == chosen]
  return {
    "candidate": chosen,
    "mean": {**scores.mean(axis=1), **dict.fromkeys(diverged)},
    "runs": list(folders.map(os.path.basename)),
  }


def test_commands(
  out: str, choices: Mapping[str, Mapping]
) -> dict[str, list[str]]:
  """Returns the command that tests each chosen run, by the file it writes.

  Commands come without the interpreter. The config's argument `test` adds an
  evaluator of that name.
  """
  config, arms = arms_lib.read_index(out)
  names = [name for choice in choices.values() for name in choice["runs"]]
  chosen = [arms[os.path.join(out, name)] for name in names]
  _check_trusted(config, chosen)
  commands = {}
  for arm in chosen:
    file = os.path.join(arm.workdir, workdir.TEST)
    commands[file] = [
      *("-m", "dpn.scripts.evaluate", "--config", f"{config}:{arm.arg},test"),
      *("--checkpoint", arm.workdir, "--evals", "test", "--out", file),
      *arm.flags,
    ]
  return commands


def _check_trusted(config, arms):
  """Raises ValueError if testing would run code that only sweep.json names."""
  if not os.path.exists(config):
    raise ValueError(
      f"{arms_lib.INDEX} is of {config}, which is not there. Run this in the "
      "folder where the sweep was started, or run the sweep again: it notes "
      "where its config is now."
    )
  folder = os.path.join(os.path.realpath(configs.__path__[0]), "")
  is_ours = os.path.realpath(config).startswith(folder)
  if not (is_ours or registry.is_trusted(config)):
    raise ValueError(
      f"{arms_lib.INDEX} is of {config}, a config of your own, which would be "
      f"run. If you know where it comes from: --trust {config}"
    )
  get_config = runpy.run_path(config)["get_config"] if is_ours else None
  for arm in arms:
    # Only our own configs are asked: all their names come from the argument.
    fields = get_config(arm.arg).to_dict() if get_config else {}
    read = lambda x: cli.literal(x) if isinstance(x, str) else x
    fields |= {key: read(x) for key, x in arm.overrides.items()}
    registry.check_names(arms_lib.INDEX, fields, sources.KINDS)


def _parser():
  parser = output.parser(__doc__)
  parser.add_argument("out", type=os.path.normpath, help="folder of a sweep")
  help_ = (
    "to choose by: a loss (the lowest mean wins) or a fraction such as an "
    "accuracy, IoU or recall (the highest wins); others are refused"
  )
  parser.add_argument("--metric", default="minival/prec@1", help=help_)
  parser.add_argument("--test", action="store_true", help="test what is chosen")
  output.add_trust(parser)
  return parser


def main(argv: Sequence[str] | None = None):
  args = _parser().parse_args(argv)
  choices = choose(args.out, args.metric)
  path = os.path.join(args.out, "selection.json")
  atomic.write_json(path, {"metric": args.metric, "cells": choices})
  shown = lambda m: "diverged" if m is None else f"{m:.4f}"
  means = lambda mean: ", ".join(f"{c}: {shown(m)}" for c, m in mean.items())
  rows = [(k, c["candidate"], means(c["mean"])) for k, c in choices.items()]
  table = pd.DataFrame(rows, columns=["cell", "chosen", "of"])
  print(render.grid(table, keys=3))
  print(f"Wrote {path}.", flush=True)
  commands = test_commands(args.out, choices)
  todo = [file for file in commands if not os.path.exists(file)]
  if not args.test:
    for file in todo:
      print(shlex.join(["python", *commands[file]]))
    return
  failed = []
  for i, file in enumerate(todo, 1):
    print(f"[{i}/{len(todo)}] {file}", flush=True)
    if subprocess.run([sys.executable, *commands[file]]).returncode:
      failed.append(file)
  if failed:
    raise ValueError(
      f"{len(failed)} of {len(todo)} tests failed, see above; the first is "
      f"{failed[0]}. The same command tries them again."
    )


if __name__ == "__main__":
  with output.errors_in_a_line():
    main()
