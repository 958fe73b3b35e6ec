"""The model against big_vision's own outputs, published sizes and hand counts.

testdata/big_vision_vit.npz holds big_vision's parameters, outputs and the
gradients of the sum of squared logits; see `OPTIONS`.
"""

import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import errors

from dpn import trees
from dpn.models import stem, vit

GOLDEN = dict(
  np.load(pathlib.Path(__file__).parent / "testdata/big_vision_vit.npz")
)
IMAGE = GOLDEN["image"]  # (2, 8, 12, 3): 2 x 3 patches
SIZE = {
  "width": 16,
  "depth": 2,
  "mlp_dim": 24,
  "num_heads": 2,
  "patch_size": (4, 4),
}
OPTIONS = {
  "tok": {**SIZE, "pool_type": "tok", "rep_size": True},
  "map": {**SIZE, "pool_type": "map"},
}


def golden(start):
  return {k[len(start) :]: v for k, v in GOLDEN.items() if k.startswith(start)}


def shapes(model, image_px=None):
  """Returns {name: ShapeDtypeStruct} of the parameters, computing nothing."""
  shape = (1, image_px, image_px, 3) if image_px else IMAGE.shape
  image = jax.ShapeDtypeStruct(shape, jnp.float32)
  init = jax.eval_shape(model.init, jax.random.key(0), image)
  return trees.flatten(init["params"])


def random_params(model):
  """Returns parameters far from their initial values."""
  rng = np.random.RandomState(0)
  return trees.unflatten(
    {
      name: (rng.randn(*s.shape) * 0.3 + name.endswith("scale")).astype("f")
      for name, s in shapes(model).items()
    }
  )


def run(model, params, image=IMAGE, **kw):
  """Returns the logits, and the intermediates by name."""
  apply = jax.jit(lambda p, x: model.apply({"params": p}, x, **kw))
  logits, out = apply(params, image)
  return logits, trees.flatten(out)


def assert_close(got, want, rtol=1e-5):
  assert want
  for name, x in want.items():
    # A key's bias moves all scores alike: its true gradient is zero.
    atol = max(rtol * np.abs(x).max(), 1e-6)
    np.testing.assert_allclose(got[name], x, rtol, atol, err_msg=name)


@pytest.mark.parametrize("kind", OPTIONS)
def test_outputs_and_gradients_of_big_vision(kind):
  model = vit.Model(5, **OPTIONS[kind])
  params = trees.unflatten(golden(f"{kind}/param/"))

  def loss(params):
    logits, out = model.apply({"params": params}, IMAGE)
    return (logits**2).sum(), out

  grads, out = jax.jit(jax.grad(loss, has_aux=True))(params)
  assert_close(trees.flatten(out), golden(f"{kind}/out/"))
  assert_close(trees.flatten(grads), golden(f"{kind}/grad/"))


# --- Parameters


def test_parameter_names():
  """Configs, checkpoints and exports depend on these."""
  block = "Transformer/encoderblock_0/"
  dense = lambda *names: [f"{n}/{p}" for n in names for p in ("bias", "kernel")]
  norm = lambda *names: [f"{n}/{p}" for n in names for p in ("bias", "scale")]
  mlp = [f"MlpBlock_0/Dense_{i}" for i in range(2)]
  attention = [
    f"MultiHeadDotProductAttention_0/{x}"
    for x in ("query", "key", "value", "out")
  ]
  plain = {
    "cls",
    "pos_embedding",
    *dense("embedding", "head", *(block + x for x in attention + mlp)),
    *norm("Transformer/encoder_norm", block + "LayerNorm_0"),
    *norm(block + "LayerNorm_1"),
  }
  kw = {**SIZE, "depth": 1}
  assert shapes(vit.Model(5, pool_type="tok", **kw)).keys() == plain
  dpn = vit.Model(5, pool_type="tok", stem_ln="dpn", **kw)
  assert shapes(dpn).keys() == plain | {*norm("stem/ln0", "stem/ln1")}
  big = vit.Model(5, pool_type="map", rep_size=True, **kw)
  pool = [f"MAPHead_0/{x}" for x in attention + mlp]
  assert shapes(big).keys() == plain - {"cls"} | {
    *dense("pre_logits", *pool),
    *norm("MAPHead_0/LayerNorm_0"),
    "MAPHead_0/probe",
  }


def count(variant, image_px=224, **kw):
  model = vit.Model(1000, variant=variant, **kw)
  return sum(s.size for s in shapes(model, image_px).values())


