"""Whole models, with gradients, against the code of LaPE and of DTN."""

import re

import jax
import numpy as np
import pytest

from dpn import trees
from dpn.conftest import part
from dpn.models import vit
from dpn.weights import names, timm_vit

# What these models have besides timm's, by our names.
OTHERS = {
  r"pos_embed(\d+)": r"Transformer/encoderblock_\1/pos_embedding",
  r"blocks\.(\d+)\.pe_norm\.": r"Transformer/encoderblock_\1/pe_norm/",
  r"(.*/pe_norm)/weight": r"\1/scale",
  r"(.*)/mean_norm_weight": r"\1/mean_ratio",
  r"(.*)/var_norm_weight": r"\1/var_ratio",
  r"(.*)/pos_proj\.weight": r"\1/pos_proj/kernel",
  r"(.*)/bn\.running_(mean|var)": r"\1/\2",
  r"(.*)/running_phi": r"\1/phi",
}


def to_ours(flat, heads):
  """Returns arrays under our names."""
  result = {}
  for name, x in names.to_ours(flat, timm_vit.NAMES, heads).items():
    name = re.sub(
      r"^blocks\.(\d+)\.norm([12])\.(?!weight|bias)",
      lambda m: f"Transformer/encoderblock_{m[1]}/LayerNorm_{int(m[2]) - 1}/",
      name,
    )
    for theirs, ours in OTHERS.items():
      name = re.sub(f"^{theirs}", ours, name)
    x = x.T if name.endswith("pos_proj/kernel") else x
    result[name] = np.squeeze(x) if name.endswith("/phi") else x
  return result


def variables_of(model, image, flat):
  """Returns the variables that a model has, taken from `flat`, by our names."""
  shapes = jax.eval_shape(model.init, jax.random.key(0), image)

  def only(tree):
    names = trees.flatten(tree)
    return trees.unflatten(
      {k: flat.get(k, np.zeros(x.shape, x.dtype)) for k, x in names.items()}
    )

  given = {k for tree in shapes.values() for k in trees.flatten(tree)}
  missing = given - flat.keys()
  assert all(name.endswith(("/step", "/ema")) for name in missing), missing
  return {
    k: only(tree)
    for k, tree in shapes.items()
    if k in ("params", "batch_stats")
  }


def check(model, at, group, golden, heads, precision):
  """Compares logits, blocks and gradients, as far as there are any."""
  start = f"{at}/" if at else ""
  below = lambda key: part(golden, start + key)
  theirs = below("param/")
  if group == "scale":  # `weight` there are those of the other norms
    scales = {k: x for k, x in theirs.items() if k.endswith(".scale")}
    theirs |= {k.replace(".scale", ".weight"): x for k, x in scales.items()}
  theirs = {k: x for k, x in theirs.items() if not k.endswith(".scale")}
  flat = to_ours(theirs | below(f"buffer/{group}/"), heads)
  image = golden[f"{start}in/x_nchw"].transpose(0, 2, 3, 1)
  variables = variables_of(model, image, flat)
  variables, image, cotangent = precision.cast(
    (variables, image, golden[f"{start}in/cotangent"])
  )

  def run(params):
    return model.apply({**variables, "params": params}, image)

  @jax.jit
  def gradient(params):
    return jax.grad(lambda p: (run(p)[0] * cotangent).sum())(params)

  logits, out = jax.jit(run)(variables["params"])
  want = below(f"{group}/")
  precision.assert_close(logits, want["logits"])
  for i in range(model.config.depth):
    if f"x_after_block{i}" in want:
      got = out["encoder"][f"block{i:02d}"]["+mlp"]
      precision.assert_close(got, want[f"x_after_block{i}"])
  if not (grads := below(f"{group}/grad/")):
    return 0
  unknown = {k: np.full_like(x, np.nan) for k, x in theirs.items()}
  grads = {
    name: x
    for name, x in to_ours(unknown | grads, heads).items()
    if not np.isnan(x).any()
  }
  grad = trees.flatten(gradient(variables["params"]))
  for name in grad.keys() & grads.keys():
    precision.assert_close(grad[name], grads[name])
  return len(grad.keys() & grads.keys())


# Images of 2 x 3 patches for three blocks, of 2 x 2 for two. The gradients are
# of the class token; query, key, value and the second norm of the first block
# (5); each block's first norm (2) and norm of positions (2); learned positions.
JOINS = {
  "rect/LaPE_learnable": ("learn", "lape", 1 + 5 + 3 * 4 + 1),
  "rect/share_learnable": ("learn", "shared", 1 + 5 + 3 * 2 + 1),
  "rect/unshare_learnable": ("learn", "unshared", 1 + 5 + 3 * 2 + 3),
  "rect/share_1D_sin": ("sincos1d", "shared", 1 + 5 + 3 * 2),
  "square/LaPE_2D_sin": ("sincos2d_lape", "lape", 1 + 5 + 2 * 4),
  "square/share_2D_sin": ("sincos2d_lape", "shared", 1 + 5 + 2 * 2),
}


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("group", JOINS)
def test_lape(group, golden, precision):
  posemb, join, count = JOINS[group]
  at, group = group.split("/")
  if "sin" in group:
    # The released tables of sines are in single precision, 2e-7 from ours.
    precision.tolerance = {"rtol": 1e-5, "atol": 1e-5}
  model = vit.Model(
    3,
    width=8,
    depth={"rect": 3, "square": 2}[at],
    mlp_dim=12,
    num_heads=2,
    patch_size=(4, 4),
    pool_type="tok",
    gelu="exact",
    posemb=posemb,
    posemb_join=join,
    dtype_mm=precision.dtype,
  )
  vectors = golden("lape_joins")
  assert check(model, at, group, vectors, 2, precision) == count


NORMS = {
  "dtn": ("dtn", {}),
  "layer": ("layernorm", {"eps": 1e-5}),
  "batch": ("batchnorm", {}),
  "power": ("powernorm", {}),
  "insnorm": ("instancenorm", {}),
  "gnorm": ("groupnorm", {}),
  "scale": ("scalenorm", {}),
}


@pytest.mark.parametrize("precision", ["float64"], indirect=True)
@pytest.mark.parametrize("group", NORMS)
def test_dtn(group, golden, precision):
  norm, kw = NORMS[group]
  model = vit.Model(
    3,
    width=16,
    depth=4,
    mlp_dim=24,
    num_heads=4,
    patch_size=(2, 2),
    pool_type="tok",
    cls_blocks=2,
    gelu="exact",
    qkv_bias=False,
    norm=norm,
    norm_kw=kw,
    dtype_mm=precision.dtype,
  )
  compared = check(model, "", group, golden("dtn_vit"), 4, precision)
  # As above; DTN has five parameters, in two blocks of four.
  assert compared == {"dtn": 1 + 3 + 3 * 5 + 2 * 2}.get(group, 0)
