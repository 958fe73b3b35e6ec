"""Gated MLPs against timm, alone and in Gemma 4's block."""

import jax
import numpy as np
import pytest

from dpn.models import encoder, mlp
from dpn.models.norms import base


def _dense(get, names, bias=True):
  """Returns {our name: parameters} of their names."""
  return {
    ours: {"kernel": get(f"{theirs}.weight").T}
    | ({"bias": get(f"{theirs}.bias")} if bias else {})
    for ours, theirs in names.items()
  }


def _compare(run, args, vectors, group, wanted, precision):
  """Asserts equal results and gradients; missing ones are of our biases."""
  x, cotangent = (vectors[f"{group}/in/{k}"] for k in ("x", "cotangent"))
  y, d_params, d_x = precision.value_and_grads(run, args, x, cotangent)
  precision.assert_close(y, vectors[f"{group}/out/y"])
  precision.assert_close(d_x, vectors[f"{group}/grad/x"])
  jax.tree.map(precision.assert_close, d_params, wanted)


def test_swiglu(golden, precision):
  vectors = golden("recent")
  part = lambda key: _dense(
    lambda name: vectors[f"mlp/swiglu/{key}/{name}"],
    {"gate": "fc1_g", "Dense_0": "fc1_x", "Dense_1": "fc2"},
  )
  model = mlp.MLPS["swiglu"](12, dtype=precision.dtype)
  run = lambda params, x: model.apply({"params": params}, x)
  wanted = part("grad")
  _compare(run, part("param"), vectors, "mlp/swiglu", wanted, precision)


def _gemma(vectors, key):
  """Returns the parameters of Gemma's block, which has no biases."""
  get = lambda name: vectors[f"gemma4_block/{key}/{name}"]
  attention = {
    name: {
      "kernel": get(f"attn.{name[0]}_proj.linear.weight").T.reshape(16, 2, 8)
    }
    for name in ("query", "key", "value")
  }
  out = get("attn.o_proj.linear.weight").T.reshape(2, 8, 16)
  attention["out"] = {"kernel": out}
  for name in "qk":
    ours = {"q": "query_ln", "k": "key_ln"}[name]
    attention[ours] = {"scale": get(f"attn.{name}_norm.weight")}
  norms = ("LayerNorm_0", "LayerNorm_0_post", "LayerNorm_1", "LayerNorm_1_post")
  names = {"gate": "gate_proj", "Dense_0": "up_proj", "Dense_1": "down_proj"}
  names = {ours: f"mlp.{theirs}.linear" for ours, theirs in names.items()}
  return {
    "MultiHeadDotProductAttention_0": attention,
    "MlpBlock_0": _dense(get, names, bias=False),
    **{n: {"scale": get(f"norm{i}.weight")} for i, n in enumerate(norms, 1)},
  }


def test_gemma_4(golden, precision):
  """RMSNorm four times and of queries, keys and values, rotary positions."""
  vectors = golden("recent")
  config = encoder.Config(
    **{"width": 16, "num_heads": 2, "mlp_dim": 12, "mlp": "geglu"},
    **{"norm": "rmsnorm", "qk_norm": "rmsnorm", "v_norm": "rmsnorm_no_scale"},
    **{"logit_scale": "one", "qkv_bias": False, "rope": "axial"},
    rope_kw={"base": 100.0, "pairs": "axes", "first": "col"},
    block_ln_kw={"sa": "pre+post", "mlp": "pre+post"},
    dtype_mm=precision.dtype,
  )
  cls, fields = encoder.bind_block(config)
  block = cls(config, base.TokenGrid(2, (2, 3)), **fields)

  def run(params, x):
    zeros = lambda n: {"bias": np.zeros(n, x.dtype)}
    biases = {
      "MultiHeadDotProductAttention_0": {"out": zeros(16)},
      "MlpBlock_0": {
        **{"gate": zeros(12), "Dense_0": zeros(12), "Dense_1": zeros(16)}
      },
    }
    filled = {
      module: params[module]
      | {k: params[module][k] | bias for k, bias in inner.items()}
      for module, inner in biases.items()
    }
    variables = {"params": params | filled}
    return block.apply(variables, (x, None), 0.0)[0][0]

  args, wanted = _gemma(vectors, "param"), _gemma(vectors, "grad")
  precision.tolerance["atol"] *= 10  # sums over all tokens
  _compare(run, args, vectors, "gemma4_block", wanted, precision)


@pytest.mark.parametrize("kind", mlp.MLPS)
def test_parameters(kind):
  model = mlp.MLPS[kind](12)
  params = model.init(jax.random.key(0), np.ones((2, 16)))["params"]
  count = sum(x.size for x in jax.tree.leaves(params))
  assert count == (17 * 12) * (1 + (kind != "mlp")) + 13 * 16