# Of arXiv 2010.11929's code, whose position embeddings have one row more, for
# the class token.
PUBLISHED = {
  "Ti/16": (5_717_416, 192),
  "B/16": (86_567_656, 768),
  "B/32": (88_224_232, 768),
  "L/16": (304_326_632, 1024),
  "H/14": (632_045_800, 1280),
}


@pytest.mark.parametrize("variant", PUBLISHED)
def test_published_counts(variant):
  total, row = PUBLISHED[variant]
  assert count(variant, pool_type="tok", scan=True) == total - row


def test_scan_keeps_the_count():
  assert count("Ti/16") == count("Ti/16", scan=True)


@pytest.mark.parametrize(
  ("variant", "overhead"),
  [
    ("Ti/16", 1920),
    ("S/16", 2304),
    ("B/16", 3072),
    ("S/32", 6912),
    ("B/32", 7680),
  ],
)
def test_overhead_of_dual_patchnorm(variant, overhead):
  plain = count(variant, scan=True)
  assert count(variant, scan=True, stem_ln="dpn") - plain == overhead


# Vectors of one number per pixel and channel, and of one per channel of width.
STEM_VECTORS = {
  "none": (0, 0),
  "dpn": (2, 2),
  "pre": (2, 0),
  "post": (0, 2),
  "post_posemb": (0, 2),
  "only_learnable": (2, 2),
  "rmsnorm": (1, 1),
  "no_learnable": (0, 0),
}


@pytest.mark.parametrize("size", vit.VARIANTS)
def test_count_formula(size):
  assert STEM_VECTORS.keys() == stem.STEM_LN.keys()
  d, depth, mlp, _ = vit.VARIANTS[size]
  pixels, tokens = 14 * 14 * 3, 16 * 16
  block = 4 * (d * d + d) + (2 * d * mlp + mlp + d) + 4 * d
  rest = (pixels * d + d) + tokens * d + 2 * d + (d * 1000 + 1000)
  for stem_ln, (by_pixel, by_width) in STEM_VECTORS.items():
    want = depth * block + rest + by_pixel * pixels + by_width * d
    assert count(f"{size}/14", scan=True, stem_ln=stem_ln) == want


def test_initial_values():
  kw = {**SIZE, "width": 64, "depth": 1, "stem_ln": "dpn"}
  model = vit.Model(5, **kw)
  flat = trees.flatten(model.init(jax.random.key(0), IMAGE)["params"])
  block = "Transformer/encoderblock_0/"
  xavier = lambda *fans: np.sqrt(2 / sum(fans))
  std = {
    "embedding/kernel": 48**-0.5,
    "pos_embedding": 64**-0.5,
    block + "MultiHeadDotProductAttention_0/query/kernel": xavier(64, 64),
    block + "MultiHeadDotProductAttention_0/out/kernel": xavier(64, 64),
    block + "MlpBlock_0/Dense_0/kernel": xavier(64, 24),
    block + "MlpBlock_0/Dense_0/bias": 1e-6,
    block + "MlpBlock_0/Dense_1/bias": 1e-6,
  }
  for name, x in flat.items():
    if name in std:  # four standard errors
      np.testing.assert_allclose(
        x.std(), std[name], rtol=4 / (2 * x.size) ** 0.5
      )
    elif name.endswith("scale"):
      np.testing.assert_array_equal(x, 1)
    elif name.endswith("bias") or name == "head/kernel":
      np.testing.assert_array_equal(x, 0)
  model = vit.Model(5, **{**kw, "depth": 0}, head_zeroinit=False)
  head = model.init(jax.random.key(0), IMAGE)["params"]["head"]["kernel"]
  np.testing.assert_allclose(head.std(), 1 / 8, rtol=0.16)


# --- Heads and intermediates


@pytest.mark.parametrize("pool_type", ["gap", "tok", "0", "none"])
def test_pooling_and_head(pool_type):
  model = vit.Model(5, **SIZE, pool_type=pool_type, rep_size=7)
  params = random_params(model)
  _, out = run(model, params)
  x = np.asarray(out["encoded"])

  def head(x):
    hidden, last = params["pre_logits"], params["head"]
    x = np.tanh(x @ hidden["kernel"] + hidden["bias"])
    return x, x @ last["kernel"] + last["bias"]

  pooled = {"gap": x.mean(1), "none": x}.get(pool_type, x[:, 0])
  patches = x[:, 1:] if pool_type == "tok" else x
  pre_logits, logits = head(pooled)
  pre_logits_2d, logits_2d = head(patches.reshape(2, 2, 3, 16))
  want = {
    "head_input": pooled,
    "pre_logits": pre_logits,
    "logits": logits,
    "pre_logits_2d": pre_logits_2d,
    "logits_2d": logits_2d,
  }
  assert_close(out, want, rtol=1e-4)


