"""Mixup and CutMix against NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from dpn import mixing, sharding
from dpn.mixing import cutmix, mixup


def _lam(rng, p):
  """Returns the lam of a draw: the weight of a one among zeros."""
  return mixup(rng, p, jnp.array([1.0, 0.0]))[0][0]


def _batch(dtype=np.float32):
  rng = np.random.default_rng(0)
  return rng.normal(size=(8, 4, 4, 3)).astype(dtype), np.eye(8, dtype=dtype)


def _numpy_mixup(lam, x):
  return lam * x + (1 - lam) * np.concatenate([x[-1:], x[:-1]])


def test_against_numpy():
  rng = jax.random.key(3)
  lam = np.float64(_lam(rng, 0.5))
  for x, got in zip(_batch(), mixup(rng, 0.5, *_batch()), strict=True):
    assert got.dtype == x.dtype
    np.testing.assert_allclose(got, _numpy_mixup(lam, x), atol=1e-6)


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
  expected = _numpy_mixup(lam, images.astype(np.float64))
  # Half a unit in the last of bfloat16's eight digits: rounded only once.
  np.testing.assert_allclose(np.float64(got), expected, rtol=2**-8)


@pytest.mark.parametrize("mix", [mixup, cutmix])
def test_sharded_batch_has_the_same_result(mix):
  rng = jax.random.key(7)
  by_batch = sharding.batch(sharding.make_mesh())
  batch = jax.device_put(_batch(), by_batch)
  step = jax.jit(lambda rng, *xs: mix(rng, 0.5, *xs), out_shardings=by_batch)
  expected = mix(rng, 0.5, *_batch())
  for got, want in zip(step(rng, *batch), expected, strict=True):
    np.testing.assert_allclose(got, want, atol=1e-6)


def _numbered():
  """Every image is filled with its number plus one."""
  image = np.broadcast_to(
    np.arange(1.0, 9, dtype=np.float32)[:, None, None, None], (8, 20, 30, 3)
  )
  return jnp.asarray(image), jnp.eye(8)


def test_box_and_labels():
  image, labels = _numbered()
  partner = np.roll(np.arange(8), 1)
  for seed in range(20):
    got, mixed = cutmix(jax.random.key(seed), 1.0, image, labels)
    got = np.asarray(got)
    pasted = got[0, :, :, 0] == partner[0] + 1
    rows, cols = pasted.any(1), pasted.any(0)
    np.testing.assert_array_equal(pasted, rows[:, None] & cols)  # A box,
    for side in (rows, cols):  # in one piece,
      assert np.abs(np.diff(np.pad(side, 1).astype(int))).sum() in (0, 2)
    for i in range(8):  # the same for all.
      expected = np.where(pasted[..., None], partner[i] + 1.0, i + 1.0)
      np.testing.assert_array_equal(got[i], np.repeat(expected, 3, -1))
    share = pasted.mean()
    expected = (1 - share) * np.eye(8) + share * np.eye(8)[partner]
    np.testing.assert_allclose(mixed, expected, atol=1e-6)


@pytest.mark.parametrize("p", [0.5, 1.0])
def test_shares_follow_the_published_algorithm(p):
  """Against its own NumPy statement, drawn apart, by a two-sample test."""
  image, labels = jnp.ones((2, 64, 64, 1)), jnp.eye(2)
  draw = jax.jit(jax.vmap(lambda rng: cutmix(rng, p, image, labels)[1][0, 1]))
  got = np.asarray(draw(jax.random.split(jax.random.key(0), 4000)))
  rng = np.random.default_rng(0)
  expected = []
  for lam in rng.beta(p, p, 4000):
    side = int(64 * np.sqrt(1 - lam)) // 2
    sides = [
      min(c + side, 64) - max(c - side, 0) for c in rng.integers(64, size=2)
    ]
    expected.append(sides[0] * sides[1] / 64**2)
  assert scipy.stats.ks_2samp(got, expected).pvalue > 0.01


def test_switch():
  image, labels = _numbered()
  section = mixing.Mixup(0.8, 1.0, switch_prob=0.25)
  mix = jax.jit(lambda rng: section(rng, image, labels))
  cuts = 0
  for seed in range(400):
    rng = jax.random.key(seed)
    switch_rng, rest = jax.random.split(rng)
    cut = bool(jax.random.bernoulli(switch_rng, 0.25))
    cuts += cut
    if seed < 12:
      expected = (
        cutmix(rest, 1.0, image, labels)
        if cut
        else mixup(rest, 0.8, image, labels)
      )
      for got, want in zip(mix(rng), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)
  assert 70 < cuts < 130  # Binomial(400, 1/4): deviation 8.7.


def test_the_section_of_a_config():
  """0 or None turns a method off; wrong numbers are named."""
  image, labels = _numbered()
  rng = jax.random.key(0)
  for section, want in (
    (mixing.Mixup(None), (image, labels)),
    (mixing.Mixup(0.2), mixup(rng, 0.2, image, labels)),
    (mixing.Mixup(cutmix_p=1.0), cutmix(rng, 1.0, image, labels)),
  ):
    for x, y in zip(section(rng, image, labels), want, strict=True):
      np.testing.assert_array_equal(x, y)
  labels = jax.nn.one_hot(jnp.arange(len(image)) % 3, 4)
  _, mixed = mixup(rng, 0.2, image, labels)
  for smoothed in (labels, 0.9 * labels + 0.025):
    _, both = mixing.Mixup(0.2, whole_labels=True)(rng, image, smoothed)
    np.testing.assert_array_equal(both, mixed > 0)
  for p, prob in ((1, 2), (-1, 0.5)):
    message = rf"cutmix_p={p} and switch_prob={prob}"
    with pytest.raises(ValueError, match=message):
      mixing.Mixup(1, p, switch_prob=prob)
  with pytest.raises(ValueError, match=r"int32 of shape \(8, 2\), expected"):
    cutmix(rng, 1, image, jnp.zeros((8, 2), int))
