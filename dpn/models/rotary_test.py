"""Rotary positions against timm's attention and blocks."""

import functools

import jax
import numpy as np
import pytest

from dpn.models import attention, rotary, vit
from dpn.models import conftest as torch_params
from dpn.models.norms import base

# Variants in testdata/recent.npz, of two heads and 2 x 3 patches.
ROPES = {
  "eva": ("axial", {}),
  "half_xy": ("axial", {"base": 100.0, "pairs": "halves", "first": "col"}),
  "resized": ("axial", {"native_side": 4}),
  "dinov3": (
    "axial",
    {"base": 100.0, "pairs": "halves", "coordinates": "centred"},
  ),
  "mixed": ("mixed", {}),
}
SMALL = {"width": 16, "depth": 2, "num_heads": 2, "patch_size": (4, 4)}
IMAGE = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype(np.float32)


@pytest.mark.parametrize("name", ROPES)
def test_timm(name, golden, precision):
  """A class token, which is not turned, and six patches."""
  if name == "resized" and precision.dtype == "float64":
    precision.tolerance = {"rtol": 1e-5, "atol": 1e-6}  # a grid in float32
  kind, kw = ROPES[name]
  tokens = base.TokenGrid(2, (2, 3), cls=True)
  turn = functools.partial(rotary.ROPES[kind], **kw)
  rope = lambda module, d: turn(module, tokens, d)
  model = attention.Attention(2, rope=rope, dtype=precision.dtype)

  def run(get, x):
    params = torch_params.attention(get, "proj", "qkv", heads=2)
    if name == "mixed":
      params["rope_freqs"] = get("freqs")
    return model.apply({"params": params}, x, x)

  precision.check(golden("recent"), f"rope/{name}", run)


def test_only_differences_count():
  """The logits of two patches depend on how far apart they are."""
  tokens = base.TokenGrid(1, (4, 5))
  for kw in ({}, {"pairs": "axes"}, {"coordinates": "centred"}):
    angles, pairs = rotary.axial(None, tokens, 8, **kw)
    q, k = np.random.RandomState(0).normal(size=(2, 1, 1, 1, 8))
    q, k = (
      rotary.rotate(x.repeat(20, axis=1).astype("f"), angles, pairs)
      for x in (q, k)
    )
    logits = np.einsum("bqhd,bkhd->qk", q, k).reshape(4, 5, 4, 5)
    np.testing.assert_allclose(
      logits[:3, :4, :3, :4], logits[1:, 1:, 1:, 1:], rtol=1e-3, atol=1e-4
    )
    assert np.std(logits[0, 0]) > 0.1


def test_mixed_frequencies_start_in_random_directions():
  image = np.zeros((1, 8, 12, 3), np.float32)
  model = vit.Model(3, **SMALL, rope="mixed", scan=True, posemb="none")
  params = model.init(jax.random.key(0), image)["params"]
  block = params["Transformer"]["encoderblock"]
  freqs = block["MultiHeadDotProductAttention_0"]["rope_freqs"]
  assert freqs.shape == (2, 2, 2, 4)  # (depth, axes, heads, d / 2)
  sizes = np.linalg.norm(freqs, axis=1)
  want = np.tile([1, 10**-0.5], 2)
  np.testing.assert_allclose(
    sizes, np.broadcast_to(want, sizes.shape), rtol=1e-5
  )
  assert len(np.unique(np.round(freqs[:, 0, :, 0], 4))) == 4


def test_positions_by_rotation_alone():
  """Without any positions, patches in another order give the same logits."""
  swapped = np.concatenate([IMAGE[:, 4:], IMAGE[:, :4]], axis=1)
  for rope, same in (("none", True), ("axial", False)):
    model = vit.Model(
      *(3,), **SMALL, rope=rope, posemb="none", head_zeroinit=False
    )
    params = model.init(jax.random.key(0), IMAGE)
    x, y = (model.apply(params, i)[0] for i in (IMAGE, swapped))
    assert np.allclose(x, y, rtol=1e-4, atol=1e-5) == same


def test_registers_and_class_token_around():
  """Where they are makes no difference, with the register's own rotation."""
  for kw in ({}, {"register_base": 100.0}):
    logits = []
    for last in (False, True):
      model = vit.Model(
        3,
        **{**SMALL, "registers": 4, "registers_last": last, "rope": "axial"},
        **{"rope_kw": kw, "pool_type": "tok", "head_zeroinit": False},
        weight_init="deit",
      )
      params = model.init(jax.random.key(0), IMAGE)
      logits.append(model.apply(params, IMAGE, attention_maps=True)[0])
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-6)


def test_registers_that_are_no_square():
  model = vit.Model(
    3, **SMALL, rope="axial", rope_kw={"register_base": 10.0}, registers=3
  )
  with pytest.raises(ValueError, match="square grid of the registers"):
    jax.eval_shape(model.init, jax.random.key(0), IMAGE)
