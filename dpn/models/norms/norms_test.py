"""The normalizers against PyTorch and the code of arXiv 2112.02624."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.models import norms, vit
from dpn.models.norms import base

TOKENS = base.TokenGrid(num_heads=4, grid=(1, 5))

GOLDEN = {
  "layernorm_eps1e-5": ("layernorm", "scale bias", {"eps": 1e-5}),
  "layernorm_eps1e-6": ("layernorm", "scale bias"),
  "layernorm_no_affine_eps1e-6": ("standardize", ""),
  "affine_only": ("affine", "scale bias"),
  "rmsnorm_eps1e-6": ("rmsnorm", "scale"),
  "scalenorm_vec": ("scalenorm", "scale"),
  "groupnorm_g4": ("groupnorm", "scale bias"),
  "instancenorm": ("instancenorm", "scale bias"),
  "batchnorm_eval_init": ("batchnorm", "scale bias"),
  "powernorm_eval_init_g4": ("powernorm", "scale bias"),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_output_and_gradient(name, golden, precision):
  kind, params, kw = (*GOLDEN[name], {})[:3]
  vectors = golden("norms")
  values = {"scale": "param/weight", "bias": "param/bias"}
  norm = norms.make(kind, **kw, tokens=TOKENS)
  state = precision.cast(norm.init(jax.random.key(0), vectors["in/x"]))
  y, _, grad = precision.value_and_grads(
    lambda params, x: norm.apply({**state, "params": params}, x),
    {p: vectors[values[p]] for p in params.split()},
    *(vectors["in/x"], vectors["in/cotangent"]),
  )
  precision.assert_close(y, vectors[f"{name}/y"])
  if f"{name}/grad_x" in vectors:
    precision.assert_close(grad, vectors[f"{name}/grad_x"])


@pytest.mark.parametrize(
  ("kind", "option"), [("unifiednorm", "window"), ("dtn", "pool_grid")]
)
def test_numbers_below_1(kind, option):
  norm = norms.make(kind, **{option: 0}, tokens=TOKENS)
  with pytest.raises(ValueError, match=f"{kind} got {option}=0, expected >= 1"):
    norm.init(jax.random.key(0), jnp.ones((2, 5, 8)))


def test_statistics_of_one_token():
  norm = norms.make("instancenorm", tokens=base.TokenGrid(grid=(1, 1)))
  y, _ = norm.init_with_output(jax.random.key(0), jnp.ones((2, 1, 8)))
  np.testing.assert_array_equal(y, 0)


def test_scalar_scalenorm(golden, precision):
  vectors = golden("norms")
  x = precision.cast(vectors["in/x"])
  norm = norms.make("scalenorm", g="scalar")
  params = norm.init(jax.random.key(0), x)
  assert jax.tree.map(jnp.shape, params) == {"params": {"scale": (1,)}}
  y = norm.apply(precision.cast({"params": {"scale": np.array([24**0.5])}}), x)
  precision.assert_close(y, vectors["scalenorm_scalar_g/y"])
  np.testing.assert_allclose(params["params"]["scale"], [24**0.5], rtol=1e-6)


@pytest.mark.parametrize("kind", norms.NORMS)
def test_bfloat16_input_keeps_float32_statistics(kind):
  # Around 1000, bfloat16 has a spacing of 4: statistics taken in it would be
  # far off those of the same numbers in float32.
  x = 1000 + 8 * jax.random.normal(jax.random.key(0), (2, 6, 8))
  x = x.astype(jnp.bfloat16)
  tokens = base.TokenGrid(num_heads=2, grid=(2, 3))
  norm = norms.make(kind, tokens=tokens, dtype="bfloat16")
  wide = norms.make(kind, tokens=tokens, dtype="float32")
  variables = jax.jit(norm.init)(jax.random.key(0), x)
  got = jax.jit(norm.apply)(variables, x)
  want = jax.jit(wide.apply)(variables, x.astype(jnp.float32))
  assert got.dtype == jnp.bfloat16
  assert all(
    p.dtype == jnp.float32 for p in jax.tree.leaves(variables.get("params"))
  )
  got = got.astype(jnp.float32)
  np.testing.assert_allclose(got, want, rtol=2**-7, atol=1e-4)


@pytest.mark.parametrize("kind", ["groupnorm", "dtn", "powernorm"])
def test_channels_that_heads_do_not_divide(kind):
  norm = norms.make(kind, tokens=base.TokenGrid(num_heads=2, grid=(2, 3)))
  with pytest.raises(ValueError, match="given 9 of them; expected a multiple"):
    jax.eval_shape(norm.init, jax.random.key(0), jnp.zeros((2, 6, 9)))


@pytest.mark.parametrize("zeros", [8, 1], ids=["all", "a_channel"])
def test_zeros_have_finite_gradients(zeros):
  x = jnp.linspace(-1, 1, 96).reshape(2, 6, 8).at[..., :zeros].set(0)
  tokens = base.TokenGrid(num_heads=2, grid=(2, 3))
  for kind in norms.NORMS:
    norm = norms.make(kind, tokens=tokens)

    @jax.jit
    def grad(x, norm=norm):
      variables = norm.init(jax.random.key(0), x)
      train = lambda x: norm.apply(variables, x, train=True, mutable=True)[0]
      evaluate = lambda x: norm.apply(variables, x)
      grads = lambda f: jax.grad(lambda x: f(x).sum())(x)
      return [grads(f) for f in (train, evaluate)]

    largest = 2e5 if kind == "powernorm" else 1e4  # its 1 / eps is the authors'
    assert jnp.abs(jnp.stack(grad(x))).max() < largest, kind


def test_epsilon():
  for norm, kw, want in (
    ("dtn", {}, 1e-5),
    ("layernorm", {}, 1e-6),
    ("rmsnorm", {"eps": 3.0}, 3),
    ("dpn.models.norms.stateless:Identity", {}, 1e-5),
  ):
    model = vit.Model(variant="mu/16", norm=norm, norm_kw=kw)
    assert model.config.eps == want
