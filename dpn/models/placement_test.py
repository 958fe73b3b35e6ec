"""Placements after 2022 against released code and equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.conftest import stacked
from dpn.models import conftest as torch_params
from dpn.models import encoder, vit
from dpn.models.norms import base

SMALL = {"width": 24, "mlp_dim": 48, "num_heads": 4, "gelu": "exact"}
TOKENS = base.TokenGrid(num_heads=4, grid=(1, 5))
TINY = {"width": 16, "mlp_dim": 8, "num_heads": 2, "patch_size": (4, 4)}
IMAGE = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)


def make_block(precision, i=0, **options):
  config = encoder.Config(**SMALL, dtype_mm=precision.dtype, **options)
  block_cls, fields = encoder.bind_block(config, i)
  return block_cls(config, TOKENS, **fields)


@pytest.mark.parametrize(
  ("group", "where", "options"),
  [
    ("layer_scale", "LayerNorm_{}", {"layer_scale": 1e-4}),
    ("res_post", "LayerNorm_{}_post", {"block_ln": "res_post"}),
  ],
)
def test_released_blocks(group, where, options, golden, precision):
  names = {where.format(i): f"norm{i + 1}" for i in (0, 1)}
  block = make_block(precision, **options)

  def run(get, x):
    sa = torch_params.attention(get, "attn.proj", "attn.qkv")
    params = torch_params.block(get, sa, "mlp.fc1", "mlp.fc2", names)
    if group == "layer_scale":
      params |= {f"LayerScale_{i}": get(f"gamma_{i + 1}") for i in (0, 1)}
    return block.apply({"params": params}, (x, None), 0.0)[0][0]

  precision.check(golden("frontier_blocks"), group, run)


def derived_params(get):
  """Returns all parameters that any of these blocks may have."""
  heads = lambda name: {
    "kernel": get(f"w{name}").reshape(24, 4, 6),
    "bias": get(f"b{name}").reshape(4, 6),
  }
  dense = lambda i: {"kernel": get(f"w{i}"), "bias": get(f"b{i}")}
  norm = lambda at: {"scale": get(f"g_{at}"), "bias": get(f"b_{at}")}
  qkv = ("query", "key", "value")
  return {
    "MultiHeadDotProductAttention_0": {
      **{name: heads(name[0]) for name in qkv},
      "out": {"kernel": get("wo").reshape(4, 6, 24), "bias": get("bo")},
      **{f"{n}_ln": {"scale": get(f"g_{n[0]}")} for n in qkv},
    },
    "MlpBlock_0": {"Dense_0": dense(1), "Dense_1": dense(2)},
    "LayerNorm_0": norm("sa"),
    "LayerNorm_1": norm("mlp"),
    "LayerNorm_0_post": norm("sa_post"),
    "LayerNorm_1_post": norm("mlp_post"),
  }


@pytest.mark.parametrize(
  ("want", "i", "options"),
  [
    ("lns_layer1", 0, {"block_ln": "lns"}),
    ("lns_layer3", 2, {"block_ln": "lns"}),
    ("peri_ln", 0, {"block_ln": "peri_ln"}),
    ("deepnorm_N12", 5, {"block_ln": "deepnorm"}),
    ("hybridnorm", 0, {"block_ln": "hybridnorm"}),
    (
      "hybridnorm_star_first",
      0,
      {"block_ln": "hybridnorm", "block_ln_kw": {"first": "pre"}},
    ),
  ],
)
def test_equations(want, i, options, golden, precision):
  vectors = golden("frontier_blocks")
  if options["block_ln"] == "hybridnorm":
    options = options | {"qk_norm": "rmsnorm", "v_norm": "rmsnorm"}
  block = make_block(precision, i, **options)
  get = lambda name: vectors[f"derived/param/{name}"]
  if "hybridnorm" in want:
    # What is normalized after attention is the MLP's input there.
    get = lambda name: vectors[
      f"derived/param/{name.replace('sa_post', 'mlp')}"
    ]
  x, params = precision.cast((vectors["in/x"], derived_params(get)))
  y = block.apply({"params": params}, (x, None), 0.0)[0][0]
  precision.assert_close(y, vectors[f"derived/{want}"])


def test_keel(golden, precision):
  def block(get, i):
    sa, mlp = f"layers.{2 * i}", f"layers.{2 * i + 1}"
    norms = {"LayerNorm_0": f"{sa}.norm", "LayerNorm_1": f"{mlp}.net.0"}
    posts = {"LayerNorm_1_post": f"post_norms.{2 * i}"}
    if i:
      posts["LayerNorm_0_post"] = f"post_norms.{2 * i - 1}"
    heads = torch_params.attention(get, f"{sa}.to_out.0", f"{sa}.to_qkv")
    layers = (f"{mlp}.net.1", f"{mlp}.net.4")
    return torch_params.block(get, heads, *layers, norms | posts)

  model = encoder.Encoder(
    encoder.Config(
      **SMALL,
      depth=2,
      block_ln="keel",
      norm="layernorm_no_bias",
      norm_kw={"eps": 1e-5},
      qkv_bias=False,
      final_norm=False,
      dtype_mm=precision.dtype,
    )
  )

  def run(get, x):
    params = {f"encoderblock_{i}": block(get, i) for i in (0, 1)}
    return model.apply({"params": params}, x, tokens=TOKENS)[0]

  precision.check(golden("frontier_blocks"), "keel", run)


def test_deepnorm_starts_with_its_gain():
  """The factor of 12 blocks is that of torchscale, (8 * 12)^(-1/4)."""
  config = vit.Config(**TINY, depth=12, block_ln="deepnorm")
  [*_, placement] = config.block_placements
  np.testing.assert_allclose(placement.weight_gain, 0.319472, rtol=1e-5)
  np.testing.assert_allclose(placement.stream_gain, 2.213364, rtol=1e-6)


def test_res_post_starts_as_the_identity():
  model = vit.Model(3, **TINY, depth=2, block_ln="res_post")
  variables = model.init(jax.random.key(0), IMAGE)
  out = model.apply(variables, IMAGE)[1]["encoder"]
  np.testing.assert_array_equal(out["block00"]["+sa"], out["pre_ln"])
  with pytest.raises(ValueError, match="'standardize' has no scale"):
    vit.Model(3, **TINY, depth=2, block_ln="res_post", norm="standardize").init(
      jax.random.key(0), IMAGE
    )


@pytest.mark.parametrize(
  ("options", "learns"),
  [({}, False), ({"pool_type": "gap"}, True), ({"head_zeroinit": False}, True)],
)
def test_what_res_post_learns_from_with_a_head_of_zeros(options, learns):
  options = {"pool_type": "tok", "head_zeroinit": True, **options}
  model = vit.Model(3, **TINY, depth=2, block_ln="res_post", **options)
  params = model.init(jax.random.key(0), IMAGE)
  loss = lambda params: jax.nn.log_softmax(model.apply(params, IMAGE)[0])[0, 0]
  gradient = jax.grad(loss)(params)["params"]
  del gradient["head"]["bias"]
  found = any(jnp.any(x) for x in jax.tree.leaves(gradient))
  assert found == learns


def test_mix_ln():
  model = vit.Model(3, **TINY, depth=8, block_ln="mix_ln")
  params = jax.eval_shape(model.init, jax.random.key(0), IMAGE)["params"]
  first = [
    i
    for i in range(8)
    if "LayerNorm_0_post" in params["Transformer"][f"encoderblock_{i}"]
  ]
  assert first == [0, 1]


@pytest.mark.parametrize("remat", ["none", "nothing_saveable"])
def test_scanned_blocks_have_gains_of_their_own(remat):
  options = {**TINY, "depth": 3, "block_ln": "lns", "layer_scale": 0.5}
  loop = vit.Model(3, **options)
  scan = vit.Model(3, **options, scan=True, remat_policy=remat)
  variables = loop.init(jax.random.key(0), IMAGE)
  params = stacked(variables["params"], depth=3)
  want = loop.apply(variables, IMAGE)[1]["encoder"]["pre_ln"]
  got = scan.apply({"params": params}, IMAGE)[1]["encoder"]["pre_ln"]
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
