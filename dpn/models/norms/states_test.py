"""Training steps of norms with states, against the authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import sharding
from dpn.models import norms
from dpn.models.norms import base
from dpn.models.norms.power_norm import OVERWRITE_WITH_GRADIENT as OWG


def start(norm, x, params, precision):
  variables = precision.cast(norm.init(jax.random.key(0), x))
  shapes = lambda tree: jax.tree.map(jnp.shape, tree)
  assert shapes(variables["params"]) == shapes(params)
  return {**variables, "params": params}


def step(norm, variables, x, cotangent):
  """Returns (y, gradients of params and x, variables after), as a trainer."""

  @jax.jit
  def run(variables, x):
    def loss(params, owg, x):
      given = {**variables, "params": params, **owg}
      y, state = norm.apply(given, x, train=True, mutable=["batch_stats"])
      return (y * cotangent).sum(), (y, state)

    owg = {k: v for k, v in variables.items() if k == OWG}
    grad = jax.grad(loss, (0, 1, 2), has_aux=True)
    (params, owg, by_x), (y, state) = grad(variables["params"], owg, x)
    return y, params, by_x, {**variables, **state, **owg}

  return run(variables, x)


def test_powernorm_across_its_warmup(golden, precision):
  vectors = golden("norms")
  given = {"scale": vectors["param/weight"], "bias": vectors["param/bias"]}
  params, x, cotangent = precision.cast(
    (given, vectors["in/x"], vectors["in/cotangent"])
  )
  norm = norms.make("powernorm", warmup=2, tokens=base.TokenGrid(num_heads=4))
  variables = start(norm, x, params, precision)
  for i in (1, 2, 3):
    got = lambda key, i=i: vectors[f"powernorm_train_warmup2/step{i}/{key}"]
    y, _, by_x, variables = step(norm, variables, i * x, cotangent)
    precision.assert_close(y, got("y"))
    precision.assert_close(by_x, got("grad_x"))
    stats = variables["batch_stats"]
    precision.assert_close(stats["phi"], got("running_phi"))
    precision.assert_close(variables[OWG]["ema"], got("ema_gz"))
    assert stats["step"] == i


def test_powernorm_in_evaluation_reads_and_does_not_write():
  x = jax.random.normal(jax.random.key(0), (4, 3, 6))
  norm = norms.make("powernorm", tokens=base.TokenGrid(num_heads=6))
  variables = norm.init(jax.random.key(0), x)
  variables["batch_stats"]["phi"] = jnp.full(6, 4.0)
  y, state = norm.apply(variables, x, mutable=["batch_stats"])
  # With groups of one channel the group RMS leaves the signs.
  want = x / jnp.sqrt(x**2 + 1e-5) / 2
  np.testing.assert_allclose(y, want, rtol=1e-4)
  np.testing.assert_array_equal(state["batch_stats"]["phi"], jnp.full(6, 4.0))


def test_prepbn_starts_with_the_scale_given():
  """Blocks whose norms start at 0 are the identity, also in training."""
  norm, x = (
    norms.make("prepbn", scale_init=0.0),
    jnp.ones((2, 3, 4)).at[0].set(2),
  )
  y, _ = norm.init_with_output(jax.random.key(0), x, train=True)
  np.testing.assert_array_equal(y, 0)


def test_prepbn(golden, precision):
  vectors = golden("frontier_states")
  get = lambda key: precision.cast(vectors[f"prepbn/{key}"])
  names = {
    **{"scale": "norm2.bn.weight", "bias": "norm2.bn.bias"},
    "eta": "norm2.alpha",
    "ln": {"scale": "norm1.weight", "bias": "norm1.bias"},
  }
  params = jax.tree.map(lambda theirs: get(f"param/{theirs}"), names)
  norm = norms.make("prepbn", warmup=1, steps=4)
  x = vectors["in/x"]
  variables = start(norm, precision.cast(x), params, precision)
  for i in range(6):
    got = lambda key, i=i: get(f"step{i}/{key}")
    seen = x * np.float32(1 + 0.5 * i) + np.float32(0.25 * i)
    y, by_params, by_x, variables = step(
      norm, variables, precision.cast(seen), got("in/cotangent")
    )
    precision.assert_close(y, got("out/y"))
    precision.assert_close(by_x, got("grad/x"))
    # In the first step theirs does not use the other norm at all.
    jax.tree.map(
      lambda g, name, i=i: precision.assert_close(
        g, vectors.get(f"prepbn/step{i}/grad/{name}", np.zeros(g.shape))
      ),
      by_params,
      names,
    )
    stats = variables["batch_stats"]
    precision.assert_close(stats["mean"], got("state/running_mean"))
    precision.assert_close(stats["var"], got("state/running_var"))
    assert stats["step"] == i + 1
  y = norm.apply(variables, precision.cast(x))
  precision.assert_close(y, get("eval/y"))


@pytest.mark.parametrize("group", ["filter_False", "filter"])
def test_unifiednorm(group, golden, precision):
  """The second with outliers, and from step 997, when r is not yet free."""
  vectors = golden("frontier_states") | golden("methods")
  get = lambda key: precision.cast(vectors[f"un/{group}/{key}"])
  params = {"scale": get("param/weight"), "bias": get("param/bias")}
  late = group == "filter"
  kw = {"window": 2, "warmup": 3, "filter_outliers": late}
  norm = norms.make("unifiednorm", **kw)
  x, count = vectors["un/filter/in/x" if late else "in/x"], 996 * late
  variables = start(norm, precision.cast(x), params, precision)
  names = {"var": "running_var", "window": "buffer_x2", "ema": "ema_gz"}
  if late:
    stats = {k: get(f"start/{names[k]}") for k in ("var", "window")}
    backward = {"ema": get("start/ema_gz"), "window": get("start/buffer_gz")}
    variables["batch_stats"] = {**stats, "step": jnp.int32(count)}
    variables[OWG] = backward
  factors = vectors["un/filter/in/factors"] if late else 1 + 0.2 * np.arange(6)
  for i, factor in enumerate(np.float32(factors)):
    got = lambda key, i=i: get(f"step{i}/{key}")
    y, by_params, by_x, variables = step(
      norm, variables, precision.cast(x * factor), got("in/cotangent")
    )
    precision.assert_close(y, got("out/y"))
    precision.assert_close(by_x, got("grad/x"))
    precision.assert_close(by_params["scale"], got("grad/weight"))
    precision.assert_close(by_params["bias"], got("grad/bias"))
    stats, backward = variables["batch_stats"], variables[OWG]
    for name in ("var", "window"):
      precision.assert_close(stats[name], got(f"state/{names[name]}"))
    precision.assert_close(backward["ema"], got("state/ema_gz"))
    precision.assert_close(backward["window"], got("state/buffer_gz"))
    assert stats["step"] == count + i + 1
  y = norm.apply(variables, precision.cast(x))
  precision.assert_close(y, get("eval/y"))


@pytest.mark.parametrize("name", ["batchnorm", "prepbn", "unifiednorm"])
def test_a_batch_of_any_rank(name):
  """What theirs do with (batch, width), ours do with any further axes."""
  norm = norms.make(name)
  x = np.random.RandomState(0).randn(2, 3, 4, 5).astype("f")

  def run(x):
    variables = norm.init(jax.random.key(0), x)
    return step(norm, variables, x, jnp.cos(x))[:3]

  flat, whole = run(x.reshape(-1, 5)), run(x)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b.reshape(a.shape), atol=1e-6),
    flat,
    whole,
  )


@pytest.mark.parametrize(
  "name", ["batchnorm", "switchable", "powernorm", "prepbn", "unifiednorm"]
)
def test_statistics_are_those_of_the_global_batch(name):
  x = 3 * jax.random.normal(jax.random.key(0), (8, 5, 6)) + 1
  norm = norms.make(name, tokens=base.TokenGrid(num_heads=2))

  def two_steps(x):
    variables = norm.init(jax.random.key(0), x)
    variables = step(norm, variables, x, jnp.cos(x))[-1]
    return step(norm, variables, 2 * x, jnp.cos(x))

  spread = jax.device_put(x, sharding.batch(sharding.make_mesh()))
  one, four = two_steps(x), two_steps(spread)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    one,
    four,
  )
  if name == "powernorm":
    assert (jnp.abs(one[-1][OWG]["ema"]) > 1e-3).all()
