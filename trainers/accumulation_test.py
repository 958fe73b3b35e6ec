"""Gradient accumulation and the moving average, against doing it at once."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpn import mixing, sharding, trees
from dpn.models import vit
from dpn.tasks import classification
from dpn.trainers import build, conftest, update

RNG = np.random.default_rng(0)
BATCH = {
  "image": RNG.normal(size=(16, 8, 8, 3)).astype(np.float32),
  "labels": np.eye(5, dtype=np.float32)[RNG.integers(0, 5, 16)],
}

MODEL = vit.Model(5, **conftest.SMALL, patch_size=(4, 4), head_zeroinit=False)


@functools.cache
def _run(parts, mixup_p=0.0, **kw):
  mixup = mixing.Mixup(mixup_p)
  task = classification.Classification(MODEL, loss="softmax_xent", mixup=mixup)
  tx = optax.sgd(0.1)
  state = update.init(task, tx, jax.random.key(0), BATCH, ema="ema_decay" in kw)
  kw |= {"seed": 0, "frozen": jax.tree.map(lambda _: False, state.params)}
  step = jax.jit(update.make(task, tx, grad_accum=parts, **kw))
  states, values = [state], []
  for _ in range(3):
    state, value = step(state, BATCH)
    states.append(state)
    values.append(value)
  return states, values


def test_parts_are_as_good_as_the_whole():
  whole, whole_values = _run(1)
  states, values = _run(4)
  close = functools.partial(np.testing.assert_allclose, atol=1e-5)
  for a, b in zip(whole, states, strict=True):
    jax.tree.map(close, a.params, b.params)
  for a, b in zip(whole_values, values, strict=True):
    for name in a:
      assert a[name] == pytest.approx(float(b[name]), rel=1e-5), name


def test_a_part_has_work_for_every_device():
  rows = jax.device_put(jnp.arange(16), sharding.batch(sharding.make_mesh()))
  parts = jax.jit(update._split, static_argnums=1)({"x": rows}, 2)["x"]
  np.testing.assert_array_equal(parts, [range(0, 16, 2), range(1, 16, 2)])
  # Device 1 has rows 4 to 7: the second quarter of both parts.
  assert parts.sharding.shard_shape(parts.shape) == (2, 2)
  second = parts.addressable_shards[1].data
  np.testing.assert_array_equal(second, [[4, 6], [5, 7]])


def test_parts_draw_different_random_numbers():
  """The mean of one number per part, drawn from the step's key split in two."""
  loss = lambda variables, _, rng: jax.random.uniform(rng) * jnp.ones(8)
  task = types.SimpleNamespace(
    embed=None, measure=lambda *x, **kw: ({"loss": loss(*x, **kw)}, {})
  )
  state = types.SimpleNamespace(params={"w": 1.0}, model_state={})
  key = jax.random.key(0)
  _, means, _ = update.gradients(task, state, {"x": jnp.zeros(16)}, key, 2)
  drawn = [jax.random.uniform(part) for part in jax.random.split(key)]
  assert abs(drawn[0] - drawn[1]) > 0.1
  assert means["loss"] == pytest.approx(np.mean(drawn), rel=1e-6)


def test_average_by_hand():
  states, _ = _run(1, ema_decay=0.15)
  kernels = [np.float64(s.params["head"]["kernel"]) for s in states]
  expected = kernels[0]
  for kernel, decay in zip(kernels[1:], [0.1, 0.15, 0.15], strict=True):
    expected = decay * expected + (1 - decay) * kernel  # (1+t)/(10+t) first
  got = states[-1].variables["params"]["head"]["kernel"]
  np.testing.assert_allclose(got, expected, rtol=1e-6)
  assert np.abs(got - kernels[-1]).max() > 1e-5


def test_the_average_of_frozen_parameters_is_they_themselves():
  """In float32, 0.1 x + 0.9 x is not x for all x."""
  params = {name: RNG.normal(size=1000).astype(np.float32) for name in "ab"}
  frozen = {"a": True, "b": False}
  average = update._average(params, params, frozen, step=0, decay=0.9)
  same = {k: np.array_equal(average[k], params[k]) for k in params}
  assert same == frozen


def test_built_from_a_config():
  config = conftest.tiny_config(
    grad_accum=2, ema_decay=0.9, sharding_strategy=conftest.FSDP
  )
  run = build.from_config(config)
  state = run.step.init(jax.random.key(0))
  batch = jax.tree.map(
    lambda s: jax.device_put(np.zeros(s.shape, s.dtype), s.sharding),
    run.step.batch_shapes,
  )
  state, _ = run.step.compile()(state, batch)
  assert state.ema["head"]["kernel"].shape == (16, 10)
  sharded = state.ema["Transformer"]["encoderblock_0"]["MlpBlock_0"]["Dense_0"]
  assert not sharded["kernel"].sharding.is_fully_replicated


@pytest.mark.parametrize(
  ("kw", "message"),
  [
    ({"grad_accum": 3}, "grad_accum=3 must be a whole number that divides"),
    ({"grad_accum": 4}, r"batch_size / config.grad_accum=2 cannot be split"),
    ({"ema_decay": 1.0}, "ema_decay=1.0 must lie between 0 and 1"),
    ({"grad_accum": 8}, "grad_accum=8 leaves one example in each part"),
    (
      {"grad_accum": 8, "mixup": {"cutmix_p": 1.0}},
      "set a smaller grad_accum, or config.mixup=None",
    ),
    ({"grad_accum": 8, "mixup": {}}, "/ config.grad_accum=1 cannot be split"),
  ],
)
def test_refused(kw, message):
  with pytest.raises(ValueError, match=message):
    build.from_config(conftest.tiny_config(**kw))


def test_all_parts_of_a_batch_are_one_training_step():
  model = MODEL.clone(config=dataclasses.replace(MODEL.config, norm="prepbn"))
  task = classification.Classification(model, loss="softmax_xent")
  tx = optax.sgd(0.1)
  state = update.init(task, tx, jax.random.key(0), BATCH)
  frozen = jax.tree.map(lambda _: False, state.params)
  step = update.make(task, tx, seed=0, frozen=frozen, grad_accum=4)
  for count in range(3):
    states = trees.flatten(state.model_state)
    counters = [v for k, v in states.items() if k.endswith("/step")]
    assert counters == [count, count]
    state, _ = jax.jit(step)(state, BATCH)
