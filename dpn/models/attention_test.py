"""Which attention runs, with a stand-in for the GPU."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import flops
from dpn.models import attention, flash

SHAPE = (5, 2, 8)
HALF = jnp.dtype("bfloat16")
PLAIN = jax.nn.dot_product_attention


def _without_cudnn(*args, implementation, **kw):
  """Computes by XLA what was asked of cuDNN."""
  assert implementation == "cudnn"
  return PLAIN(*args, **kw)


def _unmasked(*args, implementation, query_seq_lengths, key_value_seq_lengths):
  """Takes the token that makes their number even for one of the others."""
  return PLAIN(*args)


@jax.custom_vjp
def _without_gradient(q, k, v):
  return PLAIN(q, k, v)


_without_gradient.defvjp(
  lambda *qkv: (PLAIN(*qkv), qkv),
  lambda qkv, dy: tuple(jnp.full_like(x, jnp.nan) for x in qkv),
)


def _unsupported(q, *_, **__):
  raise NotImplementedError(f"head size {q.shape[-1]}")


@pytest.fixture(name="gpu")
def _gpu(monkeypatch):
  """Returns what makes a function the attention of a device called GPU."""

  def use(attend):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    by_default = lambda *args, **kw: (attend if kw else PLAIN)(*args, **kw)
    monkeypatch.setattr(jax.nn, "dot_product_attention", by_default)

  flash.probe_cudnn.cache_clear()
  yield use
  flash.probe_cudnn.cache_clear()


def test_where_it_works_it_is_used(gpu):
  seen = []

  def attend(q, *args, **kw):
    seen.append((q.shape, q.dtype))
    return _without_cudnn(q, *args, **kw)

  gpu(attend)
  assert flash.choose_impl("auto", SHAPE, HALF, True) == "cudnn"
  assert flash.choose_impl("cudnn", SHAPE, HALF, True) == "cudnn"
  assert flash.choose_impl("xla", SHAPE, HALF, True) == "xla"
  assert seen == [((1, 6, 2, 8), HALF)]  # tried once, with even tokens
  single = jnp.dtype("float32")
  assert flash.choose_impl("auto", SHAPE, single, True) == "xla"
  assert flash.choose_impl("auto", SHAPE, HALF, False) == "xla"
  with pytest.raises(ValueError, match="does not work here: it is not used"):
    flash.choose_impl("cudnn", SHAPE, HALF, False)


@pytest.mark.parametrize(
  ("attend", "why"),
  [
    (_unsupported, "head size 8"),
    (_unmasked, "it differs from XLA's by .*%"),
    (lambda *qkv, **_: _without_gradient(*qkv), "it differs .* by nan%"),
  ],
)
def test_where_it_fails_xla_is_used(gpu, attend, why):
  gpu(attend)
  assert flash.choose_impl("auto", SHAPE, HALF, True) == "xla"
  with pytest.raises(ValueError, match=f"does not work here: {why}"):
    flash.choose_impl("cudnn", SHAPE, HALF, True)


@pytest.mark.parametrize("shape", [(197, 3, 64), (65, 12, 32), (2, 1, 8)])
def test_a_token_that_should_not_count_is_noticed(shape):
  even = lambda x: jnp.pad(x, ((0, 0), (0, 1), (0, 0), (0, 0)))
  wrong = lambda q, k, v: PLAIN(*map(even, (q, k, v)))[:, : shape[0]]
  found, wanted = (flash.trial(f, shape, HALF) for f in (wrong, PLAIN))
  for x, y in zip(found, wanted, strict=True):
    assert np.linalg.norm(x - y) > 0.3 * np.linalg.norm(y)


def test_without_a_gpu():
  assert flash.choose_impl("auto", SHAPE, HALF, True) == "xla"
  with pytest.raises(ValueError, match="the device is a CPU"):
    flash.choose_impl("cudnn", SHAPE, HALF, True)
  with flash.assume("cudnn"):  # of devices that are elsewhere
    assert flash.choose_impl("auto", SHAPE, HALF, True) == "cudnn"
    assert flash.choose_impl("auto", SHAPE, jnp.float32, True) == "xla"


def test_it_is_tried_while_a_model_is_traced(gpu):
  """The trial runs on real numbers, and the model then calls cuDNN."""
  traced = []

  def attend(q, *args, **kw):
    traced.append(q.shape[0])
    return _without_cudnn(q, *args, **kw)

  gpu(attend)
  model = attention.Attention(2, dtype=HALF, impl="auto")
  x = np.zeros((3, 5, 16), np.float32)
  jax.eval_shape(model.init, jax.random.key(0), x, x)
  assert traced == [1, 3]


@pytest.mark.parametrize("tokens", [4, 5])
def test_the_fused_program_computes_the_same(monkeypatch, tokens):
  """With XLA's attention in the place of cuDNN's."""
  x = np.random.RandomState(0).normal(size=(2, tokens, 16)).astype("float32")
  model = attention.Attention(2)
  variables = model.init(jax.random.key(0), x, x)
  run = jax.value_and_grad(lambda x: (model.apply(variables, x, x) ** 2).sum())
  want = run(x)
  monkeypatch.setattr(jax.nn, "dot_product_attention", _without_cudnn)
  monkeypatch.setattr(flash, "choose_impl", lambda *_: "cudnn")
  jax.tree.map(
    functools.partial(np.testing.assert_allclose, atol=1e-5), run(x), want
  )


def test_flops_are_those_of_xla(gpu):
  gpu(_without_cudnn)
  model = attention.Attention(2, dtype=HALF, impl="cudnn")
  x = jnp.zeros((3, 5, 16))
  variables = attention.Attention(2).init(jax.random.key(0), x, x)
  found = flops.count(lambda x: model.apply(variables, x, x), x)
  projections, maps = 4 * 5 * 16 * 16, 2 * 5 * 5 * 16
  assert found == 2 * 3 * (projections + maps)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("tokens", [196, 197])
def test_cudnn_is_differentiable_also_over_seeds(tokens):
  seeds = jnp.ones((3, 2, tokens, 12, 64), HALF)
  total = lambda q, k, v: (flash.cudnn_attention(q, k, v) ** 2).sum()
  grads = jax.vmap(jax.grad(total, (0, 1, 2)))(seeds, seeds, seeds)
  assert all(jnp.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("bias", [None, np.ones((1, 2, 5, 5), np.float32)])
def test_weights_are_not_kept_for_the_backward_pass(bias):
  layer = attention.Attention(2)
  x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype(np.float32)
  params = layer.init(jax.random.key(0), x, x)
  _, pull_back = jax.vjp(lambda p: layer.apply(p, x, x, bias), params)
  kept = {leaf.shape for leaf in jax.tree.leaves(pull_back)}
  assert (3, 5, 2, 4) in kept  # queries
  assert (3, 2, 5, 5) not in kept
