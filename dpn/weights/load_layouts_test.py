"""Rows of the class token, our own names: what loading recognizes."""

import jax
import numpy as np
import pytest

from dpn import trees
from dpn.conftest import part
from dpn.models import vit
from dpn.scripts import convert
from dpn.weights import conftest as testing
from dpn.weights import source, timm_vit, vit_params


@pytest.mark.parametrize(
  "join", [{"posemb_join": "lape"}, {"posemb_join_kw": {"cls": True}}]
)
@pytest.mark.parametrize("compare", [False, True])
def test_a_kept_row_of_the_class_token_is_not_resized(tmp_path, join, compare):
  rows = np.random.RandomState(1).randn(1, 10, 16).astype(np.float32)
  wanted = testing.shapes(20, 20, **join)
  flat = trees.flatten(testing.sevens(testing.shapes(12, 12, **join)))
  path = testing.write(tmp_path, flat | {"pos_embedding": rows})
  model = testing.make(**join)
  kw = {"options": vit.options(model)} if compare else {}
  got = testing.read(path, wanted, **kw)
  np.testing.assert_array_equal(got["pos_embedding"][:, 0], rows[:, 0])
  want = testing.bilinear(rows[0, 1:].reshape(3, 3, 16), 5).reshape(25, 16)
  np.testing.assert_allclose(got["pos_embedding"][0, 1:], want, atol=1e-6)
  np.testing.assert_array_equal(got["cls"], flat["cls"])


@pytest.mark.parametrize("mlp", ["pre", "pre+post"])
def test_our_own_names_are_not_renumbered(tmp_path, mlp):
  kw = {"block_ln_kw": {"sa": "post", "mlp": mlp}}
  want = testing.sevens(testing.shapes(**kw))
  path = testing.write(tmp_path, trees.flatten(want))
  got = testing.read(path, testing.shapes(**kw))
  testing.assert_equal(got, trees.flatten(want))


def test_no_class_token_has_no_row(tmp_path):
  """I-JEPA: a config of transformers, 16 rows and no class token."""
  flat = testing.golden("hf_model")
  del flat["embeddings.cls_token"]
  rows = np.random.RandomState(1).randn(1, 16, 8).astype(np.float32)
  flat["embeddings.position_embeddings"] = rows
  path = testing.write_torch(tmp_path, "hf_model", flat)
  model = testing.make("hf_model", pool_type="gap")
  got = testing.read(path, testing.shapes_of(model, (1, 12, 12, 3)))
  np.testing.assert_array_equal(got["pos_embedding"], rows)
  got = vit_params.read(path, {"num_heads": 2, "pool_type": "gap"})
  np.testing.assert_array_equal(got.arrays["pos_embedding"], rows)


def test_dual_patchnorm_of_big_vision(tmp_path):
  """NaFlexViT with patchln_pre and patchln_post, logits of its own code."""
  golden = dict(np.load(testing.TESTDATA / "naflex_vit.npz"))
  flat = part(golden, "param/")
  path = testing.write(tmp_path, flat)
  model, variables, preprocess = vit.from_pretrained(path)
  assert model.config.stem_ln == "dpn"
  assert preprocess.shape == (12, 12, 3)
  logits, _ = jax.jit(model.apply)(variables, golden["image"])
  np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=1e-5)
  flat["embedding/kernel"] = flat["embedding/kernel"][:47]
  both = {f"{t}/{k}": x for t in ("img", "txt") for k, x in flat.items()}
  tower = source.read(testing.write(tmp_path, both)).tower("img")
  assert tower.metadata.layout == "naflex_vit"
  with pytest.raises(ValueError, match="its patches have 47 numbers"):
    vit.from_pretrained(testing.write(tmp_path, flat))


def test_back_to_naflex_and_other_grids(tmp_path):
  """Its own arrays again; oblong images see its positions, as there."""
  golden = dict(np.load(testing.TESTDATA / "naflex_vit.npz"))
  flat = part(golden, "param/")
  path = testing.write(tmp_path, flat)
  back = str(tmp_path / "back.npz")
  notes = convert.convert(path, back, "naflex_vit")
  [made] = [note for note in notes if note.startswith("naflex_vit.Model")]
  assert "'nposemb': 3, 'patchln_pre': True, 'patchln_post': True" in made
  with np.load(back) as arrays:
    testing.assert_equal(part(arrays, "params/"), flat)
  model, _, _ = vit.from_pretrained(back)
  shapes = testing.shapes_of(model, golden["oblong"].shape)
  params = testing.read(back, shapes, posemb_grid=(2, 5))
  logits, _ = jax.jit(model.apply)({"params": params}, golden["oblong"])
  want = golden["oblong_logits"]
  np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-5)


def test_a_norm_of_registers_is_refused(tmp_path):
  """CLIP's norm is of registers, too, in timm; ours of all but them."""
  flat = testing.golden("timm_tok")
  for leaf in ("weight", "bias"):
    flat[f"norm_pre.{leaf}"] = flat[f"norm.{leaf}"]
  path = testing.write_torch(tmp_path, "timm_tok", flat)
  assert "gelu='exact'" in vit_params.read(path, {"num_heads": 2}).assumed
  # 1e-5 is CLIP's own; pre_norm=True in another model keeps timm's.
  for arch, eps in (("vit_tiny_patch16_224", 1e-6), ("", 1e-5)):
    said = timm_vit.describe({"architecture": arch}, None, flat).options
    assert said["norm_kw"] == {"eps": eps}
    assert said["stem_eps"] == eps
  flat["reg_token"] = np.ones((1, 2, 8), np.float32)
  path = testing.write_torch(tmp_path, "timm_tok", flat)
  with pytest.raises(ValueError, match="normalizes registers in front"):
    vit_params.read(path, {"num_heads": 2})
