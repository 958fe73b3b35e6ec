"""LaPE, relative positions and their tables against the authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.conftest import part
from dpn.models import attention, joins, posemb, vit
from dpn.models import conftest as torch_params
from dpn.models.norms import base


def vit_params(get, lape, learned):
  """Returns the released ViT's parameters under our names."""

  def block(i):
    own = lambda name: get(f"blocks.{i}.{name}")
    sa = torch_params.attention(own, "attn.proj", "attn.qkv")
    norms = {"LayerNorm_0": "norm1", "LayerNorm_1": "norm2"}
    norms |= {"pe_norm": "pe_norm"} if lape else {}
    return torch_params.block(own, sa, "mlp.fc1", "mlp.fc2", norms)

  params = {
    "embedding": {
      "kernel": get("patch_embed.proj.weight").transpose(2, 3, 1, 0),
      "bias": get("patch_embed.proj.bias"),
    },
    "cls": get("cls_token"),
    "Transformer": {
      "encoderblock_0": block(0),
      "encoderblock_1": block(1),
      "encoder_norm": torch_params.norm(get, "norm"),
    },
    "head": torch_params.dense(get, "head"),
  }
  return params | ({"pos_embedding": get("pos_embed")} if learned else {})


GROUPS = {
  "LaPE": ("lape", {}, "learn"),
  "basic": ("add", {"cls": True}, "learn"),
  "LaPE_sharingPE_v1": ("lape", {"share": True}, "learn"),
  "LaPE_1Dsin": ("lape", {}, "sincos1d"),
  "basic_1Dsin": ("add", {"cls": True}, "sincos1d"),
  "basic_2Dsin": ("add", {"cls": True}, "sincos2d_lape"),
}


@pytest.mark.parametrize("group", GROUPS)
def test_released_vit(group, golden, precision):
  vectors = golden("lape_vit")
  join, kw, kind = GROUPS[group]
  if "sin" in group and precision.dtype == "float64":
    # The released tables of sines are in single precision, 2e-7 from ours.
    precision.tolerance = {"rtol": 1e-5, "atol": 1e-5}
  model = vit.Model(
    5,
    width=24,
    depth=2,
    mlp_dim=48,
    num_heads=4,
    patch_size=(4, 4),
    pool_type="tok",
    gelu="exact",
    posemb=kind,
    posemb_join=join,
    posemb_join_kw=kw,
    dtype_mm=precision.dtype,
  )
  image = vectors["in/x_nchw"].transpose(0, 2, 3, 1)
  params, image, cotangent = precision.cast(
    (part(vectors, "param/"), image, vectors["in/cotangent_logits"])
  )

  @jax.jit
  def with_gradient(params):
    def run(params):
      ours = vit_params(params.get, join == "lape", kind == "learn")
      return model.apply({"params": ours}, image)

    logits, vjp, out = jax.vjp(run, params, has_aux=True)
    return logits, vjp(cotangent)[0], out["encoder"]

  logits, grad, out = with_gradient(params)
  precision.assert_close(logits, vectors[f"{group}/logits"])
  for i in (0, 1):
    block = out[f"block{i:02d}"]
    precision.assert_close(block["+mlp"], vectors[f"{group}/x_after_block{i}"])
    if join == "lape":
      want = vectors[f"{group}/pe_after_LN{i}"].reshape(1, 10, 24)
      precision.assert_close(block["position"], want)
  wanted = part(vectors, f"{group}/grad/")
  assert len(wanted) == {"LaPE": 10, "basic": 6}.get(group, 0)
  for name, want in wanted.items():
    precision.assert_close(grad[name], want)


def test_tables(golden):
  vectors = golden("lape_pos_tables")
  close = lambda a, b: np.testing.assert_allclose(a, b, atol=5e-7)
  close(posemb.sincos1d(10, 24)[0], vectors["sin1d_d24_n10"])
  # Theirs are (width, rows, cols), and their class token's row is zero.
  table = posemb.sincos2d_lape(3, 5, 8).reshape(3, 5, 8)
  close(table.transpose(2, 0, 1), vectors["sin2d_d8_h3_w5"])
  table = posemb.POSEMBS["sincos2d_lape"]((3, 3), 24, 1)
  close(table, vectors["sin2d_d24_h3_w3_with_zero_cls"])


