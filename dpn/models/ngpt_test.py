"""nGPT for images against lucidrains/vit-pytorch's NViT."""

import jax
import jax.numpy as jnp
import numpy as np

from dpn import trees
from dpn.models import ngpt, vit

PATH = "dpn.models.ngpt"
OPTIONS = {
  "block_ln": f"{PATH}:Block",
  "stem_ln": f"{PATH}:STEM_LN",
  "weight_init": f"{PATH}:INITS",
  "weight_norm": f"{PATH}:scaled_logits",
  "final_norm": False,
}
TINY = {
  **{"width": 24, "depth": 2, "num_heads": 4, "mlp_dim": 24},
  **{"patch_size": (4, 4), "pool_type": "gap"},
}
WIDTH, D = 24, 6


def to_ours(get):
  """Returns our parameters of theirs, whose weights they normalize in use."""

  def weight(name, axis):
    return ngpt.unit(get(f"{name}.weight"), axis).T

  embedding = weight("to_patch_embedding.1", 0).reshape(3, 4, 4, WIDTH)
  flat = {
    "embedding/kernel": embedding.transpose(1, 2, 0, 3),
    "embedding/bias": jnp.zeros(WIDTH),
    "pos_embedding": weight("abs_pos_emb", -1).T[None],
    "head/kernel": weight("to_pred", -1),
    "head/bias": jnp.zeros(5),
    "head/logit_scale": get("logit_scale"),
  }
  for i in range(2):
    block = f"Transformer/encoderblock_{i}"
    attention = f"{block}/MultiHeadDotProductAttention_0"
    for ours, name in (("query", "to_q"), ("key", "to_k"), ("value", "to_v")):
      kernel = weight(f"layers.{i}.0.{name}", -1).reshape(WIDTH, 4, D)
      flat[f"{attention}/{ours}/kernel"] = kernel
    for ours, name in (("query_ln", "q_scale"), ("key_ln", "k_scale")):
      # Theirs has no sqrt(d) in the logits, and no 1 / sqrt(width).
      scale = get(f"layers.{i}.0.{name}")[:, 0] / (D**0.25 * WIDTH**0.5)
      flat[f"{attention}/{ours}/scale"] = scale
    out = weight(f"layers.{i}.0.to_out", 0).reshape(4, D, WIDTH)
    flat[f"{attention}/out/kernel"] = out
    flat[f"{attention}/out/bias"] = jnp.zeros(WIDTH)
    mlp = f"{block}/MlpBlock_0"
    for layer, axis in (("hidden", -1), ("gate", -1), ("out", 0)):
      kernel = weight(f"layers.{i}.1.to_{layer}", axis)
      flat[f"{mlp}/{layer}/kernel"] = kernel
    for layer in ("hidden", "gate"):
      flat[f"{mlp}/{layer}_scale"] = get(f"layers.{i}.1.{layer}_scale")
    for j, name in enumerate(("alpha_sa", "alpha_mlp")):
      flat[f"{block}/{name}"] = get(f"residual_lerp_scales.{i}.{j}")
  return trees.unflatten(flat)


def test_logits_and_all_gradients(golden, precision):
  vectors = golden("nvit")
  model = vit.Model(
    5,
    **TINY,
    **OPTIONS,
    block_ln_kw={"absolute": False},
    dtype_mm=precision.dtype,
  )
  vectors["in/x"] = vectors["in/x_nchw"]

  def run(get, x_nchw):
    params, image = to_ours(get), x_nchw.transpose(0, 2, 3, 1)
    init = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
    assert jax.tree.map(jnp.shape, init) == jax.tree.map(jnp.shape, params)
    return model.apply({"params": params}, image)[0]

  precision.check(vectors, "", run)


def test_a_token_of_zeros_passes_no_gradient_on():
  gradient = jax.grad(lambda x: ngpt.unit(x)[0])(jnp.zeros(4))
  np.testing.assert_array_equal(gradient, 0)


def test_projection_leaves_what_has_length_1():
  kw = TINY | {"scan": True, "pool_type": "tok"}
  model = vit.Model(5, **kw, **OPTIONS)
  image = jnp.zeros((2, 8, 8, 3))
  params = trees.flatten(model.init(jax.random.key(0), image)["params"])
  lengths = {
    "embedding/kernel": -1,
    "pos_embedding": -1,
    "cls": -1,
    "head/kernel": 0,
    **{f"MlpBlock_0/{x}/kernel": 1 for x in ("hidden", "gate")},
    **{f"Attention_0/{x}/kernel": 1 for x in ("query", "key", "value")},
    **{f"_0/{x}/kernel": -1 for x in ("out",)},
  }
  seen = set()
  for name, x in params.items():
    y = ngpt.project(name, x + 0.1)
    ends = [end for end in lengths if name.endswith(end)]
    seen |= {*ends}
    if name.endswith("/bias"):
      np.testing.assert_array_equal(y, 0)
    elif ends:
      norms = jnp.linalg.norm(y, axis=lengths[ends[0]])
      np.testing.assert_allclose(norms, jnp.ones_like(norms), rtol=1e-5)
      np.testing.assert_allclose(ngpt.project(name, y), y, rtol=1e-5)
    else:
      np.testing.assert_array_equal(y, x + 0.1)
  assert seen == lengths.keys()
  of_image, x = (
    "img/Transformer/encoderblock/A/out/kernel",
    jnp.full((2, 4), 3.0),
  )
  np.testing.assert_array_equal(ngpt.project(of_image, x), 0.5)
  for name in ("txt/head/bias", "img/stem/ln1/bias"):
    np.testing.assert_array_equal(ngpt.project(name, x), x)
