"""Loads what commands need: a run or other checkpoint, its config and data."""

import os
from collections.abc import Sequence
from typing import Any, TypedDict

import jax
import ml_collections

import dpn.tasks
from dpn import errors, registry, schedules, schema, sharding
from dpn.evaluators import base as evaluators_base
from dpn.input_pipeline import fingerprint, pp, sources
from dpn.scripts import fake_data
from dpn.tasks import base
from dpn.trainers import build, config_keys, restore, workdir
from dpn.weights import files, preprocessing, source

HEAD = "head/(kernel|bias)"


class Config(TypedDict, total=False):
  """The sections of config.json."""

  input: dict
  evals: dict[str, dict] | None
  model: dict | None
  pp_modules: list[str] | None


def config_of(path: str) -> ml_collections.ConfigDict:
  """Returns the config of a checkpoint's run, without what it started from.

  Raises:
    ValueError, OSError: there is no checkpoint, or it is not a run's.
  """
  if not (config := config_beside(path)):
    raise ValueError(
      f"{path} is not a run's, so nothing says how to evaluate it. Give --data "
      "to probe it on pictures of yours, or a --config with evaluators."
    )
  left_out = {"model_init", "model_load", "resume"}
  try:
    sharding.make_mesh(config.get("mesh") or [("data", -1)])
  except ValueError:  # it was trained on another machine
    left_out |= {"mesh", "sharding_strategy"}
  kept = config.keys() - left_out
  return ml_collections.ConfigDict({key: config[key] for key in kept})


def config_beside(path: str) -> dict[str, Any]:
  """Returns the config of a checkpoint's run; {} if it is not a run's."""
  file = os.path.join(files.locate(path).folder, workdir.CONFIG)
  config = schema.read_json(file, Config) if os.path.isfile(file) else {}
  # The config.json of timm and others has no `input`.
  if not isinstance(config.get("input"), dict):
    return {}
  own = [x for x in config.get("pp_modules") or () if x not in pp.BUILT_IN]
  registry.check_names(file, {**config, "pp_modules": own}, sources.KINDS)
  return config


def prepare(
  config: ml_collections.ConfigDict, path: str, evals: Sequence[str] = ()
) -> tuple[list[evaluators_base.Scheduled], base.Variables, int | None]:
  """Returns the evaluators, the checkpoint's variables and its step.

  Args:
    config: of the model and of the evaluators.
    path: of the checkpoint, see `dpn.weights.files.locate`. The step is None
      if the checkpoint does not record it.
    evals: names of evaluators; all of the config's by default.

  Raises:
    ValueError, OSError: there is no such evaluator, data or checkpoint, or the
      checkpoint is of another model.
  """
  config = _with_evals(config, evals)
  registry.trust_names(config)  # it is the user's, or has been checked
  config_keys.check(config)
  pp.add_modules(config.get("pp_modules") or ())
  mesh = sharding.make_mesh(config.get("mesh") or [("data", -1)])
  task = dpn.tasks.make(config)
  sizes = {"batch_size": config.input.batch_size, "data_size": None}
  evaluators = evaluators_base.from_config(
    config, task.predict_fns(), mesh, sizes | {"total_steps": 1}
  )
  for x in evaluators:
    of_texts = x.evaluator.vocabularies.items()
    task.check_vocabularies({key: v.size for key, v in of_texts})
  told = config.get("model_load") or {}
  found = source.read(path, told.get("arch"), dpn.tasks.model_options)
  fingerprint.compare(
    path, found.metadata.loader, fingerprint.of_config(config)
  )
  variables = restore.load_file(
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
    name: of the evaluator; by default the one in config.table.metric, or else
      the first of its type.

  Raises:
    ValueError, OSError: it is not a run, or has no such evaluator or data.
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
  """Returns how all evaluators normalize pixels; None if unknown or unequal."""
  found = {
    preprocessing.describe(section[key])["pixels"]
    for section in config["evals"].values()
    for key in ("pp_fn", "pp_eval", "pp_img")
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
