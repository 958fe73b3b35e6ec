"""Runs evaluators of a config on a checkpoint; nothing is trained.

  python -m scripts.evaluate --config configs/fewshot.py:variant=B/16 \
    --checkpoint runs/dpn/params.safetensors --evals fewshot --out probe.json

The checkpoint is a run's folder (its params.safetensors, or else the last
checkpoint), a folder of checkpoints or one of them (…/checkpoints/1000), or any
file that config.model_init takes. The config says what model it holds; its
model_init, optimizer and training data are not used. The head is loaded unless
only probes of a representation are asked for.

Prints a table; writes one row like those of metrics.jsonl.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
from absl import flags

import dpn.tasks
from dpn import errors, sharding
from dpn.tasks import base
from dpn.weights import checkpoint, metadata
from evaluators import base as evaluators_base
from scripts import fake_data
from scripts.results import output
from trainers import build, cli, config_keys, loop

HEAD = "head/(kernel|bias)"


def evaluate(
  config: ml_collections.ConfigDict,
  path: str,
  evals: Sequence[str] = (),
) -> dict[str, Any]:
  """Returns `{"step": …, "<evaluator>/<metric>": …}`.

  Args:
    config: of the model and of the evaluators.
    path: of the checkpoint.
    evals: names of evaluators; all of the config's without it. The step is None
      where the checkpoint does not know it.

  Raises:
    ValueError, OSError: there is no such evaluator, data or checkpoint, or it
      is of another model.
    evaluators.base.EvaluatorError: an evaluator failed.
  """
  config = _with_evals(config, evals)
  config_keys.check(config)
  mesh = sharding.make_mesh(config.get("mesh") or [("data", -1)])
  task = dpn.tasks.make(config, batch_shards=mesh.size)
  sizes = {"batch_size": config.input.batch_size, "data_size": None}
  evaluators = evaluators_base.from_config(
    config, task.predict_fns(), mesh, sizes | {"total_steps": 1}
  )
  variables, step = restore(config, task, mesh, path)
  row = {"step": step}
  for evaluator in evaluators:
    row |= evaluator.run(variables)
  return row


def _with_evals(config, evals):
  """Returns the config with these evaluators, run once."""
  known = dict(config.get("evals") or {})
  if not known:
    raise ValueError("The config has no evaluators: config.evals is empty.")
  for name in evals:
    if name not in known:
      raise ValueError(errors.unknown("evaluator in --evals:", name, known))
  config = ml_collections.ConfigDict(config.to_dict())
  config.evals = {
    name: {
      key: value
      for key, value in config.evals[name].items()
      if not key.startswith("log_")
    }
    for name in evals or known
  }
  for key in [key for key in config if key.startswith("log_eval_")]:
    del config[key]
  config.log_eval_steps = 1
  return config


def restore(
  config: Mapping[str, Any], task: base.Task, mesh: jax.sharding.Mesh, path: str
) -> tuple[base.Variables, int | None]:
  """Returns the variables in a checkpoint, on the devices, and its step.

  Args:
    config: of the model; `evals` decides whether the head is loaded.
    task: of the config.
    mesh: the devices.
    path: of the checkpoint.
  """
  train_step = build.train_step(
    config, task, fake_data.spec(config), mesh, data_size=fake_data.EXAMPLES
  )
  params = os.path.join(path, "params.safetensors")
  if os.path.isfile(params):
    path = params
  elif found := _checkpoints(path):
    folder, step = found
    checkpoints = checkpoint.Checkpointer(folder, read_only=True)
    with contextlib.closing(checkpoints):
      state, _ = checkpoints.restore(train_step.shapes, step=step)
    return state.variables, int(state.step)
  state = build.load_file(
    path,
    train_step,
    train_step.init(jax.random.key(0)),
    pixels=_pixels(config),
    dont_load=_unused(config),
    dont_check=(config.get("model_load") or {}).get("dont_check", ()),
    advice="Give the config of the model in the file.",
  )
  return state.variables, _step_beside(path)


def _pixels(config):
  """Returns what the evaluators make of pixels, None if unknown or various."""
  keys = ("pp_fn", "pp_eval")
  found = {
    metadata.pixels_of(section[key])
    for section in config["evals"].values()
    for key in keys
    if section.get(key)
  }
  return found.pop() if len(found) == 1 else None


def _unused(config):
  probes = [
    section["type"] == "fewshot_lsr"
    and section.get("representation_layer") != "logits"
    for section in config["evals"].values()
  ]
  return [HEAD] if all(probes) else []


def _checkpoints(path: str) -> tuple[str, int | None] | None:
  """Returns the folder of checkpoints that a path means, and which of them.

  None for a parameter file.
  """
  parent, last = os.path.split(os.path.normpath(path))
  if last.isdigit() and os.path.isdir(parent or "."):
    return parent or ".", int(last)
  inner = os.path.join(path, build.CHECKPOINTS)
  if os.path.isdir(inner):
    return inner, None
  if os.path.isdir(path) and any(name.isdigit() for name in os.listdir(path)):
    return path, None
  if not os.path.exists(path) and not os.path.splitext(path)[1]:
    raise FileNotFoundError(
      f"There is no checkpoint {path!r}. Give a run's folder, one of its "
      "checkpoints, or a parameter file."
    )
  return None


def _step_beside(path: str) -> int | None:
  """Returns the step of the run that left a parameter file, if one did."""
  done = os.path.join(os.path.dirname(path), loop.DONE)
  if os.path.basename(path) != "params.safetensors" or not os.path.exists(done):
    return None
  with open(done) as f:
    return json.load(f)["step"]


def table(row: Mapping[str, Any]) -> str:
  """Returns the row as lines of name and value, without single seeds."""
  shown = {k: v for k, v in row.items() if "-seed-" not in k}
  width = max(map(len, shown))
  return "\n".join(
    f"{key:<{width}}  {value:.4f}"
    if isinstance(value, float)
    else f"{key:<{width}}  {'unknown' if value is None else value}"
    for key, value in shown.items()
  )


def main():
  folder = os.path.dirname(_OUT.value or "")
  with output.made(folder):
    pass  # fails before the work, not after it
  row = evaluate(_CONFIG.value, _CHECKPOINT.value, _EVALS.value or ())
  print(table(row))
  if _OUT.value:
    data = json.dumps(row) + "\n"
    with output.made(folder):
      checkpoint.write_atomically(_OUT.value, data.encode())
    print(f"Wrote {_OUT.value}.")


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _CHECKPOINT = flags.DEFINE_string("checkpoint", None, "What to evaluate.")
  _EVALS = flags.DEFINE_list("evals", None, "Evaluators; all by default.")
  _OUT = flags.DEFINE_string("out", None, "JSON file to write.")
  cli.run(main, ["config", "checkpoint"])
