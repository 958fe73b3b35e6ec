"""Attention maps against NumPy on a model's parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.conftest import stacked
from dpn.models import encoder, flash, joins, vit

SMALL = {"width": 16, "depth": 2, "num_heads": 2, "patch_size": (4, 4)}
IMAGE = np.random.RandomState(0).uniform(-1, 1, (3, 8, 12, 3)).astype("float32")


def _variables(model):
  """Returns variables that are all random, the biases too."""
  shapes = jax.eval_shape(model.init, jax.random.key(0), IMAGE)
  rng = np.random.RandomState(1)
  return jax.tree.map(
    lambda s: 0.5 * rng.normal(size=s.shape).astype(s.dtype), shapes
  )


def _run(model, variables):
  apply = jax.jit(lambda v: model.apply(v, IMAGE, attention_maps=True))
  return apply(variables)[1]


def _layer_norm(x, p):
  centred = x - x.mean(-1, keepdims=True)
  y = centred / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  return y * p["scale"] + p["bias"]


def _by_hand(x_q, x_kv, p, bias=0.0):
  """Returns (batch, heads, queries, keys), in double precision."""
  project = lambda x, p: (
    np.einsum("btw,whd->bhtd", x, p["kernel"])
    + np.array(p["bias"]).reshape(1, 2, 1, 8)
  )
  q, k = project(x_q, p["query"]), project(x_kv, p["key"])
  e = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(8) + bias)
  return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("kind", ["learn", "rpe"])
def test_maps_are_softmax_of_queries_and_keys(kind):
  """Looped and scanned, with and without a bias on the logits."""
  kw = {**SMALL, "posemb": kind, "pool_type": "tok", "head_zeroinit": False}
  model, scanned = vit.Model(5, **kw), vit.Model(5, scan=True, **kw)
  variables = _variables(model)
  params = jax.tree.map(np.float64, variables["params"])
  out = _run(model, variables)
  cls = np.tile(params["cls"], (3, 1, 1))
  x = np.concatenate([cls, out["with_posemb"]], axis=1)
  for i in range(2):
    block, inner = params["Transformer"][f"encoderblock_{i}"], 0.0
    if kind == "rpe":
      table = block["rel_posemb"]["table"]
      inner = table[joins.relative_index(2, 3)].transpose(2, 0, 1)
      inner = np.pad(inner, ((0, 0), (1, 0), (1, 0)))
    y = _layer_norm(x, block["LayerNorm_0"])
    p = block["MultiHeadDotProductAttention_0"]
    want = _by_hand(y, y, p, inner)
    got = out["encoder"][f"block0{i}"]["attention_maps"]
    assert got.shape == (3, 2, 7, 7)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    x = np.float64(out["encoder"][f"block0{i}"]["+mlp"])
  again = _run(scanned, {"params": stacked(variables["params"])})
  for i in range(2):
    np.testing.assert_allclose(
      again["encoder"][f"block0{i}"]["attention_maps"],
      out["encoder"][f"block0{i}"]["attention_maps"],
      rtol=1e-4,
      atol=1e-6,
    )


def test_maps_of_attention_pooling():
  model = vit.Model(5, **SMALL, pool_type="map")
  variables = _variables(model)
  out = _run(model, variables)
  head = jax.tree.map(np.float64, variables["params"]["MAPHead_0"])
  probe = np.tile(head["probe"], (3, 1, 1))
  p = head["MultiHeadDotProductAttention_0"]
  want = _by_hand(probe, np.float64(out["encoded"]), p)
  got = out["pool"]["attention_maps"]
  assert got.shape == (3, 2, 1, 6)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  "options",
  [
    {"dtype_mm": "bfloat16", "remat_policy": "nothing_saveable", "scan": True},
    {"cls_blocks": 1, "norm": "dtn", "block_ln": "normformer"},
  ],
)
def test_rows_sum_to_one(options):
  model = vit.Model(5, **SMALL, pool_type="tok", **options)
  out = _run(model, _variables(model))
  tokens = [6 if "cls_blocks" in options else 7, 7]
  for i, n in enumerate(tokens):
    maps = out["encoder"][f"block0{i}"]["attention_maps"]
    assert (maps.shape, maps.dtype) == ((3, 2, n, n), jnp.float32)
    np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)


def test_maps_beside_a_fused_kernel(monkeypatch):
  """It returns no weights, so they are computed apart."""
  model = vit.Model(5, **SMALL)
  variables = _variables(model)
  want = _run(model, variables)["encoder"]["block01"]["attention_maps"]
  plain = jax.nn.dot_product_attention
  monkeypatch.setattr(
    jax.nn, "dot_product_attention", lambda q, k, v, **_: plain(q, k, v)
  )
  monkeypatch.setattr(flash, "choose_impl", lambda *_: "cudnn")
  got = _run(model, variables)["encoder"]["block01"]["attention_maps"]
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


class Silent(encoder.EncoderBlock):
  """A block without attention."""

  def __call__(self, carry, drop_rate, deterministic=True):
    return carry, {"+mlp": carry[0]}


def test_a_block_without_queries_is_named():
  model = vit.Model(5, **SMALL, block_ln=f"{__name__}:Silent")
  with pytest.raises(ValueError, match=r"block00 hold no 'query'.*only \+mlp"):
    jax.eval_shape(
      lambda: model.init(jax.random.key(0), IMAGE, attention_maps=True)
    )
