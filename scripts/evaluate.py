"""Evaluates a checkpoint; nothing is trained.

  python -m scripts.evaluate runs/dpn
  python -m scripts.evaluate runs/dpn --data /photos --shots 1,5,10
  python -m scripts.evaluate --config configs/fewshot.py:variant=B/16 \
    --checkpoint vit_b16.npz --evals fewshot --out probe.json

A run's folder, or one of its checkpoints (…/checkpoints/1000), is evaluated as
its own config says: by all of its evaluators, or by those of --evals. Of a
folder, the newest parameters count.

With --data, any checkpoint of a Vision Transformer (a parameter file of any
supported library, too) is probed on data of yours: a linear classifier learns
from a few pictures of each class, --shots, and is tested on others. The data
are a folder, /photos/<class>/<file> or /photos/train/… with /photos/val/…, or
anything that config.input.data.name can be. The checkpoint says what model it
is of and how pictures are prepared; --splits and --arch (timm's name of the
model) are for what cannot be found out.

With --config, its evaluators run on --checkpoint, whatever config.model_init
takes. The config says what model it holds; its model_init, optimizer and
training data are not used. The head is loaded unless only probes of a
representation are asked for.

Prints a table; --out writes a row like those of metrics.jsonl.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import ml_collections
from absl import flags

import dpn.tasks
from dpn import errors, schedules, schema, sharding
from dpn.evaluators import base as evaluators_base
from dpn.input_pipeline import fingerprint, pp
from dpn.scripts import fake_data, probe
from dpn.scripts.results import output
from dpn.tasks import base
from dpn.trainers import build, cli, config_keys, workdir
from dpn.weights import files, preprocessing, source

HEAD = "head/(kernel|bias)"


def config_of(path: str) -> ml_collections.ConfigDict:
  """Returns the config of the run of which a path is a checkpoint.

  Without what it says about the run's own beginning.

  Raises:
    ValueError, OSError: there is nothing, or it is of no run.
  """
  if not (config := config_beside(path)):
    raise ValueError(
      f"{path} is not a run's, so nothing says how to evaluate it. Give --data "
      "to probe it on pictures of yours, or a --config with evaluators."
    )
  began = ("model_init", "model_load", "resume")
  return ml_collections.ConfigDict(
    {key: value for key, value in config.items() if key not in began}
  )


def config_beside(path: str) -> dict[str, Any]:
  """Returns the config of a checkpoint's run; {} if it is of none."""
  file = os.path.join(files.locate(path).folder, workdir.CONFIG)
  config = schema.read_json(file, dict) if os.path.isfile(file) else {}
  # Those of timm and others have no data.
  return config if isinstance(config.get("input"), dict) else {}


def evaluate(
  config: ml_collections.ConfigDict,
  path: str,
  evals: Sequence[str] = (),
) -> dict[str, Any]:
  """Returns `{"step": …, "<evaluator>/<metric>": …}`.

  Args:
    config: of the model and of the evaluators.
    path: of the checkpoint, see `dpn.weights.files.locate`. The step is None
      where it does not know it.
    evals: names of evaluators; all of the config's without it.

  Raises:
    ValueError, OSError: there is no such evaluator, data or checkpoint, or it
      is of another model.
    evaluators.base.EvaluatorError: an evaluator failed.
  """
  evaluators, variables, step = prepare(config, path, evals)
  row = {"step": step}
  for evaluator in evaluators:
    row |= evaluator.run(variables)
  return row


def prepare(
  config: ml_collections.ConfigDict, path: str, evals: Sequence[str] = ()
) -> tuple[list[evaluators_base.Scheduled], base.Variables, int | None]:
  """Returns the evaluators, the checkpoint's variables and its step.

  For the arguments and what is raised see `evaluate`.
  """
  config = _with_evals(config, evals)
  config_keys.check(config)
  pp.add_modules(config.get("pp_modules") or ())
  mesh = sharding.make_mesh(config.get("mesh") or [("data", -1)])
  task = dpn.tasks.make(config)
  sizes = {"batch_size": config.input.batch_size, "data_size": None}
  evaluators = evaluators_base.from_config(
    config, task.predict_fns(), mesh, sizes | {"total_steps": 1}
  )
  told = config.get("model_load") or {}
  found = source.read(path, told.get("arch"), dpn.tasks.model_options)
  fingerprint.compare(
    path, found.metadata.loader, fingerprint.of_config(config)
  )
  variables = build.load_file(
    found,
    task,
    fresh(config, task, mesh),
    pixels=_pixels(config),
    image_size=build.image_size(config),
    dont_load=_unused(config),
    dont_check=told.get("dont_check", ()),
    tell=print,
    advice="Give the config of the model in the file.",
  )
  return evaluators, variables, found.step


