"""Pointwise functions against the code of arXiv 2503.10622 and 2512.10938."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.models import norms
from dpn.models.norms import pointwise


@pytest.mark.parametrize("name", pointwise.NORMS)
def test_output_and_gradients_of_the_authors(name, golden, precision):
  vectors = golden("frontier") | golden("methods")
  vectors["in/x"] = vectors["in/x3"]
  names = {"alpha": "alpha", "scale": "weight", "bias": "bias"}
  names |= {"shift": "shift"} if name != "dyt" else {}
  norm = norms.make(name, alpha=0.7)

  def run(get, x):
    params = {ours: get(theirs) for ours, theirs in names.items()}
    init = norm.init(jax.random.key(0), x)["params"]
    assert jax.tree.map(jnp.shape, init) == jax.tree.map(jnp.shape, params)
    return norm.apply({"params": params}, x)

  precision.check(vectors, f"pointwise/{name}", run)


def test_where_parameters_start():
  for name in pointwise.NORMS:
    init = norms.make(name, alpha=0.7).init(jax.random.key(0), jnp.ones(4))
    np.testing.assert_allclose(init["params"]["alpha"], [0.7], rtol=1e-6)
  norm = norms.make("relsign", alpha=2.0, shift=-1.0)
  y, variables = norm.init_with_output(jax.random.key(0), jnp.array([1.5]))
  np.testing.assert_allclose(y, [(5**0.5 - 1) / 2], rtol=1e-6)  # h(2)
  assert variables["params"]["alpha"] == 2
  assert variables["params"]["shift"] == -1


def test_dyt_can_have_a_shift():
  x = jnp.ones((1, 4))
  norm = norms.make("dyt", alpha=0.5, shift=0.25)
  y, variables = norm.init_with_output(jax.random.key(0), x)
  assert set(variables["params"]) == {"alpha", "shift", "scale", "bias"}
  np.testing.assert_allclose(y, np.full((1, 4), 0.6351489524), rtol=1e-6)
