"""The model against big_vision's own outputs, published sizes and hand counts.

testdata/big_vision_vit.npz holds big_vision's parameters, outputs and the
gradients of the sum of squared logits; see `OPTIONS`.
"""

import itertools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import errors

from dpn import trees
from dpn.conftest import part, stacked
from dpn.models import vit
from dpn.weights.conftest import BIG_VISION as SIZE
from dpn.weights.conftest import GOLDEN, OPTIONS

IMAGE = GOLDEN["image"]  # (2, 8, 12, 3): 2 x 3 patches


def shapes(model, image_shape=IMAGE.shape):
  """Returns {name: ShapeDtypeStruct} of the parameters, computing nothing."""
  image = jax.ShapeDtypeStruct(image_shape, jnp.float32)
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
    atol = rtol * np.abs(x).max()
    np.testing.assert_allclose(got[name], x, rtol, atol, err_msg=name)


@pytest.mark.parametrize(
  ("kind", "scan", "policy"),
  [
    ("tok", False, "none"),
    ("map", False, "none"),
    ("tok", False, "dots_saveable"),
    ("tok", True, "dots_with_no_batch_dims_saveable"),
  ],
)
def test_outputs_and_gradients_of_big_vision(kind, scan, policy):
  model = vit.Model(5, **OPTIONS[kind], scan=scan, remat_policy=policy)

  def loss(params, model=model):
    params = stacked(params) if scan else params
    logits, out = model.apply({"params": params}, IMAGE)
    return (logits**2).sum(), out

  params = trees.unflatten(part(GOLDEN, f"{kind}/param/"))
  grad = jax.grad(loss, has_aux=True)
  if policy != "none":  # GELU is recomputed: there are more tanh
    plain = vit.Model(5, **OPTIONS[kind], scan=scan)
    text = lambda model: str(
      jax.make_jaxpr(grad, static_argnums=1)(params, model)
    )
    count = lambda model: text(model).count(" tanh ")
    assert count(model) > count(plain)
    # In a loop the compiler would merge them again.
    assert f"prevent_cse={not scan}" in text(model)
  grads, out = jax.jit(grad)(params)
  assert_close(trees.flatten(out), part(GOLDEN, f"{kind}/out/"))
  assert_close(trees.flatten(grads), part(GOLDEN, f"{kind}/grad/"))


def test_attention_pooling_starts_as_blocks_do():
  model = vit.Model(5, **OPTIONS["map"], weight_init="deit")
  params = trees.flatten(model.init(jax.random.key(0), IMAGE)["params"])
  kernels = [x for k, x in params.items() if re.match("MAP.*/kernel", k)]
  assert len(kernels) == 6
  std = np.std(np.concatenate([x.ravel() for x in kernels]))
  assert std == pytest.approx(0.02, rel=0.05)  # DeiT's


def test_half_precision_keeps_parameters_and_logits_in_float32():
  kind = "tok"
  model = vit.Model(5, **OPTIONS[kind], dtype_mm="bfloat16")
  assert {s.dtype for s in shapes(model).values()} == {np.dtype("float32")}
  params = trees.unflatten(part(GOLDEN, f"{kind}/param/"))
  got, out = run(model, params)
  assert out["encoder/block01/+mlp"].dtype == jnp.bfloat16
  assert out["encoded"].dtype == got.dtype == jnp.float32
  want = GOLDEN[f"{kind}/out/logits"]
  assert 1e-4 < np.abs(got - want).max() / np.abs(want).max() < 0.05


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
  model = vit.Model(1000, variant=variant, pool_type="tok", scan=True)
  counts = [s.size for s in shapes(model, (1, 224, 224, 3)).values()]
  assert sum(counts) == total - row


def test_initial_values():
  kw = {**SIZE, "width": 64, "depth": 1, "stem_ln": "dpn"}
  init = jax.jit(vit.Model(5, **kw).init)
  flat = trees.flatten(init(jax.random.key(0), IMAGE)["params"])
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
  init = vit.Model(5, **{**kw, "depth": 0}, head_zeroinit=False).init
  head = jax.jit(init)(jax.random.key(0), IMAGE)["params"]["head"]["kernel"]
  np.testing.assert_allclose(head.std(), 1 / 8, rtol=0.16)


# --- Heads and intermediates


@pytest.mark.parametrize("pool_type", ["gap", "tok", "none"])
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
  want = {"head_input": pooled}
  want["pre_logits"], want["logits"] = head(pooled)
  patches = patches.reshape(2, 2, 3, 16)
  want["pre_logits_2d"], want["logits_2d"] = head(patches)
  assert_close(out, want, rtol=1e-4)


