"""Golden vectors, to be met in single and in double precision."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

TESTDATA = pathlib.Path(__file__).parent / "testdata"


def part(arrays, start):
  """Returns the arrays whose names begin with `start`, by what follows it."""
  return {
    k.removeprefix(start): arrays[k] for k in arrays if k.startswith(start)
  }


def stacked(params, depth=2):
  """Returns looped parameters in the layout of scanned ones."""
  encoder = dict(params["Transformer"])
  blocks = [encoder.pop(f"encoderblock_{i}") for i in range(depth)]
  encoder["encoderblock"] = jax.tree.map(lambda *x: jnp.stack(x), *blocks)
  return {**params, "Transformer": encoder}


@pytest.fixture
def golden():
  """A function from a file's name to its arrays by name."""

  def load(name):
    with np.load(TESTDATA / f"{name}.npz") as arrays:
      return dict(arrays)

  return load


@pytest.fixture(autouse=True)
def _compile_fast(compile_fast):
  """Models here are tiny: most of a test's time would go into compiling."""


class Precision:
  """A floating point type with the tolerance the vectors are met to."""

  def __init__(self, dtype, **tolerance):
    self.dtype = dtype
    self.tolerance = tolerance

  def cast(self, tree):
    """Returns the tree with all its floats in this type."""

    def cast(x):
      x = jnp.asarray(x)
      real = jnp.issubdtype(x.dtype, jnp.floating)
      return x.astype(self.dtype) if real else x

    return jax.tree.map(cast, tree)

  def value_and_grads(self, function, params, x, cotangent):
    """Returns function(params, x) in this type, and its gradients by both."""

    @jax.jit
    def run(params, x, cotangent):
      y, vjp = jax.vjp(function, params, x)
      return y, *vjp(cotangent)

    return run(*self.cast((params, x, cotangent)))

  def check(self, vectors, group, function):
    """Compares function(get, x) and all its gradients with a group's arrays.

    `get` returns a parameter by its name there, None if there is none. What all
    groups share, such as "in/x", may lack the group in its name.
    """
    start = group and f"{group}/"
    own = vectors | part(vectors, start)
    y, by_params, by_x = self.value_and_grads(
      lambda params, x: function(params.get, x),
      *(part(vectors, f"{start}param/"), own["in/x"], own["in/cotangent"]),
    )
    self.assert_close(y, own["out/y"])
    grads = part(vectors, f"{start}grad/")
    assert grads.keys() - {"x"}
    for name, want in grads.items():
      self.assert_close(by_x if name == "x" else by_params[name], want)

  def assert_close(self, got, want):
    assert got.dtype == self.dtype
    np.testing.assert_allclose(got, want, **self.tolerance)


@pytest.fixture(params=["float32", "float64"])
def precision(request):
  """Both precisions; in double JAX has 64-bit types while the test runs."""
  with jax.enable_x64(request.param == "float64"):
    if request.param == "float64":
      yield Precision("float64", rtol=1e-8, atol=1e-8)
    else:
      yield Precision("float32", rtol=1e-4, atol=2e-5)
