"""Stems against vectors computed in NumPy from the paper's formulas.

testdata/stems.npz: a float32 image (2, 8, 12, 3) with one constant patch,
parameters, and in float64 the patches and the tokens of every stem.
"""

import pathlib
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import flops, trees
from dpn.models import stem, vit

GOLDEN = dict(np.load(pathlib.Path(__file__).parents[1] / "testdata/stems.npz"))
IMAGE = GOLDEN["in/image_nhwc"]

# Parameters beyond the embedding: 48 pixels per patch, width 10.
SCALE_0, BIAS_0 = {"ln0/scale": (48,)}, {"ln0/bias": (48,)}
SCALE_1, BIAS_1 = {"ln1/scale": (10,)}, {"ln1/bias": (10,)}
STEMS = {
  "none": {},
  "dpn": SCALE_0 | BIAS_0 | SCALE_1 | BIAS_1,
  "pre": SCALE_0 | BIAS_0,
  "post": SCALE_1 | BIAS_1,
  "post_rmsnorm": SCALE_1,
  "post_posemb": SCALE_1 | BIAS_1,
  "only_learnable": SCALE_0 | BIAS_0 | SCALE_1 | BIAS_1,
  "rmsnorm": SCALE_0 | SCALE_1,
  "no_learnable": {},
  "pre_no_learnable": {},
}


def model_and_params(stem_ln, dtype=np.float32):
  """Returns a model without blocks, and the vectors' parameters for it."""
  model = vit.Model(
    stem_ln=stem_ln,
    width=10,
    depth=0,
    num_heads=1,
    patch_size=(4, 4),
    dtype_mm=np.dtype(dtype).name,
  )
  flat = {
    "embedding/kernel": GOLDEN["param/dense/kernel"].reshape(4, 4, 3, 10),
    "embedding/bias": GOLDEN["param/dense/bias"],
    "pos_embedding": GOLDEN["param/pos_embedding"],
    "Transformer/encoder_norm/scale": np.ones(10),
    "Transformer/encoder_norm/bias": np.zeros(10),
  } | {f"stem/{name}": GOLDEN[f"param/{name}"] for name in STEMS[stem_ln]}
  return model, trees.unflatten({k: x.astype(dtype) for k, x in flat.items()})


def tokens(stem_ln, dtype=np.float32, image=IMAGE):
  model, params = model_and_params(stem_ln, dtype)
  run = jax.jit(lambda p, x: model.apply({"params": p}, x)[1]["with_posemb"])
  return run(params, image.astype(dtype))


def test_every_stem_is_tested():
  elsewhere = {"whiten", "whiten_ln"}  # whitening_test.py
  assert STEMS.keys() == stem.STEM_LN.keys() - elsewhere


def expected(stem_ln):
  """Returns tokens with positions, in double precision."""
  if stem_ln not in ("pre_no_learnable", "post_rmsnorm"):
    group = "base" if stem_ln == "none" else stem_ln
    return GOLDEN[f"{group}/out/with_posemb"]
  x = np.float64(GOLDEN["mid/patches"])
  kernel, bias = (GOLDEN[f"param/dense/{name}"] for name in ("kernel", "bias"))
  if stem_ln == "post_rmsnorm":
    x = x @ kernel + bias
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)
    return x * GOLDEN["param/ln1/scale"] + GOLDEN["param/pos_embedding"]
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
  return x @ kernel + bias + GOLDEN["param/pos_embedding"]


@pytest.mark.parametrize("stem_ln", STEMS)
def test_vectors(stem_ln):
  want = expected(stem_ln)
  np.testing.assert_allclose(tokens(stem_ln), want, rtol=1e-4, atol=2e-5)
  with jax.enable_x64(True):
    got = tokens(stem_ln, np.float64)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("stem_ln", STEMS)
def test_parameters(stem_ln):
  model, _ = model_and_params(stem_ln)
  params = jax.eval_shape(model.init, jax.random.key(0), IMAGE)["params"]
  flat = trees.flatten(params.get("stem", {}))
  assert {name: x.shape for name, x in flat.items()} == STEMS[stem_ln]
  assert params["embedding"]["kernel"].shape == (4, 4, 3, 10)


@pytest.mark.parametrize("size", vit.VARIANTS)
def test_count_formula(size):
  d, depth, mlp, _ = vit.VARIANTS[size]
  pixels, tokens = 14 * 14 * 3, 16 * 16
  block = 4 * (d * d + d) + (2 * d * mlp + mlp + d) + 4 * d
  plain = (pixels * d + d) + tokens * d + 2 * d + (d * 1000 + 1000)
  model = vit.Model(1000, variant=f"{size}/14", stem_ln="dpn", scan=True)
  image = jax.ShapeDtypeStruct((1, 224, 224, 3), np.float32)
  shapes = jax.eval_shape(model.init, jax.random.key(0), image)
  count = sum(x.size for x in jax.tree.leaves(shapes))
  assert count == plain + depth * block + 2 * pixels + 2 * d


