"""Prints a config's parameters and FLOPs per example, by module.

  python -m scripts.count --config configs/augreg_i1k.py:variant=B/16

Nothing is computed: shapes come from jax.eval_shape, FLOPs from `dpn.flops`,
which counts the matrix products and convolutions of a forward pass in
evaluation. Papers mostly call multiply-adds FLOPs. Blocks are summed.
"""

import collections
import re

import jax
import pandas as pd

import dpn.tasks
from dpn import flops, trees
from dpn.tasks import base
from input_pipeline import pipeline
from scripts import fake_data
from trainers import build, cli

_BLOCK = re.compile(r"(encoderblock)(?:_\d+)?(/[^/]+)?.*")
OUTSIDE = "(outside modules)"


def count(task: base.Task, spec: pipeline.Spec) -> pd.DataFrame:
  """Returns parameters and FLOPs per example, a row for each module.

  Args:
    task: of a config.
    spec: (shape, dtype) of a batch, by key.
  """
  batch = build.one_example(spec)
  variables = jax.eval_shape(task.init, jax.random.key(0), batch)
  loss = lambda v, b: task.measure(v, b)[0]["loss"]
  rows = collections.defaultdict(lambda: {"parameters": 0, "FLOPs": 0})

  def add(column, module, number):
    rows[_BLOCK.sub(r"\1\2", module)][column] += number

  for name, leaf in trees.flatten(variables["params"]).items():
    # Parameters that the model itself owns stand for themselves.
    add("parameters", name.rpartition("/")[0] or name, leaf.size)
  for scope, number in flops.by_scope(loss, variables, batch).items():
    add("FLOPs", _module(scope, variables["params"]), number)
  return pd.DataFrame.from_dict(rows, orient="index")


def _module(scope, params):
  """Returns the path in the parameter tree that a scope's names lead to."""
  path = []
  for name in scope.split("/"):
    if isinstance(params, dict) and name in params:
      path.append(name)
      params = params[name]
  return "/".join(path) or OUTSIDE


def table(rows: pd.DataFrame) -> str:
  """Returns the rows and their sum as an aligned table."""
  rows = pd.concat([rows, rows.sum().to_frame("total").T])
  rows["multiply-adds"] = rows["FLOPs"] // 2
  return rows.map("{:,}".format).to_string()


def main():
  config = _CONFIG.value
  print(table(count(dpn.tasks.make(config), fake_data.spec(config))))


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  cli.run(main)
