"""Mixup against NumPy, SciPy's Beta distribution and the compiled program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dpn.mixup import mixup

# Names of the operations by which devices talk to each other.
COLLECTIVES = ("all-", "collective-", "reduce-scatter")


def _lam(rng, p):
  """Returns the lam of a draw: the weight of a one among zeros."""
  return mixup(rng, p, jnp.array([1.0, 0.0]))[0][0]


def _batch(dtype=np.float32):
  rng = np.random.default_rng(0)
  return rng.normal(size=(8, 4, 4, 3)).astype(dtype), np.eye(8, dtype=dtype)


def _numpy_mixup(lam, x, groups):
  parts = np.split(x, groups)
  return np.concatenate(
    [lam * x + (1 - lam) * np.concatenate([x[-1:], x[:-1]]) for x in parts]
  )


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_against_numpy(groups):
  rng = jax.random.key(3)
  lam = np.float64(_lam(rng, 0.5))
  for x, got in zip(
    _batch(), mixup(rng, 0.5, *_batch(), groups=groups), strict=True
  ):
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, _numpy_mixup(lam, x, groups), atol=1e-6)


@pytest.mark.parametrize("p", [0.2, 0.8])
def test_lam_is_the_larger_side_of_a_beta(p):
  """P(max(l, 1 - l) < t) = 2 P(l < t) - 1 for t > 1/2, l being symmetric."""
  rngs = jax.random.split(jax.random.key(0), 2000)
  lams = np.asarray(jax.vmap(lambda rng: _lam(rng, p))(rngs), np.float64)
  assert lams.min() >= 0.5
  assert lams.max() <= 1.0
  beta = scipy.stats.beta(p, p)
  test = scipy.stats.kstest(lams, lambda t: 2 * beta.cdf(t) - 1)
  assert test.pvalue > 0.01


def test_half_precision_is_mixed_in_float32():
  rng = jax.random.key(1)
  lam = np.float64(_lam(rng, 0.2))
  images, _ = _batch(jnp.bfloat16)
  (got,) = mixup(rng, 0.2, jnp.asarray(images))
  assert got.dtype == jnp.bfloat16
  expected = _numpy_mixup(lam, images.astype(np.float64), 1)
  # Half a unit in the last of bfloat16's eight digits: rounded only once.
  np.testing.assert_allclose(np.float64(got), expected, rtol=2**-8)


@pytest.mark.parametrize("groups", [1, 4])
def test_sharded_batch_has_the_same_result(groups):
  rng = jax.random.key(7)
  mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
  sharding = NamedSharding(mesh, PartitionSpec("data"))
  batch = jax.device_put(_batch(), sharding)
  step = jax.jit(
    lambda rng, *xs: mixup(rng, 0.5, *xs, groups=groups),
    out_shardings=sharding,
  )
  expected = mixup(rng, 0.5, *_batch(), groups=groups)
  for got, want in zip(step(rng, *batch), expected, strict=True):
    np.testing.assert_allclose(got, want, atol=1e-6)
  text = step.lower(rng, *batch).compile().as_text()
  talks = any(f" {name}" in text for name in COLLECTIVES)
  assert talks == (groups == 1)


def test_errors():
  rng = jax.random.key(0)
  with pytest.raises(ValueError, match="got p=0, expected p > 0"):
    mixup(rng, 0, jnp.ones(4))
  with pytest.raises(ValueError, match=r"int32 of shape \(4,\), expected floa"):
    mixup(rng, 0.2, jnp.arange(4))
  with pytest.raises(ValueError, match="batch of 6 in 4 groups"):
    mixup(rng, 0.2, jnp.ones(6), groups=4)
