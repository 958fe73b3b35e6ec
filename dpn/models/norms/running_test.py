"""Batch statistics against PyTorch's and against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.models import norms


def train(norm, variables, x):
  apply = functools.partial(norm.apply, train=True, mutable=["batch_stats"])
  return jax.jit(apply)(variables, x)


def test_batchnorm_in_training(golden, precision):
  vectors = golden("norms")
  x = precision.cast(vectors["in/x"])
  norm = norms.make("batchnorm")
  variables = precision.cast(norm.init(jax.random.key(0), x))
  variables["params"] = precision.cast(
    {"scale": vectors["param/weight"], "bias": vectors["param/bias"]}
  )
  y, vjp, state = jax.vjp(lambda x: train(norm, variables, x), x, has_aux=True)
  precision.assert_close(y, vectors["batchnorm_train/y"])
  (grad,) = vjp(precision.cast(vectors["in/cotangent"]))
  precision.assert_close(grad, vectors["batchnorm_train/grad_x"])

  tokens = vectors["in/x"].astype(np.float64).reshape(-1, 24)
  precision.assert_close(
    state["batch_stats"]["mean"], 0.1 * tokens.mean(axis=0)
  )
  precision.assert_close(
    state["batch_stats"]["var"], 0.9 + 0.1 * tokens.var(axis=0, ddof=1)
  )


def numpy_switchable(x, means, variances, layer_axes, mean_weight, var_weight):
  """Equations 3 and 5 of arXiv 1806.10779, with given batch statistics."""
  softmax = lambda w: np.exp(w) / np.exp(w).sum()
  stats = [
    (x.mean(axes, keepdims=True), x.var(axes, keepdims=True))
    for axes in [(1,), layer_axes]
  ] + [(means, variances)]
  mean = sum(
    w * m for w, (m, _) in zip(softmax(mean_weight), stats, strict=True)
  )
  var = sum(w * v for w, (_, v) in zip(softmax(var_weight), stats, strict=True))
  return (x - mean) / np.sqrt(var + 1e-5)


@pytest.mark.parametrize(
  ("kw", "layer_axes"), [({}, (1, 2)), ({"layer": "token"}, (2,))]
)
def test_switchable(kw, layer_axes, precision):
  x = np.random.RandomState(0).randn(3, 5, 8) * 2 + 1
  params = {
    "mean_weight": np.array([0.5, -1.0, 2.0]),
    "var_weight": np.array([-0.5, 1.0, 0.0]),
    "scale": np.ones(8),
    "bias": np.zeros(8),
  }
  stats = {"mean": np.linspace(-1, 1, 8), "var": np.linspace(1, 2, 8)}
  norm = norms.make("switchable", **kw)
  variables = precision.cast({"params": params, "batch_stats": stats})
  x_in = precision.cast(x)

  weights = params["mean_weight"], params["var_weight"]
  want = numpy_switchable(x, stats["mean"], stats["var"], layer_axes, *weights)
  precision.assert_close(norm.apply(variables, x_in), want)

  y, state = train(norm, variables, x_in)
  batch = x.mean((0, 1)), x.var((0, 1))
  precision.assert_close(y, numpy_switchable(x, *batch, layer_axes, *weights))
  precision.assert_close(
    state["batch_stats"]["mean"], 0.9 * stats["mean"] + 0.1 * batch[0]
  )


def test_switchable_starts_with_equal_weights():
  params = norms.make("switchable").init(jax.random.key(0), jnp.ones((2, 3, 4)))
  np.testing.assert_array_equal(params["params"]["mean_weight"], np.ones(3))
  np.testing.assert_array_equal(params["params"]["var_weight"], np.ones(3))
