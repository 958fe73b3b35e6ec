"""Every parameter of every config: trained, decayed or not, and not a twin."""

import functools
import json
import re

import jax
import numpy as np
import pytest

import dpn.tasks
from dpn import optim, trees
from dpn.configs.conftest import CONFIGS, module, quick_first
from dpn.input_pipeline import conftest as testing

pytestmark = pytest.mark.usefixtures("compile_fast")
QUICK = ("augreg_i1k", "camvid")
TINY = {
  **{"width": 16, "depth": 1, "mlp_dim": 16, "num_heads": 2},
  **{"patch_size": (4, 4), "scan": False, "rep_size": True},
}
LABELS = {  # of two images of 8x8 pixels, by task
  "classification": lambda rng: rng.random((2, 5), np.float32),
  "segmentation": lambda rng: rng.integers(5, size=(2, 8, 8)),
}
# As Compact Transformers' code does, and Scenic.
DECAY_TOKENS = ("camvid", "lape_cifar", "studies.camvid_rates")
# One number for all that a softmax compares, which it ignores; and PRepBN's
# LayerNorm, which is of training alone.
NO_GRADIENT = r".*/((key|score)/bias|ln/(scale|bias))"


def _configs(name, folder):
  """Returns the configs of a file and of its sweep, one for each model."""
  needed = ""
  if name == "images":
    needed = f"data={testing.class_folders(folder / 'photos')},"
  sweep = getattr(module(name), "sweep", lambda arg: [])
  args = [arm["arg"] for arm in sweep(f"{needed}runlocal")]
  args.append(f"{needed}runlocal")
  configs = [module(name).get_config(arg) for arg in args]
  return {_tiny(config.to_dict()): config for config in configs}


def _tiny(config):
  """Returns the config of a small task with such a model, as JSON."""
  model, task = config["model"], config.get("task", "classification")
  rates = ("dropout", "attn_dropout", "stoch_depth")
  model = {k: v for k, v in model.items() if k not in rates}
  if model.get("variant", "")[:3] not in ("lit", "cvt", "cct"):
    model.pop("variant", None)
  model |= TINY | {"depth": 1 + model.get("cls_blocks", 0)}
  if model.get("variant", "")[:3] == "cct":
    del model["patch_size"]  # it has none
  return json.dumps({"task": task, "num_classes": 5, "model": model})


@functools.cache
def _check(tiny):
  """Checks gradients and learned tokens; returns the parameters' shapes."""
  config, rng = json.loads(tiny), np.random.default_rng(0)
  task = dpn.tasks.make(config)
  random = lambda *shape: rng.normal(size=shape).astype(np.float32)
  batch = {"image": random(2, 8, 8, 3), "labels": LABELS[config["task"]](rng)}
  variables = task.init(jax.random.key(0), batch)
  initial = variables["params"]
  # The head starts at zero, and what is before it would have no gradient.
  params = jax.tree.map(lambda x: x + 0.1 * random(*x.shape), initial)

  def loss(params):
    measured, _ = task.measure({**variables, "params": params}, batch)
    return measured["loss"].sum()

  gradients = trees.flatten(jax.grad(loss)(params))
  for name, x in trees.flatten(initial).items():
    if not re.fullmatch(NO_GRADIENT, name):
      assert np.abs(gradients[name]).max() > 1e-7, (name, tiny)
    if x.ndim == 3 and x.shape[0] == 1:  # tokens
      equal = _twins(x) and _twins(gradients[name])
      assert not equal, (name, tiny)
  return jax.eval_shape(lambda: initial)


def _twins(x):
  """Returns whether two tokens of (1, tokens, width) are equal."""
  return len(np.unique(x[0], axis=0)) < x.shape[1]


@pytest.mark.parametrize("name", quick_first(CONFIGS, QUICK))
def test_every_parameter(name, tmp_path):
  for tiny, config in _configs(name, tmp_path).items():
    if (task := json.loads(tiny)["task"]) not in LABELS:
      pytest.skip(f"LABELS has none for {task}")
    params = _check(tiny)
    names = trees.flatten(params)
    want = {n for n in names if n.endswith("/kernel")}
    if name in DECAY_TOKENS:
      want |= {"cls", "pos_embedding"} & names.keys()
    if name == "ade20k":  # Scenic's mask: also biases of (heads, dim)
      want = {n for n, x in names.items() if x.ndim > 1}
    decayed = optim.matched(config, params, "wd_mults")
    assert set(decayed) == (want if config.get("wd") else set())