@pytest.mark.parametrize("group", ["basic", "LN"])
def test_relative_attention(group, golden, precision):
  vectors = golden("lape_rpe_attention")
  get = part(vectors, f"{group}/param/").get
  params = {"table": get("relative_position_bias_table")}
  if group == "LN":
    params["pe_norm"] = torch_params.norm(get, "pe_norm")
  bias = joins.RelativeBias(
    base.TokenGrid(4, (3, 3), cls=True),
    normalize=group == "LN",
    dtype=precision.dtype,
  ).apply({"params": precision.cast(params)})
  x = precision.cast(vectors["in/x"])
  attend = attention.Attention(num_heads=4, dtype=precision.dtype)
  params = precision.cast(torch_params.attention(get, "proj", "qkv"))
  y = jax.jit(attend.apply)({"params": params}, x, x, bias)
  precision.assert_close(y, vectors[f"{group}/out/y"])


def test_relative_index(golden):
  want = golden("lape_rpe_attention")["relative_position_index"]
  np.testing.assert_array_equal(joins.relative_index(3, 3), want)
  # Two rows of three: from the last patch to the first is the last entry.
  assert joins.relative_index(2, 3)[5, 0] == 14


# Table 8, in NumPy, of z = (x - mean) / sqrt(var + eps).
FORMS = {
  "identity": lambda x, z, g, b: x,
  "scalar": lambda x, z, g, b: g[:1] * x,
  "scale": lambda x, z, g, b: g * x,
  "affine": lambda x, z, g, b: g * x + b,
  "standardize": lambda x, z, g, b: z,
  "standardize_scalar": lambda x, z, g, b: g[:1] * z,
  "standardize_scale": lambda x, z, g, b: g * z,
  "layernorm": lambda x, z, g, b: g * z + b,
}


def test_forms_of_table_8():
  assert joins.FORMS.keys() == FORMS.keys()
  random = np.random.RandomState(0)
  x, g, b = random.randn(1, 5, 8), random.randn(8), random.randn(8)
  z = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
  for form, equation in FORMS.items():
    norm = joins.PositionNorm(1e-5, form=form)
    fresh = norm.init(jax.random.key(0), x).get("params", {})
    given = {"scale": g, "bias": b}
    params = {k: given[k][: v.size] for k, v in fresh.items()}
    got = norm.apply({"params": params}, jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(got, equation(x, z, g, b), rtol=1e-5, atol=1e-5)
    start = norm.apply({"params": fresh}, jnp.asarray(x, jnp.float32))
    want = z if "standard" in form or form == "layernorm" else x
    np.testing.assert_allclose(start, want, rtol=1e-5, atol=1e-5)


def test_forms_are_chained():
  """Block i sees what i norms, one after another, have made of positions."""
  image = jax.random.uniform(jax.random.key(0), (1, 8, 8, 3))
  model = vit.Model(
    **{"width": 8, "depth": 2, "num_heads": 2, "patch_size": (4, 4)},
    **{"posemb_join": "lape", "posemb_join_kw": {"norm": "scalar"}},
  )
  params = jax.jit(model.init)(jax.random.key(1), image)["params"]
  for i, g in enumerate((2.0, 3.0)):
    norm = params["Transformer"][f"encoderblock_{i}"]["pe_norm"]
    norm["scale"] = g * norm["scale"]
  out = jax.jit(model.apply)({"params": params}, image)[1]["encoder"]
  raw = params["pos_embedding"]
  np.testing.assert_allclose(out["block00"]["position"], 2 * raw, rtol=1e-6)
  np.testing.assert_allclose(out["block01"]["position"], 6 * raw, rtol=1e-6)
