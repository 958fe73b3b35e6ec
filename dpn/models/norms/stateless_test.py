"""Norms of one token, published after 2022."""

import jax
import jax.numpy as jnp
import numpy as np

from dpn.models import norms


def test_centernorm_of_lipsformer(golden, precision):
  norm = norms.make("centernorm")

  def run(get, x):
    params = {"scale": get("weight"), "bias": get("bias")}
    return norm.apply({"params": params}, x)

  precision.check(golden("frontier_states"), "centernorm", run)


def test_seednorm(golden, precision):
  vectors = golden("frontier_states")
  get = lambda key: precision.cast(vectors[f"derived/seednorm/{key}"])
  x = precision.cast(vectors["in/x"])
  names = {"alpha": "alpha", "beta": "beta", "scale": "gamma"}
  params = {ours: get(f"param/{theirs}") for ours, theirs in names.items()}
  norm = norms.make("seednorm")
  precision.assert_close(norm.apply({"params": params}, x), get("y"))
  # It starts as an RMSNorm.
  start = norm.init(jax.random.key(0), x)
  assert jax.tree.map(jnp.shape, start["params"]) == dict.fromkeys(names, (24,))
  rmsnorm = norms.make("rmsnorm").apply({"params": {"scale": jnp.ones(24)}}, x)
  np.testing.assert_allclose(norm.apply(start, x), rmsnorm, rtol=1e-5)


def test_bhyt_of_its_authors(golden, precision):
  vectors = golden("frontier_states")
  vectors["in/cotangent"] = vectors["centernorm/in/cotangent"]
  norm = norms.make("bhyt")

  def run(get, x):
    params = {"scale": get("weight"), "lam": get("lam")}
    return norm.apply({"params": params}, x)

  precision.check(vectors, "bhyt", run)
  start = norm.init(jax.random.key(0), vectors["in/x"])["params"]
  assert start["lam"] == 2
  np.testing.assert_array_equal(start["scale"], np.ones(24))


def test_one_plus_scale_is_rmsnorm(golden, precision):
  vectors = golden("norms")
  x = precision.cast(vectors["in/x"])
  norm = norms.make("rmsnorm_plus_one")
  start = norm.init(jax.random.key(0), x)["params"]["scale"]
  np.testing.assert_array_equal(start, np.zeros(24))
  scale = precision.cast(vectors["param/weight"].astype(float) - 1)
  y = norm.apply({"params": {"scale": scale}}, x)
  precision.assert_close(y, vectors["rmsnorm_eps1e-6/y"])
