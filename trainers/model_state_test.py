"""Running state in training: updated, sharded, saved, frozen in evaluation."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import sharding, trees
from dpn.configs import digits, norm_zoo
from dpn.input_pipeline import device
from dpn.trainers import build, conftest
from dpn.weights import checkpoint, files

# What has a state besides norms: fields of config.model and of config.
OTHERS: dict[str, tuple[dict, dict]] = {
  "sigma_reparam": ({"norm": "none", "weight_norm": "sigma_reparam"}, {}),
  "ngpt": (
    norm_zoo.METHODS["ngpt"],
    {"projection": "dpn.models.ngpt:project", "wd": 0.0},
  ),
  "muon": ({}, {"optax_name": "scale_by_muon", "optax": {}}),
}
STATES = ("prepbn", "unifiednorm", *OTHERS)


@functools.cache
def train(norm, strategy=(), steps=2):
  """Returns the run, the states of all steps and the batches."""
  config = digits.get_config("runlocal")
  # Gradients of the keys' biases are rounding errors, which Adam enlarges.
  config.model.update(depth=2, width=32, scan=True, qkv_bias=False)
  config.model.head_zeroinit = False  # or the first gradients are zero
  model, rest = OTHERS.get(norm, ({"norm": norm}, {}))
  config.model.update(model)
  config.update(rest)
  config.evals = {}
  config.sharding_strategy = strategy
  run = build.from_config(config)
  batches = device.DeviceIterator(run.data.batches(0), sharding.batch(run.mesh))
  batches = [next(batches) for _ in range(steps)]
  state = run.step.init(jax.random.key(0))
  states = [jax.device_get(state)]
  for batch in batches:
    state, _ = run.step.update(state, batch)
    states.append(jax.device_get(state))
  return run, states, state, batches


@pytest.mark.parametrize("norm", ["batchnorm", "powernorm", *STATES[:2]])
def test_running_state_moves_in_training_only(norm):
  run, states, _, batches = train(norm)
  flat = [trees.flatten(s.model_state) for s in states]
  assert flat[0]
  for name in flat[0]:
    assert not np.array_equal(flat[0][name], flat[1][name]), name
    assert not np.array_equal(flat[1][name], flat[2][name]), name
  # In evaluation an example's result does not depend on its batch.
  variables = jax.tree.map(jnp.asarray, states[-1].variables)
  measure = jax.jit(run.step.task.measure)
  measured, state = measure(variables, batches[0])
  alone = {k: v[:1] for k, v in batches[0].items()}
  one, _ = measure(variables, alone)
  assert state == {}
  np.testing.assert_allclose(measured["loss"][:1], one["loss"], rtol=1e-4)


@pytest.mark.parametrize(
  "norm",
  ["powernorm", *(pytest.param(n, marks=pytest.mark.slow) for n in STATES)],
)
def test_sharded_and_saved(norm, tmp_path):
  _, whole, _, _ = train(norm)
  run, sharded, state, _ = train(norm, tuple(conftest.FSDP))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
    whole[-1].variables,
    sharded[-1].variables,
  )
  saved = checkpoint.Checkpointer(str(tmp_path))
  saved.save(2, state, {"examples_seen": 16})
  saved.close()
  restored, _ = checkpoint.Checkpointer(str(tmp_path)).restore(run.step.shapes)
  jax.tree.map(
    np.testing.assert_array_equal,
    jax.device_get((restored.variables, restored.opt_state)),
    (sharded[-1].variables, sharded[-1].opt_state),
  )


def test_a_run_starts_from_another_ones_statistics(tmp_path):
  config = conftest.tiny_config(**{"model.norm": "batchnorm", "evals": {}})
  run = build.from_config(config)
  fresh = jax.device_get(run.step.init(jax.random.key(1)))
  stats = jax.tree.map(lambda x: x + 3, fresh.model_state["batch_stats"])
  path = str(tmp_path / "params.safetensors")
  files.save_params(path, fresh.params, stats, build.params_metadata(run))
  with config.unlocked():
    config.model_init = path
  begin = lambda: conftest.start(build.from_config(config), tmp_path / "new")
  state, _, source = begin()
  assert source == path
  got = jax.device_get(state.variables)
  want = {"params": fresh.params, "batch_stats": stats}
  jax.tree.map(np.testing.assert_array_equal, got, want)
  # The file says which model it is for; another is refused.
  with config.unlocked():
    config.model.gelu = "exact"
    config.input.pp = config.input.pp.replace("(-1, 1)", "(0, 1)")
  with pytest.raises(ValueError, match=r"config\.model\.gelu='tanh'") as error:
    begin()
  assert "value_range(-1, 1) in config.input.pp" in str(error.value)


def _patches(run):
  """Returns those of the images of a run's own six steps."""
  with contextlib.closing(run.data.batches(0)) as batches:
    images = np.concatenate([next(batches)["image"] for _ in range(6)])
  return images.reshape(-1, 2, 8, 2, 8, 1).swapaxes(2, 3).reshape(-1, 64)


