"""Rows of the class token, our own names: what loading recognizes."""

import jax
import numpy as np
import pytest

from dpn import trees
from dpn.models import vit
from dpn.weights import conftest as testing
from dpn.weights import load, vit_params


@pytest.mark.parametrize(
  "join",
  [
    {"posemb_join": "lape"},
    {"posemb_join": "add", "posemb_join_kw": {"cls": True}},
  ],
)
@pytest.mark.parametrize("compare", [False, True])
def test_a_kept_row_of_the_class_token_is_not_resized(tmp_path, join, compare):
  rows = np.random.RandomState(1).randn(1, 10, 16).astype(np.float32)
  wanted = testing.shapes(20, 20, **join)
  flat = trees.flatten(testing.sevens(testing.shapes(12, 12, **join)))
  path = testing.write(tmp_path, flat | {"pos_embedding": rows})
  model = testing.make(**join)
  kw = {"options": vit.options(model)} if compare else {}
  got = load.load(path, wanted, **kw)
  np.testing.assert_array_equal(got["pos_embedding"][:, 0], rows[:, 0])
  np.testing.assert_allclose(
    got["pos_embedding"][0, 1:].reshape(5, 5, 16),
    testing.bilinear(rows[0, 1:].reshape(3, 3, 16), 5),
    atol=1e-6,
  )
  np.testing.assert_array_equal(got["cls"], flat["cls"])


def test_oblong_grid_with_a_row_for_the_class_token(tmp_path):
  rows = np.random.RandomState(1).randn(1, 7, 16).astype(np.float32)
  flat = testing.golden("tok")
  path = testing.write(tmp_path, {**flat, "pos_embedding": rows})
  got = load.load(path, testing.shapes())  # 2 x 3
  np.testing.assert_array_equal(got["pos_embedding"], rows[:, 1:])
  np.testing.assert_array_equal(got["cls"], flat["cls"] + rows[:, :1])


@pytest.mark.parametrize("mlp", ["pre", "pre+post"])
def test_our_own_names_are_not_renumbered(tmp_path, mlp):
  kw = {"block_ln_kw": {"sa": "post", "mlp": mlp}}
  want = testing.sevens(testing.shapes(**kw))
  path = testing.write(tmp_path, trees.flatten(want))
  got = load.load(path, testing.shapes(**kw))
  testing.assert_equal(got, trees.flatten(want))


def test_no_class_token_has_no_row(tmp_path):
  """I-JEPA: a config of transformers, 16 rows and no class token."""
  flat = testing.golden("hf_model")
  del flat["embeddings.cls_token"]
  rows = np.random.RandomState(1).randn(1, 16, 8).astype(np.float32)
  flat["embeddings.position_embeddings"] = rows
  path = testing.write_torch(tmp_path, "hf_model", flat)
  model = testing.make("hf_model", pool_type="gap")
  got = load.load(path, testing.shapes_of(model, (1, 12, 12, 3)))
  np.testing.assert_array_equal(got["pos_embedding"], rows)
  got = vit_params.read(path, {"num_heads": 2, "pool_type": "gap"})
  np.testing.assert_array_equal(got.arrays["pos_embedding"], rows)


def test_dual_patchnorm_of_big_vision(tmp_path):
  """NaFlexViT with patchln_pre and patchln_post, logits of its own code."""
  golden = dict(np.load(testing.TESTDATA / "naflex_vit.npz"))
  flat = {k[6:]: x for k, x in golden.items() if k.startswith("param/")}
  path = testing.write(tmp_path, flat)
  model, variables, preprocess = vit.from_pretrained(path)
  assert model.config.stem_ln == "dpn"
  assert preprocess.shape == (12, 12, 3)
  logits, _ = jax.jit(model.apply)(variables, golden["image"])
  np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=1e-5)
  flat["embedding/kernel"] = flat["embedding/kernel"][:47]
  with pytest.raises(
    ValueError, match=r"\(47, 16\): expected patches of as ma"
  ):
    vit.from_pretrained(testing.write(tmp_path, flat))
