"""Parameters of all examples, and the layout of their gradients on GPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from dpn.models import vit
from dpn.models.broadcast import over_batch


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_a_product_on_nvidia_s_gpus(platform):
  loss = lambda x: (over_batch(x, 4) ** 2).sum()
  traced = jax.jit(jax.grad(loss)).trace(jnp.ones((1, 2, 3)))
  text = traced.lower(lowering_platforms=(platform,)).as_text()
  assert ("dot_general" in text) == (platform == "cuda")


@pytest.mark.parametrize("branch", ["cuda", "default"])
def test_value_and_gradient(monkeypatch, branch):
  choose = lambda x, **branches: branches[branch](x)
  monkeypatch.setattr(jax.lax, "platform_dependent", choose)
  x = jax.random.normal(jax.random.key(0), (1, 2, 3))
  weights = jnp.arange(4.0)[:, None, None]
  loss = lambda x: (over_batch(x, 4) * weights).sum()
  np.testing.assert_array_equal(over_batch(x, 4), np.tile(x, (4, 1, 1)))
  np.testing.assert_array_equal(jax.grad(loss)(x), np.full((1, 2, 3), 6.0))


def test_exported_for_batches_of_any_size():
  model = vit.Model(3, variant="mu/16", pool_type="tok", registers=2)
  image = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
  variables = model.init(jax.random.key(1), image)
  apply = jax.jit(lambda variables, x: model.apply(variables, x)[0])
  any_size = jax.ShapeDtypeStruct(export.symbolic_shape("b,32,32,3"), "float32")
  exporter = export.export(apply, platforms=["cpu", "cuda"])
  got = exporter(variables, any_size).call(variables, image)
  np.testing.assert_array_equal(got, apply(variables, image))
