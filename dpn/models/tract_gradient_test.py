"""TrAct against its authors' code, alone and in a model."""

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import sharding
from dpn.models import tract_gradient, vit

# The gradients of TrActLinear, λ = 0.1, 40 rows of 12 inputs.
GOLDEN = np.load(
  pathlib.Path(__file__).parent.parent / "testdata" / "tract.npz"
)
X, WEIGHT = GOLDEN["in/x"], GOLDEN["in/weight"]


def _gradients(x):
  matmul = lambda x, kernel: tract_gradient.matmul(x, kernel, 0.1)
  y, pull = jax.vjp(matmul, x, WEIGHT.T)
  return y, *pull(jnp.reshape(GOLDEN["in/cotangent"], y.shape))


def test_released_code():
  y, dx, dkernel = _gradients(X)
  expected = GOLDEN["out/y"] - GOLDEN["in/bias"]
  np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(dx, GOLDEN["grad/x"], rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(
    dkernel, GOLDEN["grad/weight"].T, rtol=1e-4, atol=1e-4
  )


@pytest.mark.parametrize("rows", [5, 40])
def test_double_precision(rows, precision):
  """Also of fewer rows than inputs, where theirs inverts the other product."""
  x, kernel = precision.cast((X[:rows], WEIGHT.T))
  matmul = lambda kernel: tract_gradient.matmul(x, kernel, 0.1)
  g = precision.cast(GOLDEN["in/cotangent"].reshape(40, -1)[:rows])
  (dkernel,) = jax.vjp(matmul, kernel)[1](g)
  rank = np.linalg.inv(np.float64(x @ x.T) / rows + 0.1 * np.eye(rows))
  precision.assert_close(dkernel, np.float64(x).T @ rank @ np.float64(g))


def test_rows_of_all_devices_count():
  mesh = sharding.make_mesh()
  assert mesh.size == 4
  spread = jax.device_put(X, sharding.batch(mesh))
  gradient = jax.jit(lambda x: _gradients(x)[2])(spread)
  np.testing.assert_allclose(
    gradient, GOLDEN["grad/weight"].T, rtol=1e-4, atol=1e-4
  )


def test_only_the_embedding_is_trained_differently():
  image = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype("f")
  options = {"width": 8, "depth": 1, "num_heads": 2, "patch_size": (2, 2)}

  def gradients(**stem):
    model = vit.Model(5, stem_ln="dpn", head_zeroinit=False, **options, **stem)
    params = jax.jit(model.init)(jax.random.key(0), image)["params"]
    loss = lambda p: (model.apply({"params": p}, image)[0] ** 2).sum()
    return jax.jit(jax.grad(loss))(params)

  usual = gradients()
  kw = {"regularization": 0.3}
  tract = gradients(stem="tract", stem_kw=kw)
  kernels = [g["embedding"].pop("kernel") for g in (usual, tract)]
  # But for rounding: `patch` multiplies the scale of ln0 into the kernel.
  close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
  jax.tree.map(close, usual, tract)
  x = np.float64(image).reshape(3, 4, 2, 4, 2, 3).transpose(0, 1, 3, 2, 4, 5)
  x = x.reshape(-1, 12)
  x = x - x.mean(-1, keepdims=True)  # ln0 has no effect of its own yet
  x /= np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
  moments = x.T @ x / len(x) + 0.3 * np.eye(12)
  expected = np.linalg.solve(moments, np.float64(kernels[0]).reshape(12, 8))
  np.testing.assert_allclose(
    kernels[1].reshape(12, 8), expected, rtol=1e-3, atol=1e-4
  )


def test_its_files_are_those_of_patch():
  small = {"width": 8, "depth": 1, "num_heads": 2}
  made = [vit.Model(3, **small, stem=stem) for stem in ("patch", "tract")]
  assert vit.options(made[0]) == vit.options(made[1])


def test_a_regularization_of_zero_is_refused():
  model = vit.Model(
    3, variant="mu/8", stem="tract", stem_kw={"regularization": 0}
  )
  with pytest.raises(
    ValueError, match="regularization must be positive, got 0"
  ):
    model.init(jax.random.key(0), np.zeros((1, 8, 8, 3), np.float32))
