"""Keys that configs may have, and what is said about the others."""

import ast
import dataclasses
import inspect
import pathlib
import re

import pytest

import dpn.tasks
from dpn import schedules
from dpn.evaluators import base as evaluators_base
from dpn.input_pipeline import pipeline
from dpn.trainers import config_keys

ROOT = pathlib.Path(__file__).parents[1]


def test_keys_without_a_meaning_are_noted():
  config = {
    "pp_modules": ["ops_general"],
    "sharding_rules": [("act_batch", "data")],
    "input": {"cache_raw": True, "shuffle_buffer_size": 250_000},
  }
  assert config_keys.check(config) == [
    "config.sharding_rules is accepted and ignored: activations are split over "
    "the batch, on all axes.",
    "config.input.shuffle_buffer_size is accepted and ignored: every epoch is "
    "shuffled as a whole.",
    "config.input.cache_raw is accepted and ignored: records are read from "
    "disk as needed.",
  ]
  assert config_keys.check({"input": {"batch_size": 8}, "mixup": None}) == []
  load = {"dont_load": ["head/.*"], "dont_check": ["gelu"]}
  config = {"input": {"a": 1}, "model_load": load}
  assert config_keys.check({**config, "model_init": "x.npz"}) == []
  [note] = config_keys.check(config)
  assert note.startswith("config.model_load is not used")
  config = {"input": {"a": 1}, "model_init": "x.npz", "resume": "W"}
  [note] = config_keys.check(config)
  assert note.startswith("config.model_init is not used: config.resume")
  with pytest.raises(ValueError, match="seed must be of type int, got None"):
    config_keys.check({**config, "seed": None})


def _literals():
  """Returns all text in the sources but the tables of keys."""
  texts = set()
  for package in ("dpn", "evaluators", "input_pipeline", "trainers"):
    for path in (ROOT / package).rglob("*.py"):
      if path.stem in ("config_keys", "conftest") or "_test" in path.stem:
        continue
      for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant):
          texts.add(node.value)
  return texts


def test_every_accepted_key_is_read_or_said_to_be_ignored():
  read = _literals()
  units = "|".join(schedules.UNITS)
  for task in dpn.tasks.TASKS:
    for key in config_keys.known({"task": task}) - {*config_keys.IGNORED_KEYS}:
      assert re.sub(f"_({units})$", "", key) in read, key
  config = dict.fromkeys(config_keys.IGNORED_KEYS, 1)
  config["input"] = dict.fromkeys(pipeline.IGNORED_KEYS, 1)
  notes = config_keys.check(config)
  ignored = config_keys.IGNORED_KEYS | pipeline.IGNORED_KEYS
  assert [note.split()[0].split(".")[-1] for note in notes] == [*ignored]


@pytest.mark.parametrize("kind", evaluators_base.TYPES)
def test_every_key_of_an_evaluator_is_read(kind):
  evaluator = evaluators_base.find(kind)
  sources = [c for c in evaluator.__mro__ if c.__module__ != "builtins"]
  text = "".join(map(inspect.getsource, sources))
  for field in dataclasses.fields(evaluator):
    assert f"self.{field.name}" in text, field.name


@pytest.mark.parametrize(
  ("config", "message"),
  [
    ({"modle": 1}, "Unknown key in config: 'modle'. Did you mean 'model'"),
    ({"task": "classify"}, "Unknown task 'classify'"),
    ({"input": {}}, r"config\.input is missing"),
    ({"lr": "0.1"}, "config: lr must be of type float or NoneType, got '0.1'"),
    ({"strict_evals": "no"}, "config: strict_evals must be of type bool or"),
    ({"evals": [1]}, "config: evals must be of type dict or"),
    ({"prefetch_to_device": 0}, r"config\.prefetch_to_device must be above 0"),
    (
      {"model_load": {"dontload": []}},
      r"in config\.model_load: 'dontload'. Did you mean 'dont_load'. Known: "
      "arch, dont_check, dont_load",
    ),
  ],
)
def test_wrong_configs(config, message):
  with pytest.raises(ValueError, match=message):
    config_keys.check({"input": {"batch_size": 8}, **config})
