"""PowerNorm's training steps against the code of arXiv 2112.02624."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from dpn.models import norms
from dpn.models.norms import base, power_norm

OWG = power_norm.OVERWRITE_WITH_GRADIENT


def train_steps(norm, params, xs, cotangent):
  """Yields (y, grad_x, variables after) as a trainer would see them."""
  variables = {**norm.init(jax.random.key(0), xs[0]), "params": params}
  dtype = xs[0].dtype
  variables = jax.tree.map(
    lambda v: v if v.dtype == jnp.int32 else v.astype(dtype), variables
  )

  @jax.jit
  def step(variables, x):
    def loss(ema, x):
      y, state = norm.apply(
        {**variables, OWG: ema}, x, train=True, mutable=["batch_stats", OWG]
      )
      return (y * cotangent).sum(), (y, state)

    grads, (y, state) = jax.grad(loss, (0, 1), has_aux=True)(variables[OWG], x)
    return y, grads[1], {**variables, **state, OWG: grads[0]}

  for x in xs:
    y, grad, variables = step(variables, x)
    yield y, grad, variables


def test_three_steps_across_the_warmup(golden, precision):
  vectors = golden("norms")
  cast = precision.cast
  x = cast(vectors["in/x"])
  norm = norms.make("powernorm", warmup=2, tokens=base.TokenGrid(num_heads=4))
  params = cast(
    {"scale": vectors["param/weight"], "bias": vectors["param/bias"]}
  )
  steps = train_steps(
    norm, params, [s * x for s in (1, 2, 3)], cast(vectors["in/cotangent"])
  )
  for i, (y, grad, variables) in enumerate(steps, start=1):
    want = {
      k: vectors[f"powernorm_train_warmup2/step{i}/{k}"]
      for k in ("y", "grad_x", "running_phi", "ema_gz")
    }
    precision.assert_close(y, want["y"])
    precision.assert_close(grad, want["grad_x"])
    precision.assert_close(variables["batch_stats"]["phi"], want["running_phi"])
    precision.assert_close(variables[OWG]["ema"], want["ema_gz"])
    assert variables["batch_stats"]["step"] == i


def test_both_running_estimates_are_those_of_the_global_batch():
  x = jax.random.normal(jax.random.key(0), (8, 3, 6))
  cotangent = jax.random.normal(jax.random.key(1), (8, 3, 6))
  norm = norms.make("powernorm", tokens=base.TokenGrid(num_heads=2))
  params = {"scale": jnp.arange(1.0, 7), "bias": jnp.ones(6)}
  mesh = jax.make_mesh(
    (4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)
  )
  sharded = NamedSharding(mesh, PartitionSpec("data"))
  one = list(train_steps(norm, params, [x, 2 * x], cotangent))
  four = list(
    train_steps(
      norm,
      params,
      jax.device_put([x, 2 * x], sharded),
      jax.device_put(cotangent, sharded),
    )
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
    one,
    four,
  )
  assert (jnp.abs(one[1][2][OWG]["ema"]) > 1e-3).all()


def test_evaluation_reads_and_does_not_write():
  x = jax.random.normal(jax.random.key(0), (4, 3, 6))
  norm = norms.make("powernorm", tokens=base.TokenGrid(num_heads=6))
  variables = norm.init(jax.random.key(0), x)
  variables["batch_stats"]["phi"] = jnp.full(6, 4.0)
  y, state = norm.apply(variables, x, mutable=["batch_stats"])
  # With groups of one channel the group RMS leaves the signs.
  want = x / jnp.sqrt(x**2 + 1e-5) / 2
  np.testing.assert_allclose(y, want, rtol=1e-4)
  np.testing.assert_array_equal(state["batch_stats"]["phi"], jnp.full(6, 4.0))


def test_training_needs_mutable_state():
  norm = norms.make("powernorm")
  x = jnp.ones((2, 3, 4))
  with pytest.raises(Exception, match="immutable"):
    norm.apply(norm.init(jax.random.key(0), x), x, train=True)
