"""The optimizer against NumPy, and against numbers from big_vision's own."""

import functools
import re

import jax
import jax.numpy as jnp
import ml_collections
import ml_dtypes
import numpy as np
import optax
import pytest

from dpn import optim, trees

SIZES = {"total_steps": 20, "batch_size": 8, "data_size": 64}
SGD = {"optax_name": "big_vision.sgd", "lr": 0.1}


def _params():
  """Returns parameters, of which one matrix is large enough to factor."""
  shapes = {"Dense_0": {"bias": 33, "kernel": (40, 33)}}
  shapes["Dense_1"] = {"bias": 2, "kernel": (33, 2)}
  return _normal(0, shapes)


def _normal(seed, shapes):
  rng = np.random.default_rng(seed)
  return jax.tree.map(
    lambda shape: rng.normal(size=shape).astype(np.float32),
    shapes,
    is_leaf=lambda x: not isinstance(x, dict),
  )


def _grads(step):
  shapes = jax.tree.map(lambda p: p.shape, _params())
  return _normal(100 + step, shapes)


def _train(config, params, grads):
  """Returns the parameters after one step for each tree of gradients."""
  tx, _ = optim.make(config, params, **SIZES)
  state = jax.jit(tx.init)(params)

  @jax.jit
  def step(params, state, grads):
    updates, state = tx.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  for grad in grads:
    params, state = step(params, state, grad)
  return params


def _numpy_adamw(config, params, grads, frozen):
  """Returns the parameters after Adam in float64, as the module's docstring.

  Adam: arXiv 1412.6980, algorithm 1. Cosine after three steps of warmup.
  """
  p = {k: np.float64(v) for k, v in trees.flatten(params).items()}
  mu = {k: np.zeros_like(v) for k, v in p.items()}
  nu = {k: np.zeros_like(v) for k, v in p.items()}
  for t, grad in enumerate(grads):
    g = {k: np.float64(v) for k, v in trees.flatten(grad).items()}
    clip = config["grad_clip_norm"]
    groups = clip if isinstance(clip, list) else [(".*", clip)]
    for pattern, largest in groups:
      inside = [k for k in p if re.fullmatch(pattern, k) and k != frozen]
      norm = np.sqrt(sum((g[k] ** 2).sum() for k in inside))
      for k in inside:
        g[k] = g[k] * min(1, largest / norm)
    progress = max(0, (t - 3) / 17)
    schedule = min(1, t / 3) * (1 + np.cos(np.pi * progress)) / 2
    for k in p.keys() - {frozen}:
      mu[k] = 0.9 * mu[k] + 0.1 * g[k]
      nu[k] = 0.99 * nu[k] + 0.01 * g[k] ** 2
      m, n = mu[k] / (1 - 0.9 ** (t + 1)), nu[k] / (1 - 0.99 ** (t + 1))
      update = config["lr"] * m / (np.sqrt(n) + 1e-8)
      update *= 0.1 if k.startswith("Dense_1/") else 1
      update += config["wd"] * p[k] * (1 if k.endswith("/kernel") else 0)
      p[k] -= schedule * update
  return p


@pytest.mark.parametrize("frozen", ["Dense_0/kernel", None])
@pytest.mark.parametrize(
  "clip", [1.0, 1e3, [("Dense_1/.*", 0.5), ("Dense_0/bias", 3.0)]]
)
def test_adam_with_everything_against_numpy(frozen, clip):
  sched = {"decay_type": "cosine", "warmup_steps": 3}
  config = {
    "optax_name": "scale_by_adam",
    "optax": {"b2": 0.99},
    "lr": 0.03,
    "lr_mults": [("Dense_1/.*", 0.1)],
    "wd": 0.02,
    "grad_clip_norm": clip,
    "schedule": [(frozen, None), (".*", sched)] if frozen else sched,
  }
  params, grads = _params(), [_grads(i) for i in range(12)]
  for i, grad in enumerate(grads):  # Far above and below the clipping norm.
    grads[i] = jax.tree.map(
      lambda g, i=i: g * np.float32(10.0 ** (i % 3)), grad
    )
  expected = _numpy_adamw(config, params, grads, frozen)
  got = trees.flatten(_train(config, params, grads))
  for name, value in expected.items():
    np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)


