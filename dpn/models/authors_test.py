"""Blocks and models whose authors' code differs from what a paper says alone.

`golden("methods")` has their outputs and gradients, `dpn/testdata/README.md`
where each is from.
"""

import functools

import jax.numpy as jnp

from dpn.models import conftest as torch_params
from dpn.models import encoder, norms, vit
from dpn.models.attention import Attention
from dpn.models.norms import base

SMALL = {"width": 8, "num_heads": 2, "gelu": "exact"}
TOKENS = base.TokenGrid(num_heads=2, grid=(1, 5))
attention = functools.partial(torch_params.attention, heads=2)


def check_blocks(group, block, golden, precision, **options):
  """Compares an encoder whose block i has the parameters `block(get, i)`."""
  config = encoder.Config(
    **SMALL, depth=2, final_norm=False, dtype_mm=precision.dtype, **options
  )
  model = encoder.Encoder(config)

  def run(get, x):
    params = {f"encoderblock_{i}": block(get, i) for i in (0, 1)}
    return model.apply({"params": params}, x, tokens=TOKENS)[0]

  precision.check(golden("methods"), group, run)


def test_hybridnorm_star(golden, precision):
  """Its first block, and one as all of HybridNorm, both with SwiGLU."""

  def block(get, i):
    own = lambda name: get(f"{i}.{name}")
    heads = attention(own, "attn_out", "att_proj")
    both = torch_params.dense(own, "ff_proj")
    up, gate = (
      {k: jnp.split(x, 2, axis=-1)[j] for k, x in both.items()} for j in (0, 1)
    )
    mlp = {
      "Dense_0": up,
      "gate": gate,
      "Dense_1": torch_params.dense(own, "ff_out"),
    }
    where = {"LayerNorm_0_post": torch_params.norm(own, "ff_norm")}
    if i == 0:
      where = {"LayerNorm_0": torch_params.norm(own, "attn_norm")}
      where["LayerNorm_1"] = torch_params.norm(own, "ff_norm")
    return {"MultiHeadDotProductAttention_0": heads, "MlpBlock_0": mlp, **where}

  kinds = ("norm", "qk_norm", "v_norm")
  options = dict.fromkeys(kinds, "rmsnorm")
  options |= {f"{kind}_kw": {"eps": 1e-5} for kind in kinds}
  options |= {"block_ln": "hybridnorm", "block_ln_kw": {"first": "pre_both"}}
  options |= {"mlp": "swiglu", "mlp_dim": 12, "qkv_bias": False}
  check_blocks("hybridnorm_star", block, golden, precision, **options)


def test_deepnorm(golden, precision):
  def block(get, i):
    own = lambda name: get(f"layers.{i}.{name}")
    heads = attention(own, "self_attn.out_proj", each="self_attn.{}_proj")
    norms = ("self_attn_layer_norm", "final_layer_norm")
    norms = {f"LayerNorm_{j}_post": norm for j, norm in enumerate(norms)}
    return torch_params.block(own, heads, "ffn.fc1", "ffn.fc2", norms)

  options = {"block_ln": "deepnorm", "mlp_dim": 12}
  check_blocks("deepnorm", block, golden, precision, **options)


def test_cosines_of_swin_v2(golden, precision):
  """Their logits are learned in logarithms, too; keys have no bias."""
  unit = {"scale": jnp.full((2, 4), 4**-0.5, precision.dtype)}

  def ours(get):
    own = {"qkv.bias": [get("q_bias"), jnp.zeros(8), get("v_bias")]}
    own = {k: jnp.concatenate(x) for k, x in own.items()}
    with_bias = lambda name: own[name] if name in own else get(name)
    scale = {"logit_scale": get("logit_scale").ravel()}
    heads = attention(with_bias, "proj", "qkv")
    return heads | {"query_ln": unit, "key_ln": unit} | scale

  make = functools.partial(norms.QK_NORMS["l2"], dtype=precision.dtype)
  kw = {"logit_scale": "learned", "dtype": precision.dtype}
  model = Attention(2, make_qk_norm=make, **kw)
  run = lambda get, x: model.apply({"params": ours(get)}, x, x)
  precision.check(golden("methods"), "swinv2", run)


def test_model_of_dynamic_tanh(golden, precision):
  """A norm after the pooling, and a class token that nothing reads."""

  def ours(get):
    own = lambda name: get(f"blocks.0.{name}")
    heads = attention(own, "attn.proj", "attn.qkv")
    norms = {"LayerNorm_0": "norm1", "LayerNorm_1": "norm2"}
    block = torch_params.block(own, heads, "mlp.fc1", "mlp.fc2", norms)
    kernel = get("patch_embed.proj.weight").transpose(2, 3, 1, 0)
    table = get("pos_embed")
    return {
      "embedding": {"kernel": kernel, "bias": get("patch_embed.proj.bias")},
      "pos_embedding": table[:, 1:],
      "registers": get("cls_token") + table[:, :1],
      "Transformer": {"encoderblock_0": block},
      "fc_norm": torch_params.norm(get, "fc_norm"),
      "head": torch_params.dense(get, "head"),
    }

  model = vit.Model(
    3,
    **{**SMALL, "depth": 1, "mlp_dim": 8, "patch_size": (2, 2)},
    **{"norm": "dyt", "final_norm": False, "pool_norm": "norm"},
    **{"pool_type": "gap", "registers": 1, "dtype_mm": precision.dtype},
  )

  def run(get, x_nchw):
    image = x_nchw.transpose(0, 2, 3, 1)
    return model.apply({"params": ours(get)}, image)[0]

  precision.check(golden("methods"), "dyt_vit", run)
