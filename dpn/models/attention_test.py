"""Which attention runs, with a stand-in for the GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.models import attention

SHAPE = (5, 2, 8)
HALF = jnp.dtype("bfloat16")


@pytest.fixture(name="gpu")
def _gpu(monkeypatch):
  """A device that says it is a GPU; its attention is what is appended."""
  behaviours = []
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  monkeypatch.setattr(attention, "cudnn_gradient", lambda x: behaviours[-1](x))
  attention.probe_cudnn.cache_clear()
  yield behaviours
  attention.probe_cudnn.cache_clear()


def _unsupported(x):
  raise NotImplementedError(f"head size {x.shape[-1]}")


def test_where_it_works_it_is_used(gpu):
  seen = []
  gpu.append(seen.append)
  assert attention.choose_impl("auto", SHAPE, HALF, True) == "cudnn"
  assert attention.choose_impl("cudnn", SHAPE, HALF, True) == "cudnn"
  assert attention.choose_impl("xla", SHAPE, HALF, True) == "xla"
  [x] = seen  # tried once
  assert (x.shape, x.dtype) == ((1, *SHAPE), HALF)
  assert (
    attention.choose_impl("auto", SHAPE, jnp.dtype("float32"), True) == "xla"
  )
  assert attention.choose_impl("auto", SHAPE, HALF, False) == "xla"
  with pytest.raises(ValueError, match="does not work here: it is not used"):
    attention.choose_impl("cudnn", SHAPE, HALF, False)


def test_where_it_fails_xla_is_used(gpu):
  gpu.append(_unsupported)
  assert attention.choose_impl("auto", SHAPE, HALF, True) == "xla"
  with pytest.raises(ValueError, match="does not work here: head size 8"):
    attention.choose_impl("cudnn", SHAPE, HALF, True)


def test_without_a_gpu():
  assert attention.choose_impl("auto", SHAPE, HALF, True) == "xla"
  with pytest.raises(ValueError, match="the device is a CPU"):
    attention.choose_impl("cudnn", SHAPE, HALF, True)


def test_it_is_tried_while_a_model_is_traced(gpu, monkeypatch):
  """The trial runs on real numbers, and the model then calls cuDNN."""
  trials, calls = [], []
  gpu.append(lambda x: trials.append(float(jax.jit(jnp.sum)(x))))

  def fused(q, k, v, implementation):
    calls.append(implementation)
    return v

  monkeypatch.setattr(jax.nn, "dot_product_attention", fused)
  model = attention.Attention(2, dtype=HALF, impl="auto")
  x = np.zeros((3, 5, 16), np.float32)
  jax.eval_shape(model.init, jax.random.key(0), x, x)
  assert trials == [5 * 2 * 8]
  assert calls == ["cudnn"]


def test_the_fused_program_computes_the_same(monkeypatch):
  """With JAX's own dot_product_attention in the place of cuDNN's."""
  x = np.random.RandomState(0).normal(size=(2, 5, 16)).astype("float32")
  model = attention.Attention(2)
  variables = model.init(jax.random.key(0), x, x)
  want = model.apply(variables, x, x)
  plain = jax.nn.dot_product_attention
  monkeypatch.setattr(
    jax.nn, "dot_product_attention", lambda q, k, v, **_: plain(q, k, v)
  )
  monkeypatch.setattr(attention, "choose_impl", lambda *_: "cudnn")
  np.testing.assert_allclose(model.apply(variables, x, x), want, atol=1e-6)
