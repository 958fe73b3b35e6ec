"""Gated MLPs against timm, alone and in Gemma 4's block."""

from dpn.models import conftest as torch_params
from dpn.models import encoder, mlp
from dpn.models.norms import base


def test_swiglu(golden, precision):
  names = {"gate": "fc1_g", "Dense_0": "fc1_x", "Dense_1": "fc2"}
  model = mlp.MLPS["swiglu"](12, dtype=precision.dtype)

  def run(get, x):
    params = {k: torch_params.dense(get, name) for k, name in names.items()}
    return model.apply({"params": params}, x)

  precision.check(golden("recent"), "mlp/swiglu", run)


def _gemma(get):
  """Returns the parameters of Gemma's block."""
  layer = lambda name: torch_params.dense(get, f"mlp.{name}.linear")
  norms = ("LayerNorm_0", "LayerNorm_0_post", "LayerNorm_1", "LayerNorm_1_post")
  names = {"gate": "gate_proj", "Dense_0": "up_proj", "Dense_1": "down_proj"}
  return {
    "MultiHeadDotProductAttention_0": torch_params.attention(
      get,
      **{"out": "attn.o_proj.linear", "each": "attn.{}_proj.linear"},
      **{"norms": "attn.{}_norm", "heads": 2},
    ),
    "MlpBlock_0": {ours: layer(theirs) for ours, theirs in names.items()},
    **{n: torch_params.norm(get, f"norm{i}") for i, n in enumerate(norms, 1)},
  }


def test_gemma_4(golden, precision):
  """RMSNorm four times and of queries, keys and values, rotary positions."""
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

  def run(get, x):
    return block.apply({"params": _gemma(get)}, (x, None), 0.0)[0][0]

  precision.tolerance["atol"] *= 10  # sums over all tokens
  precision.check(golden("recent"), "gemma4_block", run)