def test_patches_are_in_row_column_channel_order():
  patches = stem.patchify(IMAGE, (4, 4)).reshape(2, 6, 48)
  np.testing.assert_array_equal(patches, GOLDEN["mid/patches"])


def test_oblong_patches():
  image = np.arange(2 * 4 * 12 * 3).reshape(2, 4, 12, 3)
  patches = stem.patchify(image, (2, 4))
  assert patches.shape == (2, 2, 3, 24)
  for n, i, j, r, c, k in np.ndindex(2, 2, 3, 2, 4, 3):
    pixel = image[n, 2 * i + r, 4 * j + c, k]
    assert patches[n, i, j, (r * 4 + c) * 3 + k] == pixel


@pytest.mark.parametrize("shape", [(1, 10, 8, 3), (1, 8, 10, 3), (8, 8, 3)])
def test_images_that_cannot_be_cut(shape):
  with pytest.raises(ValueError, match=r"cut into 4x4 patches.*Resize or crop"):
    stem.patchify(np.zeros(shape), (4, 4))


@pytest.mark.parametrize("stem_ln", ["dpn", "pre", "no_learnable"])
def test_brightness_and_contrast_of_patches_vanish(stem_ln):
  """LayerNorm's statistics are each patch's own: nothing else is left."""
  image = np.random.RandomState(0).uniform(-1, 1, IMAGE.shape)
  image[0, :4, :4] *= 0.5
  changed = image.copy()
  changed[0, :4, :4] = 1.7 * image[0, :4, :4] - 0.2
  np.testing.assert_allclose(
    tokens(stem_ln, image=changed), tokens(stem_ln, image=image), atol=1e-4
  )
  plain = tokens("none", image=changed) - tokens("none", image=image)
  assert np.abs(plain[0, 0]).max() > 0.1


