"""Registers, and norms of their own for the tokens around the patches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpn import trees
from dpn.conftest import part
from dpn.models import conftest as torch_params
from dpn.models import encoder, vit
from dpn.models.norms import base
from dpn.weights import names, timm_vit

SMALL = {"width": 16, "depth": 2, "num_heads": 2, "patch_size": (4, 4)}
IMAGE = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)


TIMM = {"gelu": "exact", "registers": 3, "qk_norm": "layernorm"}
TIMM |= {"width": 8, "mlp_dim": 12, "patch_size": (3, 3)}
# ViT-5's registers are turned in a grid of their own.
VIT5 = {"gelu": "exact", "registers": 4, "registers_last": True}
VIT5 |= {"norm": "rmsnorm", "qk_norm": "rmsnorm", "final_norm": "norm"}
VIT5 |= {"rope": "axial", "rope_kw": {"register_base": 100.0}}
VIT5 |= {"qkv_bias": False, "mlp_dim": 32, "patch_size": (3, 3)}
MODELS = {
  "timm_reg": {**TIMM, "pool_type": "tok"},
  "timm_reg_gap": TIMM,
  "vit5": {**VIT5, "pool_type": "tok"},
}


def _without_layer_scale(flat):
  """Returns the parameters with factors of branches multiplied into them."""
  flat = {timm_vit.NAMES.rename(name): x for name, x in flat.items()}
  for i in range(2):  # in the double precision of the vectors
    for ls, module in (("ls1", "attn.proj"), ("ls2", "mlp.fc2")):
      gamma = flat.pop(f"blocks.{i}.{ls}.gamma").astype(np.float64)
      for leaf in ("weight", "bias"):
        name = f"blocks.{i}.{module}.{leaf}"
        flat[name] = (flat[name].T * gamma).T
  return names.to_ours(flat, timm_vit.NAMES, 2)


@pytest.mark.parametrize("kind", MODELS)
def test_whole_models(kind, golden, precision):
  """Registers and normalized queries and keys, in timm and in ViT-5."""
  vectors = golden("recent")
  flat = _without_layer_scale(part(vectors, f"{kind}/param/"))
  options = {**SMALL, **MODELS[kind]}
  model = vit.Model(5, **options, dtype_mm=precision.dtype)
  image = vectors[f"{kind}/in/x"].transpose(0, 2, 3, 1)
  apply = lambda p, x: model.apply({"params": p}, x)[0]
  logits, d_params, d_image = precision.value_and_grads(
    apply, trees.unflatten(flat), image, vectors[f"{kind}/in/cotangent"]
  )
  precision.assert_close(logits, vectors[f"{kind}/out/y"])
  want = vectors[f"{kind}/grad/x"].transpose(0, 2, 3, 1)
  precision.tolerance["atol"] *= 10  # sums over all tokens
  precision.assert_close(d_image, want)
  shown = part(vectors, f"{kind}/grad/")
  shown = {k: x for k, x in shown.items() if k != "x" and "gamma" not in k}
  sign = {timm_vit.NAMES.sign: np.zeros((1, 3, 3, 3))}
  wanted = names.to_ours(shown | sign, timm_vit.NAMES, 2)
  for name, got in trees.flatten(d_params).items():
    if name in wanted and not name.startswith("embedding/"):
      precision.assert_close(got, wanted[name])


def _specialized(get):
  """Returns lucidrains' parameters under our names."""

  def both(ours, theirs):
    return {ours: f"{theirs}.fns.1", f"{ours}_prefix": f"{theirs}.fns.0"}

  def block(i):
    own = lambda name: get(f"layers.{i}.{name}")
    qkv = ["0.to_qkv.fns.1", "0.to_qkv"][i]
    heads = torch_params.attention(own, "0.to_out", qkv)
    if i == 0:
      of_cls = torch_params.attention(own, "0.to_out", "0.to_qkv.fns.0")
      heads |= {f"{n}_prefix": of_cls[n] for n in ("query", "key", "value")}
    norms = both("LayerNorm_0", "0.norm") | both("LayerNorm_1", "1.norm")
    return torch_params.block(own, heads, "1.net.0", "1.net.2", norms)

  last = both("encoder_norm", "norm")
  params = {k: torch_params.norm(get, theirs) for k, theirs in last.items()}
  return params | {f"encoderblock_{i}": block(i) for i in (0, 1)}


