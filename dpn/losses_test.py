"""Losses against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from jax.sharding import NamedSharding, PartitionSpec

from dpn import losses, sharding


@pytest.mark.parametrize("name", ["softmax_xent", "sigmoid_xent"])
def test_against_scipy_on_mixed_labels(name):
  rng = np.random.default_rng(0)
  logits = 5 * rng.normal(size=(4, 3, 10))
  labels = rng.dirichlet(np.full(10, 0.2), size=(4, 3))
  labels[0, 0] = 0  # of no class
  if name == "softmax_xent":
    expected = -np.sum(labels * scipy.special.log_softmax(logits, -1), -1)
  else:
    yes, no = scipy.special.expit(logits), scipy.special.expit(-logits)
    expected = -np.sum(labels * np.log(yes) + (1 - labels) * np.log(no), -1)
  got = losses.get(name)(jnp.float32(logits), jnp.float32(labels))
  np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["softmax_xent", "sigmoid_xent"])
def test_stable_at_extreme_logits(name):
  fn = losses.get(name)
  logits = jnp.array([[1e4, -1e4], [1e4, -1e4]])
  labels = jnp.array([[1.0, 0.0], [0.0, 1.0]])
  assert fn(logits, labels).tolist() == [0.0, 2e4]
  grads = jax.grad(lambda x: fn(x, labels).sum())(logits)
  assert grads.tolist() == [[0.0, 0.0], [1.0, -1.0]]


@pytest.mark.parametrize("name", ["softmax_xent", "sigmoid_xent"])
def test_half_precision_logits_are_reduced_in_float32(name):
  rng = np.random.default_rng(1)
  logits = jnp.asarray(rng.normal(size=(2, 1000)), jnp.bfloat16)
  labels = jax.nn.one_hot(jnp.array([1, 2]), 1000)
  got = losses.get(name)(logits, labels)
  assert got.dtype == jnp.float32
  expected = losses.get(name)(logits.astype(jnp.float32), labels)
  np.testing.assert_array_equal(got, expected)


RNG = np.random.default_rng(2)
Z = RNG.normal(size=(2, 8, 5))
Z = np.float32(Z / np.linalg.norm(Z, axis=2, keepdims=True))
T, BIAS = np.float32([7.0]), np.float32([-3.0])
MASK = np.array([1, 1, 0, 1, 1, 1, 0, 1], bool)
CONTRASTIVE = {
  "softmax": lambda z, t, b, **kw: losses.softmax_contrastive(*z, t, **kw),
  "sigmoid": lambda z, t, b, **kw: losses.sigmoid_contrastive(*z, t, b, **kw),
}


def _contrastive_in_numpy(name, z):
  """Returns the loss of each pair, in float64."""
  zimg, ztxt = np.float64(z)
  logits = zimg @ ztxt.T * 7
  if name == "softmax":
    rows = scipy.special.log_softmax(logits, axis=1)
    columns = scipy.special.log_softmax(logits, axis=0)
    return -(np.diag(rows) + np.diag(columns)) / 2
  signs = 2 * np.eye(len(zimg)) - 1
  return np.log1p(np.exp(-signs * (logits - 3))).sum(1)


@pytest.mark.parametrize("name", CONTRASTIVE)
def test_contrastive(name):
  got = CONTRASTIVE[name](Z, T, BIAS)
  np.testing.assert_allclose(got, _contrastive_in_numpy(name, Z), rtol=1e-5)
  got = CONTRASTIVE[name](Z, T, BIAS, mask=MASK)
  want = _contrastive_in_numpy(name, Z[:, MASK])
  np.testing.assert_allclose(got[MASK], want, rtol=1e-5)
  assert (got[~MASK] == 0).all()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name", CONTRASTIVE)
def test_contrastive_in_chunks_on_four_devices(name, masked):
  kw = {"mask": MASK} if masked else {}

  def mean(chunks, z, t, b):
    loss = CONTRASTIVE[name](z, t, b, chunks=chunks, **kw)
    return loss.mean(), loss

  grad = jax.value_and_grad(mean, argnums=(1, 2, 3), has_aux=True)
  by_batch = NamedSharding(sharding.make_mesh(), PartitionSpec(None, "data"))
  step = jax.jit(
    lambda *args: grad(2, *args), in_shardings=(by_batch, None, None)
  )
  whole, chunked = grad(1, Z, T, BIAS), step(Z, T, BIAS)
  jax.tree.map(
    lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
    *(whole, chunked),
  )


def test_a_text_for_every_image():
  with pytest.raises(ValueError, match=r"\(8, 5\) of images and \(7, 5\) of"):
    losses.softmax_contrastive(Z[0], Z[1, :7], T)