# Elements of Dense_0/bias[0], Dense_0/kernel[0, 7] and [-1, -1],
# Dense_1/bias[1] and Dense_1/kernel[1, 1] after 12 steps with big_vision's own
# optax.make, commit 0127fb6b337ee2a27bf4e54dea79cff176527356, optax 0.2.8.
# Moments are in float32: XLA may keep more digits of bfloat16 than were asked.
BIG_VISION = {
  "adam": (
    {
      "optax_name": "scale_by_adam",
      "optax": {"mu_dtype": "float32"},
      "lr": 1e-2,
      "wd": 1e-2,
      "grad_clip_norm": 1.0,
      "schedule": {"warmup_steps": 3, "decay_type": "cosine"},
    },
    (0.1055529341, -1.161121368, 1.594549417, -1.000453353, -1.828789353),
  ),
  "adafactor": (
    {
      "optax_name": "big_vision.scale_by_adafactor",
      "optax": {"dtype_momentum": "float32"},
      "lr": 1e-2,
      "wd": 1e-3,
      "grad_clip_norm": 1.0,
      "schedule": {
        "warmup_epochs": 0.5,
        "decay_type": "rsqrt",
        "timescale": 5,
        "cooldown_percent": 0.2,
      },
    },
    (0.1095486209, -1.25077641, 1.719305158, -1.00993681, -1.941520095),
  ),
  "momentum": (
    {
      "optax_name": "big_vision.momentum_hp",
      "optax": {"nesterov": True, "dtype": "float32"},
      "lr": 3e-2,
      "lr_mults": [("Dense_1/.*", 0.1)],
      "wd": 1e-3,
      "grad_clip_norm": 1.0,
      "schedule": [
        ("Dense_0/kernel", None),
        (
          ".*bias",
          {"decay_type": "stair", "steps": [4, 8], "mults": [0.3, 0.1]},
        ),
        (
          ".*",
          {
            "decay_type": "polynomial",
            "warmup_examples": 30,
            "power": 0.9,
            "end": 0.1,
            "mult": 0.5,
          },
        ),
      ],
    },
    (0.123568438, -1.259065509, 1.731142521, -1.016408801, -1.935823083),
  ),
}


@pytest.mark.parametrize("name", BIG_VISION)
@pytest.mark.parametrize("kind", [dict, ml_collections.ConfigDict])
def test_same_numbers_as_big_vision(name, kind):
  config, expected = BIG_VISION[name]
  params = _train(kind(config), _params(), [_grads(i) for i in range(12)])
  got = [
    params["Dense_0"]["bias"][0],
    params["Dense_0"]["kernel"][0, 7],
    params["Dense_0"]["kernel"][-1, -1],
    params["Dense_1"]["bias"][1],
    params["Dense_1"]["kernel"][1, 1],
  ]
  np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_adafactor_by_its_formula():
  """Algorithm 4 of arXiv 1804.04235, with the decay of arXiv 2106.04560."""
  tx = optim.scale_by_adafactor(momentum=None, beta2_cap=0.4)
  shapes = {"factored": (40, 33), "full": (40, 31)}
  params = _normal(0, shapes)
  state = tx.init(params)
  row, col, full = np.zeros(40), np.zeros(33), np.zeros((40, 31))
  for t in range(4):
    grads = _normal(t + 1, shapes)
    got, state = tx.update(grads, state, params)
    beta = min(0.4, 1 - (t + 1) ** -0.8)  # 0, 0.4 (uncapped 0.43), 0.4, 0.4.
    g2 = np.float64(grads["factored"]) ** 2
    row = beta * row + (1 - beta) * g2.mean(axis=1)
    col = beta * col + (1 - beta) * g2.mean(axis=0)
    second = row[:, None] * col[None, :] / row.mean()
    expected = grads["factored"] / np.sqrt(second)
    np.testing.assert_allclose(got["factored"], expected, rtol=1e-5)
    full = beta * full + (1 - beta) * np.float64(grads["full"]) ** 2
    expected = grads["full"] / np.sqrt(full)
    np.testing.assert_allclose(got["full"], expected, rtol=1e-5)


