"""Normalized queries and keys against timm, Flax and the code of ViT-5."""

import functools

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest

from dpn.models import attention, norms, vit
from dpn.models import conftest as torch_params

SMALL = {"width": 16, "depth": 2, "num_heads": 2, "patch_size": (4, 4)}
IMAGE = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)


def _attention(norm, dtype="float32", **kw):
  make = functools.partial(norms.make, norm, dtype=dtype)
  return attention.Attention(4, make_qk_norm=make, dtype=dtype, **kw)


@pytest.mark.parametrize(
  ("group", "norm"),
  [("timm_layernorm", "layernorm"), ("vit5_rmsnorm", "rmsnorm")],
)
def test_released_code(group, norm, golden, precision):
  def run(get, x):
    params = torch_params.attention(get, "proj", "qkv")
    has_bias = get("qkv.bias") is not None
    model = _attention(norm, precision.dtype, qkv_bias=has_bias)
    return model.apply({"params": params}, x, x)

  precision.check(golden("frontier"), f"qk_norm/{group}", run)


def test_flax():
  """ViT-22B's; the parameters have the same names."""
  theirs = nn.MultiHeadDotProductAttention(4, normalize_qk=True)
  x = jax.random.normal(jax.random.key(0), (2, 5, 24))
  variables = theirs.init(jax.random.key(1), x)
  rngs = iter(jax.random.split(jax.random.key(2), 20))
  variables = jax.tree.map(
    lambda p: p + jax.random.normal(next(rngs), p.shape), variables
  )
  got = _attention("layernorm_no_bias").apply(variables, x, x)
  np.testing.assert_allclose(got, theirs.apply(variables, x), rtol=1e-4)


def test_lucidrains(golden, precision):
  """Unit vectors with a scale by head; the logits are not scaled."""
  make = functools.partial(norms.QK_NORMS["l2"], dtype=precision.dtype)
  kw = {"make_qk_norm": make, "logit_scale": "one", "dtype": precision.dtype}
  model = attention.Attention(4, qkv_bias=False, **kw)

  def run(get, x):
    params = torch_params.attention(get, "to_out", "to_qkv")
    for ours, theirs in (("query_ln", "q_norm"), ("key_ln", "k_norm")):
      params[ours] = {"scale": get(f"{theirs}.gamma")[:, 0]}
    return model.apply({"params": params}, x, x)

  precision.check(golden("recent"), "l2", run)


def _in_numpy(params, x, norm, factor):
  """Returns attention's output and weights, with normalized values."""
  heads = lambda name: np.einsum("btc,chd->bthd", x, params[name]["kernel"])
  q, k, v = (
    norm(heads(name), params[f"{name}_ln"])
    for name in ("query", "key", "value")
  )
  factor = np.reshape(factor, (-1, 1, 1))
  weights = np.exp(factor * np.einsum("bqhd,bkhd->bhqk", q, k))
  weights /= weights.sum(-1, keepdims=True)
  y = np.einsum("bhqk,bkhd->bqhd", weights, v)
  out = np.einsum("bthd,hdc->btc", y, params["out"]["kernel"])
  return out + params["out"]["bias"], weights


def _rms(x, params):
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * params["scale"]


def _l2(x, params):
  length = np.linalg.norm(x, axis=-1, keepdims=True)
  return x / length * np.sqrt(x.shape[-1]) * params["scale"]


@pytest.mark.parametrize(
  ("logit_scale", "factor"),
  [("sqrt", 6**-0.5), ("one", 1), ("learned", [0.1, 2, 7, 100])],
)
@pytest.mark.parametrize(("name", "norm"), [("rmsnorm", _rms), ("l2", _l2)])
def test_values_and_logits(name, norm, logit_scale, factor, precision):
  make = functools.partial(norms.make, name, dtype=precision.dtype)
  if name == "l2":
    make = functools.partial(norms.QK_NORMS["l2"], dtype=precision.dtype)
  kw = {"make_qk_norm": make, "make_v_norm": make, "dtype": precision.dtype}
  model = attention.Attention(4, qkv_bias=False, logit_scale=logit_scale, **kw)
  x = np.random.RandomState(1).normal(size=(2, 5, 24))
  shapes = jax.eval_shape(model.init, jax.random.key(0), x, x)["params"]
  draw = np.random.RandomState(0)
  params = jax.tree.map(lambda s: draw.normal(size=s.shape), shapes)
  if logit_scale == "learned":  # the last would be 150
    params["logit_scale"] = np.log([0.1, 2, 7, 150])
  wanted, weights = _in_numpy(params, x, norm, factor)
  out, cast = {}, precision.cast
  got = model.apply({"params": cast(params)}, cast(x), cast(x), out=out)
  precision.assert_close(got, wanted)
  maps = attention.attention_weights(out["query"], out["key"])
  precision.assert_close(maps, weights)


def test_learned_logits_start_as_usual():
  x = jax.random.normal(jax.random.key(0), (2, 5, 24))
  learned = _attention("rmsnorm")
  usual = learned.clone(logit_scale="sqrt")
  learned = learned.clone(logit_scale="learned")
  variables = learned.init(jax.random.key(1), x, x)
  got = learned.apply(variables, x, x)
  np.testing.assert_allclose(got, usual.apply(variables, x, x), rtol=1e-5)
  unit = norms.QK_NORMS["l2"]().init_with_output(
    jax.random.key(2), x.reshape(2, 5, 4, 6)
  )[0]
  np.testing.assert_allclose(np.linalg.norm(unit, axis=-1), 1, rtol=1e-5)


def test_a_class_token_of_zeros_starts_with_gradients_as_of_others():
  def norm(option):
    kw = {"variant": "mu/16", "pool_type": "tok", "head_zeroinit": False}
    model = vit.Model(3, **kw, qk_norm=option)
    image = jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    variables = model.init(jax.random.key(1), image)
    loss = lambda variables: (model.apply(variables, image)[0] ** 2).sum()
    return optax.tree.norm(jax.grad(loss)(variables))

  usual = norm("layernorm")
  assert max(norm("l2"), norm("scalenorm")) < 10 * usual


@pytest.mark.parametrize("scan", [False, True])
def test_logits_do_not_grow_with_the_kernels(scan):
  model = vit.Model(3, **SMALL, qk_norm="rmsnorm", scan=scan)
  variables = model.init(jax.random.key(0), IMAGE)
  queries = jax.tree_util.tree_map_with_path(
    lambda path, x: x * (100 if "'query'" in str(path) else 1), variables
  )
  outs = [
    model.apply(v, IMAGE, attention_maps=True)[1]["encoder"]
    for v in (variables, queries)
  ]
  for one, other in zip(*(out["block00"].items() for out in outs), strict=True):
    if one[0] == "attention_maps":
      assert one[1].std() > 1e-3
    if one[0] != "attn_bias":
      np.testing.assert_allclose(one[1], other[1], rtol=1e-3, atol=1e-5)