def test_a_whitened_embedding_is_where_training_starts(tmp_path):
  model = {"model.stem_ln": "dpn", "model.weight_init": "whiten"}
  config = conftest.tiny_config(**model, ema_decay=0.9, evals={})
  run = build.from_config(config)
  start, _, _ = conftest.start(run, tmp_path)
  x = _patches(run)
  x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1) + 1e-6)[:, None]
  for params in (start.params, start.ema):
    embedding = jax.device_get(params["embedding"])
    kernel, bias = embedding["kernel"], embedding["bias"]
    tokens = x @ kernel.reshape(64, -1) + bias
    np.testing.assert_allclose(tokens.mean(0), 0, atol=1e-3)
    cov = np.cov(tokens.T, bias=True)
    np.testing.assert_allclose(cov, np.diag(np.diag(cov)), atol=5e-3)
    assert 0.95 < cov[0, 0] <= 1.001


def test_whitening_is_fitted_once_and_kept(tmp_path):
  config = conftest.tiny_config(**{"model.stem_ln": "whiten", "evals": {}})
  run = build.from_config(config)
  whiten = lambda state: jax.device_get(state["batch_stats"]["stem"]["whiten"])
  same = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)
  begin = lambda run, folder: conftest.start(run, tmp_path / folder)
  start, _, _ = begin(run, "new")
  stats = whiten(start.model_state)
  same(stats, whiten(begin(run, "new")[0].model_state))
  patches = _patches(run)
  np.testing.assert_allclose(stats["mean"], patches.mean(0), atol=1e-5)
  white = (patches - stats["mean"]) @ stats["matrix"]
  variances = np.linalg.eigvalsh(np.cov(patches.T, bias=True))
  np.testing.assert_allclose(
    np.linalg.eigvalsh(np.cov(white.T, bias=True)),
    variances / (variances + 1e-5),
    atol=5e-3,
  )
  # Training leaves it alone; checkpoints and files have it.
  step = lambda v, b: run.step.task.measure(v, b, rng=jax.random.key(0))[1]
  same(stats, whiten(jax.jit(step)(start.variables, next(run.batches(0)))))
  checkpoints = checkpoint.Checkpointer(str(tmp_path / "old"))
  with contextlib.closing(checkpoints):
    checkpoints.save(1, start, {"examples_seen": 8})
  restored, _, source = begin(run, "old")
  assert source == "this run's checkpoint"
  same(stats, whiten(restored.model_state))
  path = str(tmp_path / "params.safetensors")
  other = jax.tree.map(lambda x: x + 1, stats)
  params, said = jax.device_get(start.params), build.params_metadata(run)
  files.save_params(path, params, {"stem": {"whiten": other}}, said)
  with config.unlocked():
    config.model_init = path
  loaded, _, _ = begin(build.from_config(config), "loaded")
  same(other, whiten(loaded.model_state))