def of_run(
  path: str, kind: str, name: str | None = None
) -> tuple[
  ml_collections.ConfigDict, evaluators_base.Evaluator, base.Variables
]:
  """Returns a run's config, an evaluator of it, and the run's variables.

  Args:
    path: of the run.
    kind: type of the evaluator.
    name: of the evaluator; without it, that of config.table.metric, or else the
      first of its type.

  Raises:
    ValueError, OSError: it is no run, or has no such evaluator or data.
  """
  file = os.path.join(path, workdir.CONFIG)
  if not os.path.exists(file):
    raise ValueError(f"{path} is not the folder of a run: it has no {file}.")
  config = config_of(path)
  known = [
    section
    for section, fields in (config.get("evals") or {}).items()
    if fields.get("type", section) == kind
  ]
  metric = config.get("table", {}).get("metric", "").partition("/")[0]
  name = name or next((x for x in known if x == metric), *known[:1] or [metric])
  errors.check_known(f"evaluator of {kind}:", name, known)
  [scheduled], variables, _ = prepare(config, path, [name])
  return config, scheduled.evaluator, variables


def _with_evals(config, evals):
  """Returns the config with these evaluators, run once."""
  known = dict(config.get("evals") or {})
  if not known:
    raise ValueError("The config has no evaluators: config.evals is empty.")
  for name in evals:
    errors.check_known("evaluator in --evals:", name, known)
  fields = {k: v for k, v in config.to_dict().items() if k[:9] != "log_eval_"}
  schedule = {f"log_{unit}" for unit in schedules.UNITS}
  fields["evals"] = {
    name: {k: v for k, v in fields["evals"][name].items() if k not in schedule}
    for name in evals or known
  }
  return ml_collections.ConfigDict({**fields, "log_eval_steps": 1})


def fresh(config, task: base.Task, mesh) -> base.Variables:
  """Returns initial variables on the devices."""
  example = build.one_example(fake_data.spec(config))
  init = lambda rng: dict(task.init(rng, example))
  rng = jax.random.key(0)
  shapes = build.with_shardings(jax.eval_shape(init, rng), config, mesh)
  shardings = jax.tree.map(lambda s: s.sharding, shapes)
  return jax.jit(init, out_shardings=shardings)(rng)


def _pixels(config):
  """Returns what the evaluators make of pixels, None if unknown or various."""
  found = {
    preprocessing.describe(section[key])["pixels"]
    for section in config["evals"].values()
    for key in ("pp_fn", "pp_eval")
    if section.get(key)
  }
  return found.pop() if len(found) == 1 else None


def _unused(config):
  probes = [
    section.get("type", name) == "fewshot_lsr"
    and section.get("representation_layer") != "logits"
    for name, section in config["evals"].items()
  ]
  return [HEAD] if all(probes) else []


def table(row: Mapping[str, Any]) -> str:
  """Returns the row as lines of name and value, without single seeds."""
  shown = {
    key: f"{value:.4f}" if isinstance(value, float) else value
    for key, value in row.items()
    if "-seed-" not in key
  }
  if row["step"] is None:
    shown["step"] = "unknown"
  width = max(map(len, shown))
  return "\n".join(f"{key:<{width}}  {text}" for key, text in shown.items())


def main(run: str | None = None):
  with output.ensure_folder(os.path.dirname(_OUT.value or "")):
    pass  # fails before the work, not after it
  path = _path(run)
  if _DATA.value:
    row = probe.probe(
      path,
      _DATA.value,
      shots=_shots(_SHOTS.value),
      splits=_splits(_SPLITS.value),
      arch=_ARCH.value,
    )
  else:
    config = _CONFIG.value or config_of(path)
    row = evaluate(config, path, _EVALS.value or ())
  print(table(row))
  if _OUT.value:
    output.write(_OUT.value, json.dumps(row) + "\n")


def _path(run):
  """Returns what to evaluate, if the flags make sense together."""
  if (run is None) == (_CHECKPOINT.value is None):
    raise ValueError(
      "expected the folder of a run or another checkpoint, once: "
      "scripts.evaluate RUN, or --config C --checkpoint RUN."
    )
  given = {flag.name for flag in (_CONFIG, _EVALS) if flag.value is not None}
  if _DATA.value and given:
    raise ValueError(f"--data does not go with --{', --'.join(sorted(given))}.")
  probing = (_SHOTS, _SPLITS, _ARCH)
  given = [flag.name for flag in probing if flag.present]
  if given and not _DATA.value:
    raise ValueError(f"--{', --'.join(given)} needs --data.")
  return run or _CHECKPOINT.value


def _shots(texts):
  if not all(text.isdecimal() and int(text) for text in texts):
    raise ValueError(
      f"--shots={','.join(texts)}: expected numbers of pictures, such as 1,5."
    )
  return [*map(int, texts)]


def _splits(splits):
  if splits and len(splits) != 2:
    raise ValueError(
      f"--splits={','.join(splits)}: expected one to learn from and one for "
      "the test, such as train,validation."
    )
  return splits or ()


if __name__ == "__main__":
  _CONFIG = cli.define_config()
  _CHECKPOINT = flags.DEFINE_string("checkpoint", None, "With --config: of it.")
  _EVALS = flags.DEFINE_list("evals", None, "Evaluators; all by default.")
  _DATA = flags.DEFINE_string("data", None, "A folder of pictures, or data.")
  _SHOTS = flags.DEFINE_list("shots", "1,5,10,25", "With --data: per class.")
  _SPLITS = flags.DEFINE_list("splits", None, "With --data: train,test.")
  _ARCH = flags.DEFINE_string("arch", None, "With --data: the name in timm.")
  _OUT = flags.DEFINE_string("out", None, "JSON file to write.")
  cli.run(main, required=(), optional=["run"])