def test_adafactor_memory():
  """A matrix costs its rows, columns and a half precision first moment."""
  tx = optim.scale_by_adafactor()
  state = jax.eval_shape(tx.init, {"kernel": jnp.zeros((1024, 512))})
  sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(state)]
  assert sum(sizes) == 4 * (1024 + 512) + 2 * 1024 * 512 + 3 * 4


def test_momentum_accumulates_in_bfloat16():
  tx = optim.momentum_hp()
  params = {"a": np.zeros(500, np.float32)}
  state, accumulator = tx.init(params), np.zeros(500, ml_dtypes.bfloat16)
  for t in range(5):
    grads = _normal(t, {"a": 500})
    got, state = tx.update(grads, state)
    decayed = ml_dtypes.bfloat16(0.9) * accumulator
    total = grads["a"] + decayed.astype(np.float32)
    np.testing.assert_allclose(got["a"], total, rtol=1e-6)
    accumulator = total.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(state.trace["a"], accumulator)


def test_frozen_parameters_keep_their_bits():
  config = {
    "optax_name": "scale_by_adam",
    "lr": 1.0,
    "wd": 0.5,
    "wd_mults": [(".*", 1.0)],
    "grad_clip_norm": 1.0,
    "schedule": [("Dense_0/.*", None), (".*", {})],
  }
  params = _params()
  params["Dense_0"]["bias"][:3] = [-0.0, 0.0, 1e-40]
  before = jax.tree.map(lambda x: x.tobytes(), params)
  grads = [_grads(0), _grads(1)]
  grads[1]["Dense_0"]["kernel"][:] = np.nan
  params = _train(config, params, grads)
  after = jax.tree.map(lambda x: np.asarray(x).tobytes(), params)
  assert after["Dense_0"] == before["Dense_0"]
  assert after["Dense_1"]["bias"] != before["Dense_1"]["bias"]
  assert np.isfinite(params["Dense_1"]["kernel"]).all()


def test_frozen_parameters_have_no_state():
  config = {"optax_name": "scale_by_adam", "lr": 1.0}
  config["schedule"] = [("Dense_0/.*", None), (".*", {})]
  params = jax.eval_shape(_params)
  tx, schedule_fns = optim.make(config, params, **SIZES)
  state = jax.eval_shape(tx.init, params)
  # Two moments of Dense_1, a count for Adam and one for the schedule.
  sizes = [x.size for x in jax.tree.leaves(state)]
  assert sum(sizes) == 2 * (2 + 33 * 2) + 1 + 1
  assert len(schedule_fns) == 1
  assert optim.frozen_mask(config, params) == {
    "Dense_0": {"bias": True, "kernel": True},
    "Dense_1": {"bias": False, "kernel": False},
  }


def test_weight_decay_follows_the_schedule_and_not_lr():
  config = SGD | {
    "wd": 0.1,
    "wd_mults": ((".*kernel", 1.0), ("Dense_0/.*", 0.5)),
  }
  config["schedule"] = {"decay_type": "linear"}
  params = {"Dense_0": {"kernel": 1.0, "bias": 1.0}, "Dense_1": {"bias": 1.0}}
  params = jax.tree.map(jnp.float32, params)
  zero = jax.tree.map(jnp.zeros_like, params)
  for lr in (1e-3, 10.0):
    got = _train(config | {"lr": lr}, params, [zero, zero])
    np.testing.assert_allclose(got["Dense_0"]["kernel"], 0.9 * 0.905, rtol=1e-6)
    np.testing.assert_allclose(got["Dense_0"]["bias"], 0.95 * 0.9525, rtol=1e-6)
    assert got["Dense_1"]["bias"] == 1.0


