"""Two towers against arrays that big_vision's own code computed."""

import pathlib

import jax
import numpy as np
import pytest

from dpn import losses, trees
from dpn.conftest import part
from dpn.models import text, two_towers, vit

GOLDEN = np.load(
  pathlib.Path(__file__).parent.parent / "testdata/big_vision_two_towers.npz"
)
IMAGE = {
  **{"width": 8, "depth": 1, "mlp_dim": 12, "num_heads": 2},
  "patch_size": (4, 4),
}
TEXT = {
  **{"width": 12, "depth": 2, "mlp_dim": 16, "num_heads": 2},
  "vocab_size": 13,
}
LIT = {
  "image": {**IMAGE, "pool_type": "tok"},
  "text": TEXT,
  "out_dim": (None, 8),
  "temperature_init": 10.0,
}
SIGLIP = {
  "image": {**IMAGE, "pool_type": "map"},
  "text": {**TEXT, "pool_type": "map"},
  "text_model": "proj.image_text.text_transformer",
  "out_dim": 6,
  "temperature_init": 10.0,
  "bias_init": -2.71,
}
INPUTS = GOLDEN["image"], GOLDEN["text"]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def _params(name):
  return {"params": trees.unflatten(part(GOLDEN, f"{name}/params/"))}


@pytest.mark.parametrize(("name", "kw"), [("lit", LIT), ("siglip", SIGLIP)])
def test_equals_big_vision(name, kw):
  model, params = two_towers.Model(**kw), _params(name)
  fresh = jax.eval_shape(model.init, jax.random.key(0), *INPUTS)
  shapes = lambda tree: jax.tree.map(np.shape, dict(tree))
  assert shapes(fresh["params"]) == shapes(params["params"])
  zimg, ztxt, out = jax.jit(model.apply)(params, *INPUTS)
  np.testing.assert_allclose(zimg, GOLDEN[f"{name}/zimg"], **CLOSE)
  np.testing.assert_allclose(ztxt, GOLDEN[f"{name}/ztxt"], **CLOSE)
  for key in {"t", "b"} & out.keys():
    np.testing.assert_allclose(out[key], GOLDEN[f"{name}/{key}"], rtol=1e-6)
  assert ("b" in out) == (name == "siglip")


def test_other_pools_and_vocabulary_logits():
  tower = _params("lit")["params"]["txt"]
  for pool in ("first", "gap", "max"):
    model = text.Model(8, **TEXT, pool_type=pool)
    z, out = jax.jit(model.apply)({"params": tower}, INPUTS[1])
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(z, GOLDEN[f"lit/ztxt_{pool}"], **CLOSE)
  # In big_vision, too, they do not depend on the pooling.
  np.testing.assert_allclose(
    out["vocab_logits"], GOLDEN["lit/vocab_logits"], **CLOSE
  )


def test_an_embedding_of_zero_has_a_gradient():
  image = {**IMAGE, "pool_type": "tok", "block_ln": "res_post"}
  model = two_towers.Model(**{**LIT, "image": image})
  params = model.init(jax.random.key(0), *INPUTS)

  def loss(params):
    zimg, ztxt, _ = model.apply(params, *INPUTS)
    return (zimg * ztxt).sum()

  grads = trees.flatten(jax.jit(jax.grad(loss))(params))
  assert all(np.isfinite(x).all() for x in grads.values())
  final = "params/img/Transformer/encoder_norm/bias"
  assert abs(grads[final]).max() > 0


def test_either_input_may_be_absent():
  model, params = two_towers.Model(**LIT), _params("lit")
  zimg, none, out = jax.jit(model.apply)(params, INPUTS[0])
  assert none is None
  np.testing.assert_allclose(zimg, GOLDEN["lit/zimg"], **CLOSE)
  assert {key.split("/")[0] for key in out} == {"img", "t"}
  np.testing.assert_array_equal(out["t/parameter"], params["params"]["t"])
  none, ztxt, _ = jax.jit(model.apply)(params, None, INPUTS[1])
  assert none is None
  np.testing.assert_allclose(ztxt, GOLDEN["lit/ztxt"], **CLOSE)


def test_scanned_text_tower_and_initial_values():
  kw = {**LIT, "text": {**TEXT, "scan": True}}
  model = two_towers.Model(**kw)
  params = jax.jit(model.init)(jax.random.key(0), *INPUTS)["params"]
  assert "encoderblock" in params["txt"]["Encoder_0"]
  np.testing.assert_allclose(params["t"], [np.log(10)], rtol=1e-6)
  std = float(params["txt"]["pos_embedding"].std())
  assert std == pytest.approx(12**-0.5, rel=0.3)


def test_stems_and_norms_in_the_towers():
  kw = {
    **LIT,
    "image": {**LIT["image"], "stem_ln": "dpn"},
    "text": {**TEXT, "norm": "rmsnorm", "block_ln": "sub_ln"},
  }
  kw |= {"out_dim": None, "text": kw["text"] | {"width": 8}}
  model = two_towers.Model(**kw)
  params = jax.eval_shape(model.init, jax.random.key(0), *INPUTS)["params"]
  assert not {"head"} & {*params["img"], *params["txt"]}
  assert params["img"]["stem"]["ln0"]["scale"].shape == (48,)
  block = params["txt"]["Encoder_0"]["encoderblock_0"]
  assert set(block["LayerNorm_0"]) == {"scale"}
  said = two_towers.options(model)
  assert said["img"]["stem_ln"] == "dpn"
  assert said["img"] == vit.options(vit.Model(**kw["image"]))
  assert said["txt"]["vocab_size"] == 13


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"out_dim": (None, 7)}, "into 8 dimensions, the text tower into 7"),
    ({"out_dim": (None, 8), "image": IMAGE | {"rep_size": 5}}, "into 5 dim"),
    ({"out_dim": (1, 2, 3)}, "out_dim must be a positive number or two"),
    ({"out_dim": (None, 0)}, r"number or two, got \(None, 0\)"),
    ({"temperature_init": 0.0}, "temperature_init must be positive, got 0.0"),
    ({"text": {**TEXT, "vocab_size": 0}}, "vocab_size must be 1 or more"),
    ({"text": {**TEXT, "weight_init": "whiten"}}, "is of patches; text has"),
    ({"text": {"variant": "B/16"}}, "'B/16' is for images"),
    ({"text": {"pool_type": "tok"}}, "Unknown pool_type 'tok'"),
    ({"text": {"vocabsize": 3}}, "Did you mean 'vocab_size'"),
    ({"text_model": "gpt"}, "Unknown text_model 'gpt'"),
    ({"image_model": "precomputed", "image": {}, "out_dim": 8}, "have no head"),
  ],
)
def test_wrong_options(changes, message):
  with pytest.raises(ValueError, match=message):
    two_towers.Model(**{**LIT, **changes})


def test_losses_equal_big_vision():
  z = GOLDEN["siglip/zimg"], GOLDEN["siglip/ztxt"], GOLDEN["siglip/t"]
  got = losses.softmax_contrastive(*z)
  np.testing.assert_allclose(got, GOLDEN["softmax"], rtol=1e-5)
  got = losses.sigmoid_contrastive(*z, GOLDEN["siglip/b"])
  np.testing.assert_allclose(got, GOLDEN["sigmoid"], rtol=1e-5)