@pytest.mark.parametrize(
  ("stem_ln", "kw"),
  [
    ("none", {}),
    ("dpn", {}),
    ("dpn", {"statistics": "mean"}),
    ("dpn", {"per_channel": True}),
  ],
)
def test_statistics_of_patches_as_inputs(stem_ln, kw):
  """One dense layer of LN0's patch and its statistics, in NumPy."""
  model, params = model_and_params(stem_ln)
  model = vit.Model(
    **vit.options(model) | {"stem": "patch_stats", "stem_kw": kw}
  )
  pixels = np.float64(GOLDEN["mid/patches"]).reshape(2, 6, 16, 3)
  axes = 2 if kw.get("per_channel") else (2, 3)
  stats = [
    np.asarray(getattr(pixels, name)(axes)).reshape(2, 6, -1)
    for name in kw.get("statistics", "mean+std").split("+")
  ]
  inputs = sum(x.shape[-1] for x in stats)
  given = np.random.default_rng(0).normal(size=(inputs, 10)).astype(np.float32)
  params = {**params, "patch_stats": {"kernel": given}}
  shapes = jax.eval_shape(model.init, jax.random.key(0), IMAGE)["params"]
  assert shapes["patch_stats"]["kernel"].shape == (inputs, 10)

  def normalize(x, name):
    if stem_ln == "none":
      return x
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(
      x.var(-1, keepdims=True) + 1e-6
    )
    scale, bias = (GOLDEN[f"param/{name}/{k}"] for k in ("scale", "bias"))
    return x * scale + bias

  x = normalize(np.float64(GOLDEN["mid/patches"]), "ln0")
  kernel = np.concatenate([GOLDEN["param/dense/kernel"], given])
  tokens = np.concatenate([x, *stats], -1) @ kernel + GOLDEN["param/dense/bias"]
  want = normalize(tokens, "ln1") + GOLDEN["param/pos_embedding"]
  _, out = model.apply({"params": params}, IMAGE)
  np.testing.assert_allclose(out["with_posemb"], want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("per_channel", [False, True])
def test_the_initial_weight_of_a_patch_s_mean(per_channel):
  """The plain ViT's weight and this are drawn apart: their squares add up."""
  colors = [0.5, -0.3, 0.8] if per_channel else [0.5] * 3
  image = np.tile(np.float32(colors), (1, 4, 4, 1))

  def spread(**kw):
    model = vit.Model(width=4096, depth=0, num_heads=1, patch_size=(4, 4), **kw)
    key = jax.random.key(0)
    embedded = lambda image: model.init_with_output(key, image)[0][1]["stem"]
    return np.std(jax.jit(embedded)(image))

  kw = {"statistics": "mean", "per_channel": per_channel}
  of = lambda kw: spread(stem="patch_stats", stem_kw=kw) / spread()
  assert of({**kw, "init_gain": 1.0}) == pytest.approx(2**0.5, abs=0.04)
  assert of(kw) == pytest.approx(1.5**0.5, abs=0.04)


def test_files_say_only_what_another_function_has():
  """So that those from before there were options are files of the default."""
  model = lambda **kw: vit.Model(
    variant="mu/16", stem_ln="patch_stats", stem_kw=kw
  )
  said = lambda **kw: vit.options(model(**kw))["stem_kw"]
  assert said() == said(statistics="mean+std", init_gain=1.0) == {}
  assert said(statistics="std", init_gain=1.0) == {"statistics": "std"}


@pytest.mark.parametrize(
  ("kw", "message"),
  [
    ({"init_gain": 0.0}, "init_gain must be above 0, got 0.0"),
    ({"statistics": "median"}, "Unknown statistics 'median'"),
  ],
)
def test_statistics_that_there_are_not(kw, message):
  kw = {"stem": "patch_stats", "stem_kw": kw}
  image = np.zeros((1, 16, 16, 3))
  init = lambda key: vit.Model(variant="mu/16", **kw).init(key, image)
  with pytest.raises(ValueError, match=message):
    jax.eval_shape(init, jax.random.key(0))


def test_half_precision_starts_after_the_pixels_are_normalized():
  stem_norms = stem.StemNorms("dpn", dtype=jnp.bfloat16)
  patches = stem.patchify(IMAGE, (4, 4))

  def run(part, x):
    y, variables = stem_norms.init_with_output(
      jax.random.key(0), x, method=part
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {
      np.dtype("float32")
    }
    return y

  assert run("__call__", patches).dtype == jnp.float32
  assert run("post_embed", patches.astype(jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("stem_ln", ["none", "dpn"])
def test_gradients_in_half_precision_of_many_tokens(stem_ln):
  """Of what all tokens share; that of a key's bias is 0 in exact numbers."""
  image = jax.random.normal(jax.random.key(0), (128, 32, 32, 3))

  def grads(dtype_mm, forward=False):
    kw = {"variant": "mu/4", "stem_ln": stem_ln, "dtype_mm": dtype_mm}
    kw |= {"block_ln": "normformer", "layer_scale": 1.0}
    kw |= {"qk_norm": "l2", "logit_scale": "learned", "head_zeroinit": False}
    model = vit.Model(3, **kw, depth=1)
    params = model.init(jax.random.key(1), image[:1])["params"]
    for x in (params["embedding"], *params.get("stem", {}).values()):
      x["bias"] = jax.random.normal(jax.random.key(2), x["bias"].shape)
    loss = lambda params: (model.apply({"params": params}, image)[0] ** 2).sum()
    if forward:
      return jax.jvp(loss, (params,), (params,))[1]
    return trees.flatten(jax.jit(jax.grad(loss))(params))

  along = [grads(dtype, forward=True) for dtype in ("bfloat16", "float32")]
  np.testing.assert_allclose(*along, rtol=0.02)
  got, want = grads("bfloat16"), grads("float32")
  errors = {k: np.linalg.norm(got[k] - x) for k, x in want.items()}
  errors = {k: x / np.linalg.norm(want[k]) for k, x in errors.items()}
  shared = r"embedding/.*|stem/.*|.*((?<!key/)bias|_scale|LayerScale_.)"
  found = {k: x for k, x in errors.items() if re.fullmatch(shared, k)}
  assert max(found.values()) < 0.03, found


def test_norms_of_more_than_one_token_are_refused(monkeypatch):
  monkeypatch.setitem(stem.STEM_LN, "batch", stem.StemLN(ln0="batchnorm"))
  with pytest.raises(
    ValueError, match=r"'batchnorm', whose statistics are not"
  ):
    stem.get_ln("batch")


def test_embedding_is_a_strided_convolution():
  model, params = model_and_params("none")
  conv = nn.Conv(10, (4, 4), strides=(4, 4), padding="VALID")
  want = conv.apply({"params": params["embedding"]}, IMAGE)
  _, out = model.apply({"params": params}, IMAGE)
  np.testing.assert_allclose(out["stem"], want, rtol=1e-5, atol=1e-5)


def test_dual_patchnorm_multiplies_no_more_matrices_in_training():
  def of_gradient(stem_ln):
    model, params = model_and_params(stem_ln)
    embed = lambda p: model.apply({"params": p}, IMAGE)[1]["stem"]
    loss = lambda p: jnp.square(embed(p)).sum()
    return flops.count(jax.grad(loss), params)

  assert of_gradient("dpn") == of_gradient("none") > 0
