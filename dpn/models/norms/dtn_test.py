"""Dynamic Token Normalization against the authors' layer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.conftest import part
from dpn.models import norms
from dpn.models.norms import base, dtn

H = 4


def params_of(get):
  params = {
    "scale": get("weight"),
    "bias": get("bias"),
    "mean_ratio": get("mean_norm_weight"),
    "var_ratio": get("var_norm_weight"),
  }
  return params | {"pos_proj": {"kernel": get("pos_proj.weight").T}}


def apply(precision, kw, params, x, *, grid=(3, 3), cls=False):
  norm = norms.make("dtn", **kw, tokens=base.TokenGrid(H, grid, cls))
  params, x = precision.cast((params, x))
  return jax.jit(norm.apply)({"params": params}, x)


def test_output_and_gradients(golden, precision):
  norm = norms.make("dtn", tokens=base.TokenGrid(H, (3, 3)))
  run = lambda get, x: norm.apply({"params": params_of(get)}, x)
  precision.check(golden("dtn_core"), "A", run)


def test_as_initialized(golden, precision):
  vectors = golden("dtn_core")
  x = precision.cast(vectors["A/in/x"])
  norm = norms.make("dtn", tokens=base.TokenGrid(H, (3, 3)))
  y, _ = jax.jit(norm.init_with_output)(jax.random.key(0), x)
  precision.assert_close(y, vectors["B_init/out/y"])


@pytest.mark.parametrize(
  ("group", "given", "kw", "grid"),
  [
    ("C_only_var", "A", {"only_var": True}, (3, 3)),
    ("E_pool", "E_pool", {"pool_grid": 4}, (16, 16)),
    ("G_paper_eq", "A", {"form": "paper"}, (3, 3)),  # the paper's equations
    ("I_rect_ext", "A", {}, (2, 3)),
  ],
)
def test_options_and_grids(group, given, kw, grid, golden, precision):
  vectors = golden("dtn_core")
  params = params_of(part(vectors, f"{given}/param/").get)
  x = vectors.get(f"{group}/in/x", vectors["A/in/x"])
  y = apply(precision, kw, params, x, grid=grid)
  precision.assert_close(y, vectors[f"{group}/out/y"])


def test_the_limits_of_the_ratios(golden, precision):
  vectors = golden("dtn_core")
  x, params = vectors["A/in/x"], params_of(part(vectors, "A/param/").get)
  token = {"mean_ratio": np.full(H, 40.0), "var_ratio": np.full(H, 40.0)}
  y = apply(precision, {}, params | token, x)
  precision.assert_close(y, vectors["D_lambda1/out/y"])
  image = {name: -value for name, value in token.items()}
  image["pos_proj"] = {"kernel": np.zeros((3, H))}
  y = apply(precision, {}, params | image, x)
  precision.assert_close(y, vectors["D_lambda0_uniformP/out/y"])


def test_class_token(golden, precision):
  vectors = golden("dtn_core")
  params, x = (
    params_of(part(vectors, "A/param/").get),
    vectors["H_cls_ext/in/x"],
  )
  y = apply(precision, {}, params, x, cls=True)
  precision.assert_close(y, vectors["H_cls_ext/out/y"])
  plain = apply(precision, {"cls": "layernorm"}, params, x, cls=True)
  precision.assert_close(plain[:, :1], vectors["H_cls_ext/out/y_cls_plain_ln"])
  precision.assert_close(plain[:, 1:], vectors["H_cls_ext/out/y"][:, 1:])


@pytest.mark.parametrize("heads", [1, 4, 9, 16])
def test_local_init(heads, golden):
  vectors = golden("dtn_core")
  kernel = dtn.local_init(jax.random.key(0), (3, heads))
  want = vectors[f"F_localinit/pos_proj_weight_H{heads}"]
  np.testing.assert_array_equal(kernel.T, want)
  scores = dtn.relative_positions(4, 4) @ kernel
  weights = jax.nn.softmax(scores.transpose(2, 0, 1))
  want = vectors[f"F_localinit/P_tgt_src_4x4_H{heads}"]
  np.testing.assert_allclose(weights, want, rtol=1e-4, atol=1e-6)


def test_init_of_six_heads_is_local_for_four():
  kernel = dtn.local_init(jax.random.key(0), (3, 6))
  local = dtn.local_init(jax.random.key(0), (3, 4))
  np.testing.assert_array_equal(kernel[:, :4], local)
  assert 0 < jnp.abs(kernel[:, 4:]).max() < 0.1


def test_released_init_is_small():
  tokens = base.TokenGrid(9, (1, 2))
  norm = norms.make("dtn", pos_init="released", tokens=tokens)
  params = norm.init(jax.random.key(0), jnp.ones((1, 2, 9)))["params"]
  assert 0 < jnp.abs(params["pos_proj"]["kernel"]).max() < 0.1


def test_the_variance_is_not_negative():
  # All weight on one source: E[x^2] - E[x]^2 is rounding around zero.
  params = {
    "scale": np.ones(8),
    "bias": np.zeros(8),
    "mean_ratio": np.zeros(H),
    "var_ratio": np.full(H, -40.0),
    "pos_proj": {"kernel": np.tile([[0.0], [0.0], [-100.0]], (1, H))},
  }
  tokens = base.TokenGrid(H, (2, 2))
  norm = norms.make("dtn", form="paper", eps=1e-12, tokens=tokens)
  x = 100 + jax.random.normal(jax.random.key(0), (4, 4, 8))
  assert jnp.isfinite(jax.jit(norm.apply)({"params": params}, x)).all()


def test_a_grid_that_cannot_be_pooled():
  tokens = base.TokenGrid(2, (5, 5))
  norm = norms.make("dtn", pool_grid=2, tokens=tokens)
  with pytest.raises(ValueError, match="2x2 cells"):
    jax.eval_shape(norm.init, jax.random.key(0), jnp.ones((1, 25, 4)))
