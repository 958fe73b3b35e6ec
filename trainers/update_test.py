"""The training step against steps written out here."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpn import mixing, optim, sharding, trees
from dpn.conftest import stacked
from dpn.models import vit
from dpn.tasks import base, classification
from dpn.trainers import conftest, update

SIZES = {"total_steps": 10, "batch_size": 8, "data_size": 64}
CONFIG = {
  **{"optax_name": "scale_by_adam", "lr": 0.01, "wd": 0.1},
  **{"grad_clip_norm": 0.5, "schedule": {"decay_type": "cosine"}},
}


def _task(mixup_p=0.0, dropout=0.0, **kw):
  size = {**conftest.SMALL, "depth": 2, "patch_size": (4, 4)}
  kw |= {"stem_ln": "dpn", "dropout": dropout, "head_zeroinit": False}
  model = vit.Model(10, **size, **kw)
  return classification.Classification(model, mixup=mixing.Mixup(mixup_p))


def _batch(seed=0):
  rng = np.random.default_rng(seed)
  return {
    "image": rng.uniform(-1, 1, (8, 8, 8, 1)).astype(np.float32),
    "labels": np.eye(10, dtype=np.float32)[rng.integers(0, 10, 8)],
  }


@pytest.fixture(scope="module", name="params")
def _params():
  """Parameters of a looped ViT of two blocks."""
  return jax.jit(_task().init)(jax.random.key(3), _batch())["params"]


def _state(params, config=CONFIG, **kw):
  """Returns the state of step 0, with buffers of its own, and the tx."""
  tx, _ = optim.make(config, params, **SIZES)
  copied = {"params": jax.tree.map(jnp.copy, params)}
  init = lambda rng, batch: copied
  task = types.SimpleNamespace(init=init, grad_norms=_task().grad_norms)
  return update.init(task, tx, jax.random.key(0), {}, **kw), tx


def _make(task, tx, params, config=CONFIG):
  frozen, clip = optim.frozen_mask(config, params), config["grad_clip_norm"]
  return update.make(task, tx, seed=5, frozen=frozen, grad_clip_norm=clip)


def _norm(*arrays):
  return np.sqrt(sum(np.sum(np.float64(a) ** 2) for a in arrays))


def _loss(params, batch):
  """Mean sigmoid cross entropy, from its definition."""
  logits, _ = _task().model.apply({"params": params}, batch["image"])
  p = jax.nn.sigmoid(logits)
  y = batch["labels"]
  return -jnp.mean(jnp.sum(y * jnp.log(p) + (1 - y) * jnp.log(1 - p), -1))


def _adamw(params, steps):
  """Returns (values, parameters) after each step, the optimizer in NumPy."""
  p = {k: np.float64(v) for k, v in trees.flatten(params).items()}
  mu = {k: np.zeros_like(v) for k, v in p.items()}
  nu = {k: np.zeros_like(v) for k, v in p.items()}
  grad_fn = jax.jit(jax.value_and_grad(_loss))
  for t in range(steps):
    tree = trees.unflatten({k: np.float32(v) for k, v in p.items()})
    loss, grads = grad_fn(tree, _batch(t))
    g = {k: np.float64(v) for k, v in trees.flatten(grads).items()}
    norm = _norm(*g.values())
    clip = min(1.0, 0.5 / norm)
    rate = 0.5 * (1 + np.cos(np.pi * t / 10))
    old = p
    p = {}
    for k, value in old.items():
      mu[k] = 0.9 * mu[k] + 0.1 * g[k] * clip
      nu[k] = 0.999 * nu[k] + 0.001 * (g[k] * clip) ** 2
      mu_hat = mu[k] / (1 - 0.9 ** (t + 1))
      nu_hat = nu[k] / (1 - 0.999 ** (t + 1))
      decay = 0.1 * value if k.endswith("kernel") else 0.0
      p[k] = value - rate * (0.01 * mu_hat / (np.sqrt(nu_hat) + 1e-8) + decay)
    values = {
      "loss": loss,
      "l2_grads": norm,
      "l2_params": _norm(*p.values()),
      "l2_updates": _norm(*(p[k] - old[k] for k in p)),
    }
    yield values, p


def test_steps_equal_adamw_written_out(params):
  state, tx = _state(params)
  step = jax.jit(_make(_task(), tx, params), donate_argnums=0)
  for t, (want, after) in enumerate(_adamw(params, 3)):  # noqa: B007
    state, values = step(state, _batch(t))
    assert set(values) == set(want)
    for name, value in want.items():
      np.testing.assert_allclose(values[name], value, rtol=2e-5, err_msg=name)
  assert int(state.step) == 3
  assert want["l2_grads"] > 0.5  # so clipping has been at work
  for name, value in trees.flatten(state.params).items():
    # A softmax does not see the keys' bias: Adam scales up rounding errors.
    if not name.endswith("key/bias"):
      np.testing.assert_allclose(value, after[name], atol=2e-5, err_msg=name)


class _Line(base.Task):
  """y = w * x + b by least squares, counting its examples as Flax would."""

  def measure(self, variables, batch, *, rng=None):
    p, count = variables["params"], variables["stats"]["count"]
    error = p["w"] * batch["x"] + p["b"] - batch["y"]
    state = {"stats": {"count": count + len(error)}}
    return {"loss": error**2, "error": jnp.abs(error)}, state


def _line_step(schedule, wd=0.0):
  """Returns the state and values after one step from w = 2, b = 1."""
  config = {"optax_name": "identity", "lr": 0.1, "wd": wd, "schedule": schedule}
  config["wd_mults"] = [(".*", 1.0)]
  params = {"w": jnp.float32(2), "b": jnp.float32(1)}
  tx, _ = optim.make(config, params, **SIZES)
  stats = {"stats": {"count": jnp.int32(30)}}
  state = update.TrainState(jnp.int32(0), params, stats, tx.init(params))
  frozen = optim.frozen_mask(config, params)
  step = update.make(_Line(), tx, seed=0, frozen=frozen)
  batch = {"x": jnp.array([1.0, 3.0]), "y": jnp.array([1.0, 8.0])}
  return jax.jit(step)(state, batch)


def test_a_step_by_hand():
  # Errors 2 and -1: loss (4 + 1) / 2, d/dw = 2 - 3 = -1, d/db = 2 - 1 = 1.
  state, values = _line_step({})
  norms = {"l2_grads": np.sqrt(2), "l2_params": np.sqrt(2.1**2 + 0.9**2)}
  want = {"loss": 2.5, "error": 1.5, **norms, "l2_updates": np.sqrt(0.02)}
  assert {k: float(v) for k, v in values.items()} == pytest.approx(want)
  assert float(state.params["w"]) == pytest.approx(2.1)
  assert float(state.params["b"]) == pytest.approx(0.9)
  assert int(state.variables["stats"]["count"]) == 32


def test_frozen_parameters_keep_their_bits_and_do_not_count():
  state, values = _line_step([("w", None), (".*", {})], wd=0.5)
  assert float(state.params["w"]) == 2.0
  assert float(state.params["b"]) == pytest.approx(1 - 0.1 - 0.5)
  assert float(values["l2_grads"]) == 1.0
  assert float(values["l2_updates"]) == pytest.approx(0.6)


def test_a_frozen_embedding_keeps_its_bits(params):
  config = {**CONFIG, "schedule": [("embedding/.*", None), (".*", {})]}
  state, tx = _state(params, config, grad_depth_steps=1)
  step = jax.jit(_make(_task(), tx, params, config))
  for t in range(2):
    state, values = step(state, _batch(t))
  before, after = trees.flatten(params), trees.flatten(state.params)
  same = {k for k in before if np.array_equal(before[k], after[k])}
  assert same == {"embedding/kernel", "embedding/bias"}
  assert float(values["grad_norm/embedding"]) == 0.0
  rest = [v for k, v in values.items() if k.startswith("grad_norm/block")]
  assert 0 < _norm(*rest) < float(values["l2_grads"])


def test_randomness_is_a_function_of_seed_and_step(params):
  task = _task(mixup_p=0.5, dropout=0.3)
  state, tx = _state(params)
  step = jax.jit(_make(task, tx, params))
  one, values = step(state, _batch())
  again, same = step(state, _batch())
  assert values["loss"] == same["loss"]
  jax.tree.map(np.testing.assert_array_equal, one, again)
  _, other = step(state.replace(step=jnp.int32(1)), _batch())
  assert abs(values["loss"] - other["loss"]) > 1e-3
  # What the docstring promises about the key.
  rng = jax.random.fold_in(jax.random.key(5), 1)
  measured, _ = jax.jit(task.measure)({"params": params}, _batch(), rng=rng)
  np.testing.assert_allclose(other["loss"], measured["loss"].mean(), rtol=1e-6)


def _run(params, devices, strategy=()):
  """Returns the state and losses of three steps with mixup on a mesh."""
  mesh = jax.sharding.Mesh(jax.devices()[:devices], ("data",))
  state, tx = _state(params, MOMENTUM)
  shardings = sharding.infer(state, strategy, mesh)
  step = jax.jit(
    _make(_task(mixup_p=0.5), tx, params, MOMENTUM),
    donate_argnums=0,
    in_shardings=(shardings, sharding.batch(mesh)),
    out_shardings=(shardings, sharding.replicated(mesh)),
  )
  state, losses = jax.device_put(state, shardings), []
  for t in range(3):
    batch = jax.device_put(_batch(t), sharding.batch(mesh))
    state, values = step(state, batch)
    losses.append(float(values["loss"]))
  return state, losses


@pytest.fixture(scope="module", name="single")
def _single(params):
  return _run(params, devices=1)


MOMENTUM = {**CONFIG, **conftest.SGD}


@pytest.mark.parametrize("strategy", [(), conftest.FSDP])
def test_devices_and_sharding_change_nothing(params, single, strategy):
  state, losses = _run(params, devices=4, strategy=strategy)
  np.testing.assert_allclose(losses, single[1], rtol=1e-6)
  got, want = trees.flatten(state.params), trees.flatten(single[0].params)
  for name, value in want.items():
    np.testing.assert_allclose(got[name], value, atol=1e-6, err_msg=name)
  kernel = got["Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel"]
  shape = kernel.addressable_shards[0].data.shape
  assert shape == ((16, 8) if strategy else (16, 32))


def _values(task, params):
  state, tx = _state(params, grad_depth_steps=3)
  return jax.jit(_make(task, tx, params))(state, _batch())[1]


def test_gradient_norms_by_depth(params):
  grads = trees.flatten(jax.jit(jax.grad(_loss))(params, _batch()))
  norm = lambda prefix: _norm(
    *(v for k, v in grads.items() if k.startswith(f"{prefix}/"))
  )
  want = {
    "grad_norm/embedding": norm("embedding"),
    "grad_norm/block00": norm("Transformer/encoderblock_0"),
    "grad_norm/block01": norm("Transformer/encoderblock_1"),
  }
  looped = _values(_task(), params)
  scanned = _values(_task(scan=True), stacked(params))
  clip = 0.5 / _norm(*grads.values())
  assert clip < 1
  want |= {k.replace("norm", "norm_clipped"): clip * x for k, x in want.items()}
  want |= {name.replace("/", "_mean/"): value for name, value in want.items()}
  for values in (looped, scanned):
    norms = {k: v for k, v in values.items() if k.startswith("grad_norm")}
    assert norms.keys() == want.keys()
    for name, value in want.items():
      np.testing.assert_allclose(norms[name], value, rtol=2e-5, err_msg=name)


def test_mean_gradient_norms_are_those_of_the_last_steps():
  """Three of five; from w = b = 0 each slope is proportional to the target."""
  params = {"w": jnp.zeros(()), "b": jnp.zeros(())}
  tx, stats = optax.set_to_zero(), {"stats": {"count": jnp.int32(0)}}
  task = _Line()
  task.init = lambda rng, batch: {"params": params, **stats}
  state = update.init(task, tx, jax.random.key(0), {}, grad_depth_steps=3)
  frozen = {"w": False, "b": False}
  kw = {"seed": 0, "frozen": frozen, "grad_clip_norm": 20.0}
  step = jax.jit(update.make(task, tx, **kw))
  means = []
  for y in (1.0, 2.0, 3.0, 4.0, 10.0):
    batch = {"x": jnp.array([0.75]), "y": jnp.array([y])}
    state, values = step(state, batch)
    # d/db = 2 y, d/dw = 1.5 y, so that the norm of both is 2.5 y.
    assert float(values["grad_norm/b"]) == pytest.approx(2 * y)
    clipped = float(values["grad_norm_clipped/w"])
    assert clipped == pytest.approx(min(1.5 * y, 12))
    kinds = ("grad_norm_mean/b", "grad_norm_clipped_mean/b")
    means.append([float(values[kind]) for kind in kinds])
  # Only the last is clipped, from 25 to 20.
  want = [[2, 2], [3, 3], [4, 4], [6, 6], [(6 + 8 + 20) / 3, (6 + 8 + 16) / 3]]
  np.testing.assert_allclose(means, want, rtol=1e-6)


def test_over_how_many_steps_gradient_norms_are_averaged():
  steps = update.grad_depth_steps
  assert [steps(v) for v in (None, False, True, 0, 7)] == [0, 0, 1000, 0, 7]
  for wrong in ("True", -1, 0.5):
    with pytest.raises(ValueError, match="expected over how many steps"):
      steps(wrong)