def test_specialized_class_token(golden, precision):
  """The first of two blocks also has projections for the class token."""
  config = encoder.Config(
    **{"width": 24, "depth": 2, "mlp_dim": 48, "num_heads": 4},
    **{"gelu": "exact", "qkv_bias": False, "norm_kw": {"eps": 1e-5}},
    **{"block_ln": "specialized_cls", "block_ln_kw": {"share": 0.5}},
    dtype_mm=precision.dtype,
  )
  tokens = base.TokenGrid(4, (1, 4), cls=True, prefix_norm="own")
  model = encoder.Encoder(config)

  def run(get, x):
    return model.apply({"params": _specialized(get)}, x, tokens=tokens)[0]

  precision.tolerance["atol"] *= 10  # sums over all tokens
  precision.check(golden("specialized_cls"), "specialized_cls", run)


def test_shared_norms_are_equal_own_norms():
  """And every kind of pooling sees the same, wherever registers are."""
  for options in (
    {"pool_type": "tok", "norm": "rmsnorm", "stem_ln": "dpn"},
    {"pool_type": "tok", "cls_blocks": 1, "scan": False},
    {"pool_type": "map", "posemb": "rpe", "scan": True},
    {"pool_type": "gap", "norm": "dyt", "final_norm": "norm"},
    {"pool_type": "tok", "posemb_join_kw": {"cls": True}, "scan": True},
  ):
    outs = {}
    for last in (False, True):
      for own in ("shared", "own", "own_final"):
        model = vit.Model(
          3,
          **{**SMALL, **options, "registers": 2, "head_zeroinit": False},
          **{"registers_last": last, "prefix_norm": own},
        )
        variables = model.init(jax.random.key(0), IMAGE)
        flat = trees.flatten(variables["params"])
        prefixes = [k for k in flat if "_prefix/" in k]
        assert bool(prefixes) == (own != "shared")
        rng = np.random.RandomState(0)
        drawn = {}
        for name in sorted({k.replace("_prefix", "") for k in flat}):
          drawn[name] = rng.normal(size=flat[name].shape).astype("f")
        same = {k: drawn[k.replace("_prefix", "")] for k in flat}
        variables = {**variables, "params": trees.unflatten(same)}
        logits, out = model.apply(variables, IMAGE, attention_maps=True)
        outs[last, own] = logits
        maps = out["encoder"]["block01"]["attention_maps"]
        cls = options["pool_type"] == "tok"
        assert maps.shape[-1] == 4 + 2 + cls
        assert out["encoded"].shape[1] == 4 + cls
        assert out["registers"].shape == (2, 2, 16)
    for key, logits in outs.items():
      np.testing.assert_allclose(
        logits, outs[False, "shared"], rtol=1e-3, atol=1e-4, err_msg=str(key)
      )


def test_registers_become_different():
  """Equal ones would get equal gradients, and so stay equal."""
  model = vit.Model(3, **SMALL, registers=2, head_zeroinit=False)
  params = model.init(jax.random.key(0), IMAGE)["params"]
  assert abs(params["registers"].std() - 0.02) < 0.01

  @jax.jit
  def step(params):
    loss = lambda p: model.apply({"params": p}, IMAGE)[0][:, 0].sum()
    grads = jax.grad(loss)(params)
    return optax.apply_updates(params, jax.tree.map(lambda g: -g, grads))

  def distance(params):
    one, two = params["registers"][0]
    return jnp.linalg.norm(one - two)

  equal = params | {"registers": jnp.ones((1, 2, 16))}
  assert distance(step(equal)) < 1e-6  # the trap
  assert distance(step(params)) > 0.9 * distance(params) > 0.05


def test_between_tokens():
  """DTN takes registers for class tokens; batch statistics count them."""
  for norm in ("dtn", "batchnorm", "instancenorm"):
    kw = {**SMALL, "head_zeroinit": False, "norm": norm, "registers": 2}
    model = vit.Model(3, **kw, registers_last=True)
    variables = model.init(jax.random.key(0), IMAGE)
    logits = model.apply(variables, IMAGE)[0]
    assert np.isfinite(logits).all()
    assert np.abs(logits).max() > 0