def test_class_token_goes_first_and_has_no_position():
  model = vit.Model(5, **{**SIZE, "depth": 0}, pool_type="tok")
  params = random_params(model)
  _, out = run(model, params)
  want = np.tile(params["cls"], (2, 1, 1))
  np.testing.assert_array_equal(out["encoder/pre_ln"][:, :1], want)
  np.testing.assert_array_equal(
    out["encoder/pre_ln"][:, 1:], out["with_posemb"]
  )


def test_without_head():
  model = vit.Model(**SIZE)
  representation, out = run(model, random_params(model))
  np.testing.assert_array_equal(representation, out["pre_logits"])
  assert "logits" not in out


def test_intermediates_have_names_and_shapes():
  model = vit.Model(5, **OPTIONS["tok"])
  logits, out = run(model, random_params(model))
  tokens = (2, 7, 16)
  want = {
    "stem": (2, 2, 3, 16),
    "with_posemb": (2, 6, 16),
    **{
      f"encoder/block{i:02d}/{key}": tokens
      for i in range(2)
      for key in ("sa", "+sa", "mlp", "+mlp")
    },
    "encoder/pre_ln": tokens,
    "encoded": tokens,
    "head_input": (2, 16),
    "pre_logits": (2, 16),
    "pre_logits_2d": (2, 2, 3, 16),
    "logits": (2, 5),
    "logits_2d": (2, 2, 3, 5),
  }
  assert {name: x.shape for name, x in out.items()} == want
  np.testing.assert_array_equal(out["logits"], logits)


# --- Ways to run the encoder


def stacked(params):
  """Returns looped parameters in the layout of scanned blocks."""
  encoder = dict(params["Transformer"])
  blocks = [encoder.pop(f"encoderblock_{i}") for i in range(2)]
  encoder["encoderblock"] = jax.tree.map(lambda *x: np.stack(x), *blocks)
  return {**params, "Transformer": encoder}


def test_scan_gives_what_the_loop_gives():
  loop = vit.Model(5, **OPTIONS["tok"])
  params = random_params(loop)
  _, want = run(loop, params)
  _, got = run(vit.Model(5, **OPTIONS["tok"], scan=True), stacked(params))
  assert got.keys() == want.keys()
  assert_close(got, want)


REMAT = {
  False: ["dots_saveable", "everything_saveable"],
  True: ["nothing_saveable", "dots_with_no_batch_dims_saveable"],
}


@pytest.mark.parametrize("scan", REMAT)
def test_remat_changes_neither_values_nor_gradients(scan):
  kw = {**SIZE, "depth": 1, "scan": scan, "dropout": 0.5}

  def loss(params, model):
    rngs = {"dropout": jax.random.key(1)}
    logits, _ = model.apply({"params": params}, IMAGE, train=True, rngs=rngs)
    return (logits**2).sum()

  def differentiate(model):
    f = jax.value_and_grad(lambda params: loss(params, model))
    assert ("remat" in str(jax.make_jaxpr(f)(params))) == (model is not plain)
    value, grads = jax.jit(f)(params)
    return {"loss": value, **trees.flatten(grads)}

  plain = vit.Model(5, **kw)
  params = random_params(plain)
  want = differentiate(plain)
  for policy in REMAT[scan]:
    assert_close(differentiate(vit.Model(5, **kw, remat_policy=policy)), want)


@pytest.mark.parametrize("kind", OPTIONS)
def test_half_precision_keeps_parameters_and_logits_in_float32(kind):
  model = vit.Model(5, **OPTIONS[kind], dtype_mm="bfloat16")
  assert {s.dtype for s in shapes(model).values()} == {np.dtype("float32")}
  params = trees.unflatten(golden(f"{kind}/param/"))
  got, out = run(model, params)
  assert out["encoder/block01/+mlp"].dtype == jnp.bfloat16
  assert out["encoded"].dtype == got.dtype == jnp.float32
  want = GOLDEN[f"{kind}/out/logits"]
  assert 1e-4 < np.abs(got - want).max() / np.abs(want).max() < 0.05


# --- Dropout and stochastic depth


def branches(out):
  """Yields (block, after - before, branch) for every residual sum in `out`."""
  x = out["with_posemb"]
  for i in range(3):
    for name in ("sa", "mlp"):
      after = out[f"encoder/block{i:02d}/+{name}"]
      yield i, np.asarray(after - x), out[f"encoder/block{i:02d}/{name}"]
      x = after


