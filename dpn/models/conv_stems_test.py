"""Convolutional stems against their authors' code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn import trees
from dpn.models import conv_stems, stem, vit

HMLP = {0: "Conv_0", 1: "BatchNorm_0", 3: "Conv_1", 4: "BatchNorm_1"}
HMLP |= {6: "Conv_2", 7: "BatchNorm_2"}
# The authors' modules → ours.
MODULES = {
  "hmlp_stem": {f"proj.{i}": name for i, name in HMLP.items()},
  "vit_c": {
    **{"cstem0_conv": "Conv_0", "cstem0_bn": "BatchNorm_0"},
    **{"cstem1_conv": "Conv_1", "cstem1_bn": "BatchNorm_1"},
    "cstem_last_conv": "Conv_2",
  },
}
STEMS = {
  "hmlp_stem": (conv_stems.HMlp, {"width": 16, "side": 16}),
  "vit_c": (conv_stems.Conv3x3, {"width": 16, "side": 4}),
}


def ours(vectors, group, prefix):
  """Returns the arrays of a group by our names, in our shapes."""
  start, result = f"{group}/{prefix}/", {}
  for name, x in vectors.items():
    if name.startswith(start) and "." in name:
      module, _, leaf = name.removeprefix(start).rpartition(".")
      ours = MODULES[group][module]
      if leaf == "weight":
        leaf = "kernel" if x.ndim == 4 else "scale"
      x = x.transpose(2, 3, 1, 0) if x.ndim == 4 else x
      result[f"{ours}/{leaf.removeprefix('running_')}"] = x
  return trees.unflatten(result)


@pytest.mark.parametrize("group", STEMS)
def test_released_code(group, golden, precision):
  vectors = golden("conv_stems")
  make, kw = STEMS[group]
  model = make(**kw, dtype=precision.dtype)
  params = precision.cast(ours(vectors, group, "param"))
  image = precision.cast(vectors[f"{group}/in/x_nchw"].transpose(0, 2, 3, 1))
  cotangent = vectors.get(f"{group}/train/in/cotangent")
  if cotangent is None:
    cotangent = vectors[f"{group}/in/cotangent"]
  fresh = jax.eval_shape(model.init, jax.random.key(0), image)["batch_stats"]
  fresh = jax.tree_util.tree_map_with_path(
    lambda path, s: jnp.full(s.shape, float("var" in str(path)), s.dtype), fresh
  )

  @jax.jit
  def run(params, stats, image, cotangent):
    def train(params, image):
      variables = {"params": params, "batch_stats": stats}
      y, new = model.apply(variables, image, True, mutable=["batch_stats"])
      return y.reshape(*cotangent.shape), new["batch_stats"]

    y, vjp, new = jax.vjp(train, params, image, has_aux=True)
    after = model.apply({"params": params, "batch_stats": new}, image)
    return y, vjp(cotangent), new, after.reshape(y.shape)

  y, (d_params, d_image), new, after = run(
    params, precision.cast(fresh), image, precision.cast(cotangent)
  )
  precision.assert_close(y, vectors[f"{group}/train/out/y"])
  want = vectors[f"{group}/train/grad/x"].transpose(0, 2, 3, 1)
  precision.assert_close(d_image, want)
  wanted = ours(vectors, group, "train/grad")
  jax.tree.map(precision.assert_close, d_params, wanted)
  jax.tree.map(precision.assert_close, new, ours(vectors, group, "train/state"))
  precision.assert_close(after, vectors[f"{group}/eval/y"])


def _models(kind, **kw):
  options = {"width": 16, "depth": 0, "num_heads": 1, "patch_size": (8, 8)}
  return vit.Model(3, **options, stem=kind, **kw)


@pytest.mark.parametrize("kind", ["hmlp", "vit_c"])
def test_dual_patch_norm_around_it(kind):
  """LN0 of each patch of 8 x 8 pixels, LN1 of each token."""
  image = np.random.RandomState(0).uniform(-1, 1, (2, 16, 24, 3)).astype("f")
  dpn, plain = _models(kind, stem_ln="dpn"), _models(kind)
  variables = dpn.init(jax.random.key(0), image)
  assert variables["params"]["stem"]["ln0"]["scale"].shape == (8 * 8 * 3,)
  _, out = dpn.apply(variables, image)

  patches = image.reshape(2, 2, 8, 3, 8, 3)
  axes = {"axis": (2, 4, 5), "keepdims": True}
  normal = (patches - patches.mean(**axes)) / patches.std(**axes)
  params = {k: v for k, v in variables["params"].items() if k != "stem"}
  inner = {"params": params, "batch_stats": variables["batch_stats"]}
  _, inside = plain.apply(inner, normal.reshape(image.shape))
  y = np.asarray(inside["stem"])
  y = (y - y.mean(-1, keepdims=True)) / y.std(-1, keepdims=True)
  np.testing.assert_allclose(out["stem"], y, rtol=1e-3, atol=1e-3)


def test_patches_do_not_mix():
  """In a hierarchical MLP, unlike in convolutions that overlap."""
  image = np.random.RandomState(0).uniform(-1, 1, (1, 16, 24, 3)).astype("f")
  other = image.copy()
  other[:, :8, 8:16] = 0  # the second of six patches
  for kind in ("hmlp", "vit_c"):
    model = _models(kind)
    variables = model.init(jax.random.key(0), image)
    x, y = (model.apply(variables, i)[1]["stem"] for i in (image, other))
    difference = np.abs(np.asarray(x - y)).reshape(6, 16).max(-1)
    found = list(np.flatnonzero(difference))
    assert (found == [1]) == (kind == "hmlp")
    _, new = model.apply(variables, image, train=True, mutable=["batch_stats"])
    mean = new["batch_stats"]["embedding"]["BatchNorm_1"]["mean"]
    assert np.abs(mean).max() > 0


def test_the_last_bias_in_half_precision_of_many_tokens():
  """bfloat16 sums of thousands of ones stall at 256."""
  image = jax.random.normal(jax.random.key(0), (32, 56, 56, 3))

  def grad(dtype):
    model = conv_stems.Conv3x3(16, 4, dtype)
    variables = model.init(jax.random.key(1), image[:1])
    apply = lambda params: model.apply({**variables, "params": params}, image)
    grads = jax.grad(lambda x: apply(x).sum(dtype=jnp.float32))
    return grads(variables["params"])["Conv_2"]["bias"]

  np.testing.assert_allclose(grad(jnp.bfloat16), grad(jnp.float32), rtol=1e-3)


def test_whitened_patches():
  image = np.random.RandomState(0).uniform(-1, 1, (16, 32, 32, 3)).astype("f")
  model = _models("hmlp", stem_ln="whiten")
  state = model.init(jax.random.key(0), image)
  fitted = stem.fit(
    model.config, {"batch_stats": state["batch_stats"]}, [image]
  )
  stats = fitted["batch_stats"]
  assert "BatchNorm_2" in stats["embedding"]
  assert stats["stem"]["whiten"]["matrix"].shape == (192, 192)
  assert np.abs(stats["stem"]["whiten"]["matrix"] - np.eye(192)).max() > 0.1


def test_initial_kernels():
  """Released: the deviation of He's initialization, without the 9 pixels."""
  shape, key = (3, 3, 32, 64), jax.random.key(0)
  for kernels, want in (
    ("released", (2 / 64) ** 0.5),
    ("he", (2 / 288) ** 0.5),
  ):
    got = np.std(conv_stems.KERNELS[kernels][0](key, shape))
    np.testing.assert_allclose(got, want, rtol=0.02)
