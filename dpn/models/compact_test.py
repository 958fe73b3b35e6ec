"""The compact models' sizes, grids and weights."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpn.models import compact, vit
from dpn.weights import positions


def params_of(variant, **kw):
  model = vit.Model(10, variant=variant, **kw)
  image = jnp.zeros((1, 32, 32, 3))
  return jax.eval_shape(model.init, jax.random.key(0), image)["params"]


def count(tree):
  return sum(leaf.size for leaf in jax.tree.leaves(tree))


# Per block: qkv without bias, projection, MLP and two norms.
BLOCK = 3 * 256**2 + 256**2 + 256 + 2 * 256 * 512 + 512 + 256 + 4 * 256
ENDS = 2 * 256 + 2570  # final norm, head


@pytest.mark.parametrize(
  ("variant", "stem", "published"),
  [
    ("lite-7/4", 48 * 256 + 256 + 65 * 256 + 256, 3.72e6),
    ("cvt-7/4", 48 * 256 + 256 + 64 * 256 + 257, 3.72e6),
    ("cct-7/3x1", 27 * 256 + 256 * 256 + 257, 3.76e6),
  ],
)
def test_parameters(variant, stem, published):
  total = count(params_of(variant))
  assert total == 7 * BLOCK + ENDS + stem
  assert abs(total - published) < 0.005e6


def test_convolutional_stem_halves_the_grid_each_time():
  assert params_of("cct-7/3x1")["pos_embedding"].shape == (1, 256, 256)
  two = params_of("cct-7/3x2")
  assert two["pos_embedding"].shape == (1, 64, 256)
  assert two["embedding"]["Conv_0"]["kernel"].shape == (3, 3, 3, 64)
  assert two["embedding"]["Conv_1"]["kernel"].shape == (3, 3, 64, 256)
  for word in ("patch_stats", "tract"):  # and not patches of a default size
    with pytest.raises(ValueError, match=f"no patch_size, as stem='{word}'"):
      vit.Model(10, variant="cct-7/3x1", stem_ln=word)
    vit.Model(10, variant="cvt-7/4", stem_ln=word)


@pytest.mark.parametrize("shape", [(2, 8, 6, 3), (2, 7, 9, 3), (1, 1, 2, 1)])
def test_halving_twice_is_max_pooling(shape):
  """And has its gradient, by XLA's reduce_window and select_and_scatter."""
  rng = np.random.RandomState(0)
  x = np.abs(rng.normal(size=shape)).astype("float32")
  pad = ((1, 1), (1, 1))
  pool = lambda x: nn.max_pool(x, (3, 3), (2, 2), padding=pad)
  ours = lambda x: compact.halve(compact.halve(x, axis=1), axis=2)
  got, want = (jax.vjp(f, x) for f in (ours, pool))
  np.testing.assert_array_equal(got[0], want[0])
  dy = rng.normal(size=want[0].shape).astype("float32")
  np.testing.assert_allclose(*(f(dy)[0] for _, f in (got, want)), atol=1e-6)


def test_convolutional_stem():
  config = vit.Model(width=1, depth=0, num_heads=1).config
  conv = compact.ConvEmbedding(config, kernel_size=3, num_layers=1)
  image = np.random.RandomState(0).randn(1, 4, 4, 1).astype("float32")
  kernel = np.zeros((3, 3, 1, 1), "float32")
  kernel[1, 1] = 2
  params = {"Conv_0": {"kernel": kernel}}
  got = conv.apply({"params": params}, image)[0, :, :, 0]
  x = np.pad(np.maximum(2 * image[0, :, :, 0], 0), 1)
  want = [[x[r : r + 3, c : c + 3].max() for c in (0, 2)] for r in (0, 2)]
  np.testing.assert_allclose(got, want)


@pytest.mark.parametrize(
  ("name", "side", "tokens"),  # of src/cct.py in SHI-Labs/Compact-Transformers
  [("cct-7/3x1", 32, 256), ("cct-7/3x2", 32, 64), ("cct-7/7x2", 224, 196)],
)
def test_tokens_of_the_authors_models(name, side, tokens):
  model = vit.Model(10, variant=name, depth=1)
  image = jax.ShapeDtypeStruct((1, side, side, 3), "float32")
  params = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  assert params["pos_embedding"].shape == (1, tokens, 256)
  options = vit.options(model)
  rows, cols = positions.in_patches(
    (side, side), positions.token_pixels(options), "conv"
  )
  assert rows * cols == tokens


def test_convolutions_have_odd_sides():
  with pytest.raises(ValueError, match="odd sides, got 4"):
    jax.eval_shape(
      vit.Model(10, variant="cct-7/4x1").init,
      jax.random.key(0),
      jax.ShapeDtypeStruct((1, 32, 32, 3), "float32"),
    )


def test_sequence_pool():
  x = np.random.RandomState(0).randn(2, 3, 4)
  kernel = np.arange(4.0)[:, None]
  score = np.exp(x @ kernel)
  want = (score / score.sum(1, keepdims=True) * x).sum(1)
  params = {"score": {"kernel": kernel, "bias": np.ones(1)}}
  got = compact.SequencePool().apply(
    {"params": params}, jnp.asarray(x, "float32")
  )
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_learned_positions_start_wide():
  model = vit.Model(10, variant="cvt-7/4", depth=1)
  image = jnp.zeros((1, 32, 32, 3))
  params = jax.jit(model.init)(jax.random.key(0), image)["params"]
  np.testing.assert_allclose(params["pos_embedding"].std(), 0.2, rtol=0.03)
  np.testing.assert_allclose(params["head"]["kernel"].std(), 0.02, rtol=0.1)