def test_first_lr_mult_wins_and_schedules_apply_by_name():
  config = SGD | {
    "lr_mults": [("a", 0.5), ("[ab]", 4.0)],
    "schedule": [("c", {"mult": 3.0}), (".*", {"decay_type": "linear"})],
  }
  params = {name: jnp.float32(0) for name in "abcd"}
  grad = {name: jnp.float32(1) for name in "abcd"}
  got = _train(config, params, [grad, grad])
  expected = {
    "a": -0.1 * 0.5 * (1 + 0.95),
    "b": -0.1 * 4.0 * (1 + 0.95),
    "c": -0.1 * 3.0 * 2,
    "d": -0.1 * (1 + 0.95),
  }
  for name, value in expected.items():
    np.testing.assert_allclose(got[name], value, rtol=1e-6)
  _, (constant, linear) = optim.make(config, params, **SIZES)
  assert constant(19) == 3.0
  np.testing.assert_allclose(linear(15), 0.25, rtol=1e-6)


def test_scanned_blocks_train_like_separate_ones():
  """One pattern names the block's parameters in either layout."""
  config = {
    "optax_name": "scale_by_adam",
    "lr": 0.1,
    "lr_mults": [(r"block(_\d+)?/Dense_0/.*", 0.1)],
    "wd": 0.01,
    "grad_clip_norm": 1.0,
    "schedule": [(r".*/Dense_1/bias", None), (".*", {})],
  }

  def stack(tree):
    return {"block": jax.tree.map(lambda *xs: np.stack(xs), *tree.values())}

  names = ("block_0", "block_1", "block_2")
  blocks = {name: _grads(-10 - i) for i, name in enumerate(names)}
  grads = [
    {name: _grads(10 * t + i) for i, name in enumerate(names)} for t in range(4)
  ]
  separate = _train(config, blocks, grads)
  scanned = _train(config, stack(blocks), [stack(grad) for grad in grads])
  close = functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7)
  jax.tree.map(close, scanned, stack(separate))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"lr": None}, "config.lr is missing"),
    ({"optax_name": None}, "Unknown config.optax_name ''"),
    ({"optax_name": 3}, "optax_name must be of type str, got 3"),
    (
      {"optax_name": "scale_by_muon", "optax": {"matrices": "("}},
      r"config.optax.matrices: got '\(', expected a regular",
    ),
    ({"schedule": {"end": "a", "decay_type": "linear"}}, "A linear sch.*'end'"),
    ({"optax_name": ["scale_by_adam"]}, "optax_name must be of type str"),
    ({"optax_name": "scale_by_adm"}, "Did you mean 'scale_by_adam'"),
    ({"optax_name": "momentum_hp"}, "Did you mean 'big_vision.momentum_hp'"),
    ({"optax_name": "scale_by_"}, "scale_by_param_block_rms, scale_by_radam"),
    ({"optax_name": "adamw"}, "'scale_by_adam' for 'adamw'"),
    (
      {"optax_name": "scale_by_adam", "optax": {"mu_dtype": "bfloat61"}},
      r"config.optax={'mu_dtype': 'bfloat61'}: .*bfloat61",
    ),
    ({"optax_name": "scale"}, r"scale\(step.*missing.* argument: 'step_size'"),
    (
      {"optax_name": "scale_by_adam", "optax": {"beta1": 0.9}},
      r"Unknown argument of scale_by_adam in config.optax 'beta1'. .*Known: b1",
    ),
    ({"lr_mults": [(".*", 0.0)]}, "give them None in config.schedule"),
    ({"lr_mults": [(".*", None)]}, "give them None in config.schedule"),
    ({"wd": 1.0, "wd_mults": [(".*", None)]}, "config.wd_mults has None, exp"),
    (
      {"schedule": "cosine"},
      "config.schedule has 'cosine', expected arguments",
    ),
    ({"lr_mults": ["a"]}, r"lr_mults is \['a'\], expected a list of \(patt"),
    ({"schedule": [1]}, r"schedule is \[1\], expected a list of \(pattern"),
    ({"wd": 1.0, "wd_mults": [("(", 1)]}, r"config.wd_mults: got '\('"),
    (
      {"schedule": [("Dense_0/.*", {})]},
      "got none for Dense_1/bias, Dense_1/kernel",
    ),
    ({"schedule": {"warmup": 3}}, "Unknown argument of the 'stair' schedule"),
    (
      {"schedule": {"batch_size": 8}},
      "argument of the 'stair' schedule 'batch_size'. .*Known: cooldown_epochs",
    ),
    (
      {"lr": -0.1},
      "config.lr has -0.1, expected a number that is not negative",
    ),
    ({"grad_clip_norm": True}, "config.grad_clip_norm has True, expected"),
    (
      {"grad_clip_norm": [("Dense_0/.*", 1), (".*", -2)]},
      "config.grad_clip_norm has -2, expected",
    ),
    (
      {"optax_name": "mypkg_optimizers:nothing"},
      "returned None, expected an op",
    ),
    (
      {"optax_name": "scale_by_polyak"},
      "needs value for every update, and get",
    ),
    (
      {"optax_name": "safe_increment", "optax": {"count": 1}},
      r"'safe_increment' returned .*, expected an optax.GradientTransformation",
    ),
  ],
)
def test_errors(change, message, tmp_path, monkeypatch):
  (tmp_path / "mypkg_optimizers.py").write_text("def nothing(): pass")
  monkeypatch.syspath_prepend(tmp_path)
  with pytest.raises(ValueError, match=message):
    optim.make(SGD | change, _params(), **SIZES)


