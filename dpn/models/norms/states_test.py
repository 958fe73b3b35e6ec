"""Training steps of norms with states, against the authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.models import norms
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


def test_unifiednorm(golden, precision):
  vectors = golden("frontier_states")
  get = lambda key: precision.cast(vectors[f"un/filter_False/{key}"])
  params = {"scale": get("param/weight"), "bias": get("param/bias")}
  norm = norms.make("unifiednorm", window=2, warmup=3)
  x = vectors["in/x"]
  variables = start(norm, precision.cast(x), params, precision)
  for i in range(6):
    got = lambda key, i=i: get(f"step{i}/{key}")
    seen = x * np.float32(1 + 0.2 * i)
    y, by_params, by_x, variables = step(
      norm, variables, precision.cast(seen), got("in/cotangent")
    )
    precision.assert_close(y, got("out/y"))
    precision.assert_close(by_x, got("grad/x"))
    precision.assert_close(by_params["scale"], got("grad/weight"))
    precision.assert_close(by_params["bias"], got("grad/bias"))
    stats, backward = variables["batch_stats"], variables[OWG]
    precision.assert_close(stats["var"], got("state/running_var"))
    precision.assert_close(stats["window"], got("state/buffer_x2"))
    precision.assert_close(backward["ema"], got("state/ema_gz"))
    precision.assert_close(backward["window"], got("state/buffer_gz"))
    assert stats["step"] == i + 1
  y = norm.apply(variables, precision.cast(x))
  precision.assert_close(y, get("eval/y"))


class NumpyUnified:
  """The authors' code in NumPy: UN1d with a window of 2, for one channel."""

  def __init__(self, step, warmup):
    self.step, self.warmup = step, warmup
    self.var, self.ema = 1.0, 0.3
    self.moments, self.along = np.array([1.0, 3.0]), np.array([0.1, 0.2])
    self.skipped = 0

  def __call__(self, x, grad, scale):
    self.step += 1
    slot, square = self.step % 2, np.square(x).mean()
    spread = np.sqrt(self.moments).var(ddof=1)
    self.moments[slot] = square
    skip = False
    if self.step >= self.warmup:
      difference = self.moments.mean() - np.sqrt(self.moments.prod())
      if skip := difference > 2 * spread:
        self.moments[slot] = self.var
        self.skipped += 1
    alone = self.step <= 2 or self.step < self.warmup or skip
    used = square if alone else np.sqrt(self.moments.prod())
    r = np.sqrt((used + 1e-5) / (self.var + 1e-5))
    fixed = self.step <= max(1000, self.warmup) or skip
    r = 1 if fixed else np.clip(r, 0.2, 5)
    z = x / np.sqrt(used + 1e-5)
    self.var = 0.9 * self.var + 0.1 * used
    g = grad * scale * r
    along = (g * z).mean()
    self.along[slot] = self.ema if skip else along
    mean = along if alone else self.along.mean()
    self.ema = 0.9 * self.ema + 0.1 * mean
    by_x = (g - (mean if skip else self.ema) * z) / np.sqrt(used + 1e-5)
    return scale * z, by_x, (grad * r * z).sum()


@pytest.mark.parametrize("before", [10, 1500])
def test_outliers_and_ratios_of_unifiednorm(before, precision):
  rng = np.random.RandomState(0)
  numpy = NumpyUnified(before, warmup=3)
  norm = norms.make("unifiednorm", window=2, warmup=3, filter_outliers=True)
  params = {"scale": np.array([1.5]), "bias": np.zeros(1)}
  variables = precision.cast(
    {
      "params": params,
      "batch_stats": {
        **{"var": np.ones(1), "window": numpy.moments[:, None].copy()},
        "step": jnp.int32(before),
      },
      OWG: {"ema": np.array([0.3]), "window": numpy.along[:, None].copy()},
    }
  )
  for factor in (1.0, 1.1, 6.0, 0.9, 0.5):
    x, grad = factor * rng.randn(3, 4, 1), rng.randn(3, 4, 1)
    want = numpy(x, grad, 1.5)
    x, grad = precision.cast((x, grad))
    y, by_params, by_x, variables = step(norm, variables, x, grad)
    for got, value in zip((y, by_x, by_params["scale"]), want, strict=True):
      precision.assert_close(got, value)
    precision.assert_close(variables["batch_stats"]["var"], [numpy.var])
    precision.assert_close(variables[OWG]["ema"], [numpy.ema])
  assert 0 < numpy.skipped < 5