def train(model, num_examples):
  image = np.random.RandomState(0).randn(num_examples, 8, 12, 3).astype("f")
  rngs = {"dropout": jax.random.key(0)}
  return run(model, random_params(model), image, train=True, rngs=rngs)[1]


@pytest.mark.parametrize("scan", [False, True])
def test_stochastic_depth(scan):
  """Drops whole examples, at 0, 0.25 and 0.5, and keeps the expectation."""
  n, seen = 400, []
  model = vit.Model(5, **{**SIZE, "depth": 3}, stoch_depth=0.5, scan=scan)
  for i, added, branch in branches(train(model, n)):
    rate = i / 4
    kept = added.any(axis=(1, 2))
    scaled = branch[kept] / (1 - rate)
    np.testing.assert_allclose(added[kept], scaled, atol=1e-4)
    error = 4 * np.sqrt(rate * (1 - rate) / n)
    assert abs(kept.mean() - (1 - rate)) <= error
    if rate:
      assert not any(np.array_equal(kept, other) for other in seen)
      seen.append(kept)


def test_dropout():
  """Drops single numbers of each branch and keeps the expectation."""
  model = vit.Model(5, **{**SIZE, "depth": 3}, dropout=0.2)
  _, *rest = branches(train(model, 100))  # the input has its own dropout
  for _, added, branch in rest:
    kept = np.abs(added) > 1e-6
    np.testing.assert_allclose(added[kept], branch[kept] / 0.8, atol=1e-4)
    # 100 * 6 * 16 numbers: four standard errors.
    assert abs(kept.mean() - 0.8) < 0.017


def test_evaluation_is_deterministic_and_training_needs_a_generator():
  plain = vit.Model(5, **SIZE)
  params = random_params(plain)
  want, _ = run(plain, params)
  both = vit.Model(5, **SIZE, dropout=0.5, stoch_depth=0.5)
  np.testing.assert_array_equal(run(both, params)[0], want)
  np.testing.assert_array_equal(run(plain, params, train=True)[0], want)
  for option in ("dropout", "stoch_depth"):
    with pytest.raises(errors.InvalidRngError, match="dropout"):
      run(vit.Model(5, **SIZE, **{option: 0.5}), params, train=True)


# --- Construction


def test_variants_and_options():
  model = vit.Model(variant="S/32", depth=2, patch_size=[4, 8])
  assert (model.width, model.mlp_dim, model.num_heads) == (384, 1536, 6)
  assert (model.depth, model.patch_size) == (2, (4, 8))
  assert vit.decode_variant("S/32")["patch_size"] == (32, 32)
  assert "patch_size" not in vit.decode_variant("S")
  hash(model)  # Linen's requirement


@pytest.mark.parametrize(
  ("kw", "message"),
  [
    ({"variant": "Tj/16"}, r"variant 'Tj'\. Did you mean 'Ti'\?"),
    ({"variant": "B/x"}, r"'B/x' must be a positive whole number"),
    ({"variant": "B/0"}, r"'B/0' must be a positive whole number"),
    ({"widht": 3}, r"model option 'widht'\. Did you mean 'width'\?"),
    ({"pool_type": "tokk"}, r"pool_type 'tokk'\. Did you mean 'tok'\?"),
    ({"posemb": "lern"}, r"posemb 'lern'\. Did you mean 'learn'\?"),
    ({"stem_ln": "dpm"}, r"stem_ln 'dpm'\. Did you mean 'dpn'\?"),
    ({"remat_policy": "dots"}, r"remat_policy 'dots'.*Known: dots_saveable"),
  ],
)
def test_wrong_options_are_named(kw, message):
  with pytest.raises(ValueError, match=message):
    vit.Model(5, **kw)


def test_sizes_that_do_not_divide():
  with pytest.raises(ValueError, match=r"cut into 5x5 patches"):
    shapes(vit.Model(5, **{**SIZE, "patch_size": (5, 5)}))
  with pytest.raises(ValueError, match=r"width=16 and num_heads=3"):
    shapes(vit.Model(5, **{**SIZE, "num_heads": 3}))


def test_import_is_light():
  code = (
    "import sys, dpn.models.vit; "
    "print({'tensorflow', 'torch', 'cv2', 'tensorflow_datasets'} "
    "& sys.modules.keys())"
  )
  done = subprocess.run(
    [sys.executable, "-c", code],
    cwd=pathlib.Path(__file__).parents[2],
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout == "set()\n"
