"""Every block of the literature against its equations, and in the encoder."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.models import encoder, init
from dpn.models.norms import base

WHERE = {"pre": "pre", "post": "post", "pre+post": "prepost"}
PLACEMENTS = {
  f"placement sa={sa} mlp={mlp} post={post}": (
    f"placement/{post}/sa_{s}__mlp_{m}"
  )
  for (sa, s), (mlp, m), post in itertools.product(
    WHERE.items(), WHERE.items(), ["branch", "stream"]
  )
  if post == "branch" or "post" in sa + mlp
}
GOLDEN = PLACEMENTS | {
  "normformer": "normformer/paper_headscale",
  "normformer head_scale=out": "normformer/fairseq_headscale",
  "normformer head_scale=none": "normformer/no_headscale",
  "normformer resid_scale=True": "normformer/paper_headscale_resscale",
  "sub_ln": "subln/magneto_after_act",
  "sub_ln mlp_ln=before_act": "subln/dpn_text_before_act",
  "cct": "cct_layer_order",
}
TOKENS = base.TokenGrid(num_heads=4, grid=(1, 5))


def make_block(kind, **options):
  """Returns the block that "name key=value …" stands for."""
  name, *items = kind.split()
  kw = {k: v == "True" or v for k, v in (x.split("=") for x in items)}
  config = encoder.Config(block_ln=name, block_ln_kw=kw, **options)
  cls, fields = encoder.bind_block(config)
  return cls(config, TOKENS, **fields)


def block_params(vectors):
  """Returns all parameters that any block may have, ours named."""
  get = lambda name: vectors[f"param/{name}"]
  norm = lambda name: {
    "scale": get(f"{name}/scale"),
    "bias": get(f"{name}/bias"),
  }
  dense = lambda name: {
    "kernel": get(f"{name}/kernel"),
    "bias": get(f"{name}/bias"),
  }
  heads = lambda name: {
    "kernel": get(f"{name}/kernel").reshape(24, 4, 6),
    "bias": get(f"{name}/bias").reshape(4, 6),
  }
  out = dense("o") | {"kernel": get("o/kernel").reshape(4, 6, 24)}
  return {
    "LayerNorm_0": norm("ln_sa_pre"),
    "LayerNorm_0_post": norm("ln_sa_post"),
    "LayerNorm_1": norm("ln_mlp_pre"),
    "LayerNorm_1_post": norm("ln_mlp_post"),
    "resid_scale": get("resid_scale"),
    "MultiHeadDotProductAttention_0": {
      "query": heads("q"),
      "key": heads("k"),
      "value": heads("v"),
      "out": out,
      "norm": norm("ln_sa_inner"),
      "head_scale": get("head_scale"),
    },
    "MlpBlock_0": {
      "Dense_0": dense("fc1"),
      "Dense_1": dense("fc2"),
      "norm": norm("ln_ffn_inner"),
    },
  }


@pytest.mark.parametrize("kind", [*GOLDEN, "exact"])
def test_block(kind, golden, precision):
  vectors = golden("blocks")
  exact = kind in ("exact", "cct")
  block = make_block(
    "placement" if kind == "exact" else kind,
    mlp_dim=48,
    num_heads=4,
    gelu="exact" if exact else "tanh",
    dtype_mm=precision.dtype,
  )
  x = precision.cast(vectors["in/x"])
  params = block_params(vectors)
  if kind == "cct":
    # The code there calls the norm that replaces the stream the MLP's.
    params["LayerNorm_0_post"] = params["LayerNorm_1"]
  run = jax.jit(lambda p, x: block.apply({"params": p}, (x, None), 0.0)[0][0])
  want = "pre_ln_gelu_exact" if kind == "exact" else GOLDEN[kind]
  y = run(precision.cast(params), x)
  precision.assert_close(y, vectors[f"{want}/out/y"])


def init_block(kind):
  block = make_block(kind, mlp_dim=96, num_heads=4)
  x = jnp.zeros((1, 2, 64))
  params = jax.jit(block.init)(jax.random.key(0), (x, None), 0.0)
  return params["params"]


def test_sub_ln_starts_with_its_gain():
  plain, sub = init_block("placement"), init_block("sub_ln")
  gain = 1.78271  # sqrt(ln(24))
  attention = "MultiHeadDotProductAttention_0"
  for name, factor in {
    "query": 1,
    "key": 1,
    "value": gain,
    "out": gain,
  }.items():
    np.testing.assert_allclose(
      sub[attention][name]["kernel"],
      factor * plain[attention][name]["kernel"],
      rtol=1e-5,
    )
  for name in ("Dense_0", "Dense_1"):
    np.testing.assert_allclose(
      sub["MlpBlock_0"][name]["kernel"],
      gain * plain["MlpBlock_0"][name]["kernel"],
      rtol=1e-5,
    )


@pytest.mark.parametrize("name", ["deit", "cct"])
def test_inits_of_the_torch_models(name):
  kernel = init.INITS[name].dense(jax.random.key(0), (400, 400))
  np.testing.assert_allclose(kernel.std(), 0.02, rtol=0.02)
  embedding = init.INITS[name].embedding(jax.random.key(0), (4, 4, 3, 2000))
  # He: sqrt(2 / fan_in); PyTorch: uniform up to 1 / sqrt(fan_in).
  std = {"deit": (1 / 48 / 3) ** 0.5, "cct": (2 / 48) ** 0.5}[name]
  np.testing.assert_allclose(embedding.std(), std, rtol=0.02)
  bias = init.INITS[name].embedding_bias(48)(jax.random.key(0), (10_000,))
  np.testing.assert_allclose(bias.std(), (1 / 48 / 3) ** 0.5, rtol=0.02)
  assert float(jnp.abs(bias).max()) <= 48**-0.5


def test_attention_dropout_keeps_the_expectation():
  options = {"mlp_dim": 8, "num_heads": 2}
  plain = encoder.EncoderBlock(encoder.Config(**options))
  dropped = encoder.EncoderBlock(encoder.Config(attn_dropout=0.3, **options))
  x = jax.random.normal(jax.random.key(0), (1, 6, 8))
  variables = plain.init(jax.random.key(1), (x, None), 0.0)
  want = plain.apply(variables, (x, None), 0.0)[1]["sa"]

  @jax.jit
  @jax.vmap
  def sample(key):
    rngs = {"dropout": key}
    return dropped.apply(variables, (x, None), 0.0, False, rngs=rngs)[1]["sa"]

  samples = sample(jax.random.split(jax.random.key(2), 4000))
  np.testing.assert_allclose(samples.mean(0), want, atol=0.05)
  assert samples.std(0).max() > 0.1
  got = dropped.apply(variables, (x, None), 0.0)[1]["sa"]
  np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_without_the_final_norm(dtype):
  options = {"mlp_dim": 8, "num_heads": 2, "depth": 1, "dtype_mm": dtype}
  whole = encoder.Encoder(encoder.Config(**options))
  bare = encoder.Encoder(encoder.Config(final_norm=False, **options))
  x = jax.random.normal(jax.random.key(0), (1, 6, 8), dtype)
  params = whole.init(jax.random.key(1), x, tokens=TOKENS)["params"]
  want, _ = whole.apply({"params": params}, x, tokens=TOKENS)
  assert "encoder_norm" in params
  del params["encoder_norm"]
  got, _ = bare.apply({"params": params}, x, tokens=TOKENS)
  assert got.dtype == np.float32
  y = np.float64(got)
  y -= np.mean(y, -1, keepdims=True)
  y /= np.sqrt(np.mean(y**2, -1, keepdims=True) + 1e-6)
  np.testing.assert_allclose(want, y, atol=1e-5)
