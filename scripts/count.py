"""Prints a config's parameters and FLOPs per example, by module.

  python -m scripts.count --config configs/augreg_i1k.py:variant=B/16

Nothing is computed: shapes come from jax.eval_shape, and FLOPs from
`dpn.flops`, which counts the matrix products and convolutions of a forward pass
in evaluation. Papers mostly call multiply-adds FLOPs. Blocks are summed up.

With --audit it initializes the model and lists every parameter instead: shape,
initial value and standard deviation; the factor of its learning rate, or
"frozen"; the weight decay of a step at the top of the schedule, without what an
optimizer decays itself (config.optax.weight_decay); and which patterns of the
config decided on the latter two.

  python -m scripts.count --audit vit.safetensors

For a parameter file of any library, it counts parameters by kind and says which
kinds are usually decayed. It reports what looks wrong: norms whose scales
collapsed, registers and positions that are unused or alike, and outputs of
dense layers that do not depend on the input.
"""

import collections
import re

import jax
import numpy as np
import pandas as pd
from absl import flags

import dpn.tasks
from dpn import flops, optim, trees
from dpn.input_pipeline import loader
from dpn.scripts import convert, fake_data
from dpn.scripts.diagnosis import learned
from dpn.trainers import build, cli
from dpn.weights import files

_BLOCK = re.compile(r"(encoderblock)(?:_\d+)?(/[^/]+)?.*")
OUTSIDE = "(outside modules)"


def count(task: dpn.tasks.base.Task, spec: loader.Spec) -> pd.DataFrame:
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
    # A parameter of the model itself, in no submodule, is its own row.
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


def audit(config, task: dpn.tasks.base.Task, spec: loader.Spec) -> pd.DataFrame:
  """Returns how the config treats each parameter, a row for each.

  Args:
    config: with the optimizer's settings.
    task: of the config.
    spec: (shape, dtype) of a batch, by key.
  """
  batch = build.one_example(spec)
  params = jax.jit(task.init)(jax.random.key(0), batch)["params"]
  keys = ("lr_mults", "wd_mults", "schedule")
  found = {key: optim.matched(config, params, key) for key in keys}
  rows = {}
  flat = trees.flatten(jax.device_get(params))
  for name in sorted(flat, key=learned.by_number):
    x = flat[name]
    of = {key: found[key][name] for key in keys if name in found[key]}
    mult = lambda key, default, of=of: of.get(key, (None, default))[1]
    constant = (x == x.flat[0]).all()
    entry = mult("schedule", None)
    frozen, entry = entry is None, dict(entry or {})
    top = 0 if frozen else entry.get("mult", entry.get("base", 1))
    if entry.get("scale_with_batchsize"):
      top *= config["input"]["batch_size"] / 256
    decay = top * (config.get("wd") or 0) * mult("wd_mults", 0)
    rows[name] = {
      "shape": str(x.shape),
      "init": f"{x.flat[0]:g}" if constant else "random",
      "std": f"{0 if constant else np.std(x, dtype=np.float64):.3g}",
      "lr": "frozen" if frozen else f"{top * mult('lr_mults', 1):g}",
      "wd": f"{decay:g}",
      "patterns": ", ".join(f"{key}: {x[0]}" for key, x in of.items()),
    }
  return pd.DataFrame.from_dict(rows, orient="index")


def table(rows: pd.DataFrame) -> str:
  """Returns the rows and their sum as an aligned table."""
  rows = pd.concat([rows, rows.sum().to_frame("total").T])
  rows["multiply-adds"] = rows["FLOPs"] // 2
  return rows.map("{:,}".format).to_string()


def main(path: str | None = None):
  if bool(path) == bool(_CONFIG.value):
    raise ValueError("Give either --config or a checkpoint.")
  if path:
    model = convert.read(path)
    params = files.unflatten(dict(model.arrays))["params"]
    groups = learned.decay_groups(trees.flatten(params))
    print("Weight decay, as recipes usually set it:")
    print(groups.to_string(formatters={"numbers": "{:,}".format}), "\n")
    print("\n".join(learned.findings(model)))
    return
  config = _CONFIG.value
  task, spec = dpn.tasks.make(config), fake_data.spec(config)
  if _AUDIT.value:
    print(audit(config, task, spec).to_string())
  else:
    print(table(count(task, spec)))


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _AUDIT = flags.DEFINE_bool("audit", False, "List every parameter.")
  cli.run(main, [], ["CHECKPOINT"])