def test_patterns_of_muon(caplog):
  for pattern in (".*", ".*kernel", "neither"):
    options = {"optax_name": "scale_by_muon", "optax": {"matrices": pattern}}
    tx, _ = optim.make(SGD | options, _params(), **SIZES)
    tx.init(_params())
  [message] = caplog.messages
  assert message.startswith("config.optax.matrices: nothing belongs to 'neith")


def test_everything_can_be_frozen():
  config = SGD | {"wd": 0.1, "schedule": None}
  params = _train(config, _params(), [_grads(0)])
  jax.tree.map(np.testing.assert_array_equal, params, _params())
  assert optim.make(config, params, **SIZES)[1] == []
  assert all(jax.tree.leaves(optim.frozen_mask(config, params)))


def unit_rows(name, x):
  """What `config.projection` names below."""
  is_kernel = name.endswith("/kernel")
  return x / jnp.linalg.norm(x, axis=1, keepdims=True) if is_kernel else x


def test_projection_follows_every_update():
  config = SGD | {"projection": f"{__name__}:unit_rows"}
  config["schedule"] = [("Dense_0/.*", None), (".*", {})]
  before = _params()
  after = _train(config, before, [_grads(0)])
  kernel = np.float64(before["Dense_1"]["kernel"])
  kernel -= 0.1 * _grads(0)["Dense_1"]["kernel"]
  kernel /= np.linalg.norm(kernel, axis=1, keepdims=True)
  np.testing.assert_allclose(after["Dense_1"]["kernel"], kernel, rtol=1e-5)
  plain = _train({**config, "projection": None}, before, [_grads(0)])
  np.testing.assert_array_equal(
    after["Dense_1"]["bias"], plain["Dense_1"]["bias"]
  )
  np.testing.assert_equal(after["Dense_0"], before["Dense_0"])  # frozen