def test_intermediates_have_names_and_shapes():
  model = vit.Model(5, **OPTIONS["tok"])
  variables = {"params": random_params(model)}
  logits, out = jax.eval_shape(model.apply, variables, IMAGE)
  tokens = (2, 7, 16)
  want = {
    "stem": (2, 2, 3, 16),
    "with_posemb": (2, 6, 16),
    **{
      f"encoder/block{i:02d}/{key}": tokens
      for i in range(2)
      for key in ("sa", "+sa", "mlp", "+mlp")
    },
    **{
      f"encoder/block{i:02d}/{key}": (2, 7, 2, 8)
      for i in range(2)
      for key in ("query", "key")
    },
    "encoder/pre_ln": tokens,
    "encoded": tokens,
    "head_input": (2, 16),
    "pre_logits": (2, 16),
    "pre_logits_2d": (2, 2, 3, 16),
    "logits": (2, 5),
    "logits_2d": (2, 2, 3, 5),
  }
  assert {name: x.shape for name, x in trees.flatten(out).items()} == want
  assert logits.shape == (2, 5)


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


def assert_independent(masks):
  """Draws that share their random numbers would be equal or nested."""
  for a, b in itertools.combinations(masks, 2):
    assert (a & ~b).any()
    assert (b & ~a).any()


def test_stochastic_depth_of_one_block():
  model = vit.Model(5, **{**SIZE, "depth": 1}, stoch_depth=0.5)
  out = train(model, 100)
  added = np.asarray(out["encoder/block00/+sa"] - out["with_posemb"])
  assert 30 < added.any(axis=(1, 2)).sum() < 70  # five standard errors: 25


@pytest.mark.parametrize("scan", [False, True])
def test_stochastic_depth(scan):
  """Drops whole examples, at 0, 0.25 and 0.5, and keeps the expectation."""
  n, masks = 400, []
  model = vit.Model(5, **{**SIZE, "depth": 3}, stoch_depth=0.5, scan=scan)
  for i, added, branch in branches(train(model, n)):
    rate = i / 4
    kept = added.any(axis=(1, 2))
    scaled = branch[kept] / (1 - rate)
    np.testing.assert_allclose(added[kept], scaled, atol=1e-4)
    error = 4 * np.sqrt(rate * (1 - rate) / n)
    assert abs(kept.mean() - (1 - rate)) <= error
    masks += [kept] if rate else []
  assert_independent(masks)


def test_dropout():
  """Drops single numbers of each branch and keeps the expectation."""
  model = vit.Model(5, **{**SIZE, "depth": 3}, dropout=0.2, scan=True)
  _, *rest = branches(train(model, 100))  # the input has its own dropout
  masks = []
  for _, added, branch in rest:
    kept = np.abs(added) > 1e-6
    np.testing.assert_allclose(added[kept], branch[kept] / 0.8, atol=1e-4)
    # 100 * 6 * 16 numbers: four standard errors.
    assert abs(kept.mean() - 0.8) < 0.017
    masks.append(kept)
  assert_independent(masks)


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


def test_images_and_sizes_that_do_not_fit():
  with pytest.raises(
    ValueError, match=r"image of uint8, expected floats.*valu"
  ):
    vit.Model(5, **SIZE).init(
      jax.random.key(0), np.zeros((1, 8, 8, 3), np.uint8)
    )
  with pytest.raises(ValueError, match=r"cut into 5x5 patches"):
    shapes(vit.Model(5, **{**SIZE, "patch_size": (5, 5)}))


def test_options_say_which_function_a_model_computes():
  kw = {"norm": "dtn", "norm_kw": {"cls": "layernorm"}, "pool_type": "tok"}
  model = vit.Model(5, variant="mu/8", stem_ln="dpn", dropout=0.1, **kw)
  options = json.loads(json.dumps(vit.options(model)))
  assert options == vit.options(vit.Model(**options))
  assert options["norm_kw"]["cls"] == "layernorm"
  assert options["norm_kw"]["pool_grid"] == 14  # a default, said
  assert "dropout" not in options
  other = vit.options(vit.Model(5, variant="mu/8", stem_ln="dpn"))
  assert {k for k in options if options[k] != other[k]} == {
    *("norm", "norm_kw", "pool_type")
  }


def test_options_of_a_choice_replace_those_of_the_variant():
  kw = lambda **options: vit.Model(variant="lite-7/4", **options).config.norm_kw
  assert kw() == {"eps": 1e-5}
  assert kw(norm="layernorm", norm_kw={"eps": 0.1}) == {"eps": 0.1}
  assert kw(norm="dtn", norm_kw={}) == {}
