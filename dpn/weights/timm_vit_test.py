"""What timm 1.0.31 makes of its names; export_live_test.py compares all."""

import jax
import numpy as np
import pytest

from dpn import trees
from dpn.conftest import part
from dpn.models import vit, vit5
from dpn.weights import conftest as testing
from dpn.weights import metadata, names, timm_vit


@pytest.mark.parametrize(
  ("name", "heads", "gelu", "pool_type", "cls_row"),
  [
    ("vit_tiny_patch16_224.augreg_in21k", 3, "exact", "tok", True),
    ("vit_base_patch16_gap_224", 16, "exact", "gap", True),
    ("vit_base_patch32_plus_256", 14, "exact", "tok", True),
    ("deit3_medium_patch16_224", 8, "exact", "tok", False),
    ("flexivit_large", 16, "exact", "tok", False),
    ("vit_giantopt_patch16_siglip_gap_384", 16, "tanh", "gap", True),
    ("vit_so400m_patch14_siglip_378", 16, "exact", "map", True),
    ("vit_base_patch32_siglip_256", 12, "tanh", "map", True),
    ("vit_base_patch16_224_miil", 12, "exact", "tok", True),
    ("vit_base_patch16_siglip_224", 12, "exact", "map", True),
    ("vit_base_patch32_siglip_gap_256", 12, "tanh", "gap", True),
    ("vit_large_patch16_siglip_384", 16, "exact", "map", True),
    ("vit_large_patch16_siglip_gap_512", 16, "tanh", "gap", True),
    ("vit_so400m_patch14_siglip_384", 16, "exact", "map", True),
    ("vit_so400m_patch16_siglip_384", 16, "tanh", "map", True),
    ("vit_giantopt_patch16_siglip_256", 16, "tanh", "map", True),
    ("vit_base_patch32_clip_quickgelu_224.openai", 12, "quick", "tok", True),
    ("vit_so150m_patch16_reg4_map_256", 14, "exact", "map", True),
    ("vit_base_patch14_reg4_dinov2", 12, "exact", "tok", False),
    ("aimv2_huge_patch14_336", 12, "exact", "gap", True),
  ],
)
def test_names(name, heads, gelu, pool_type, cls_row):
  found = timm_vit.find(name)
  mlp = {"mlp": "swiglu"} if "aimv2" in name else {}
  want = {"num_heads": heads, "gelu": gelu, "pool_type": pool_type, **mlp}
  assert found.options == want
  assert found.cls_row == cls_row


@pytest.mark.parametrize(
  "name",
  [
    *("vit_base_patch16_sigilp_224", "resnet50", "vit_base_patch16_rpn_224"),
    *("vit_base_patch16_xp_224", "vit_giant_patch14_reg4_dinov2"),
    *("vit_giant_patch14_dinov2", "vit_base_r50_s16_224", "vit_bas"),
    *("deit_tiny_distilled_patch16_224", "vit_dwee_patch16_reg1_gap_256"),
  ],
)
def test_others(name):
  assert timm_vit.find(name) is None
  with pytest.raises(ValueError, match="ours can be timm's models named"):
    timm_vit.check(name, {})


def test_a_bare_file_in_training(tmp_path):
  """The name says 3 heads; shapes fit any number of them."""
  size = {"width": 192, "depth": 12, "mlp_dim": 8, "patch_size": (1, 1)}
  kw = {"pool_type": "tok", "gelu": "exact", "qkv_bias": False}
  model = vit.Model(2, **size, **kw, num_heads=3)
  shapes = testing.shapes_of(model, (1, 2, 2, 3))
  flat = names.from_ours(trees.flatten(testing.sevens(shapes)), timm_vit.NAMES)
  flat["pos_embed"] = np.zeros((1, 5, 192), np.float32)
  flat = {name: x.astype(np.float16) for name, x in flat.items()}
  path = testing.write_torch(tmp_path, "timm_tok", flat)
  told = {"arch": "vit_tiny_patch16_224"}
  testing.read(path, shapes, options=vit.options(model), **told)
  six = vit.Model(2, **size, **kw, num_heads=6)
  with pytest.raises(ValueError, match="3 attention heads, says timm's vit_t"):
    testing.load_into(six, path, (1, 2, 2, 3), **told)
  with pytest.raises(ValueError, match="has width 384 and 12 blocks, the file"):
    testing.read(path, shapes, arch="vit_small_patch16_224")


@pytest.mark.parametrize(
  ("size", "arch", "count"),
  [
    ("S", "vit5_small_patch16_224", 22_039_144),
    ("B", "vit5_base", 86_543_080),
    ("L", "vit5_large", 304_258_024),
    ("XL", "vit5_xlarge", 448_505_128),
  ],
)
def test_vit5_has_the_authors_parameters(size, arch, count):
  """As many as their models have; and by their name it is the variant."""
  model = vit.Model(1000, variant=f"vit5-{size}/16")
  shapes = testing.shapes_of(model, (1, 224, 224, 3))
  assert sum(x.size for x in jax.tree.leaves(shapes)) == count
  found = timm_vit.find(arch)
  sizes = {"width": found.width, "depth": found.depth}
  named = vit.Model(1000, **found.options, **sizes, patch_size=(16, 16))
  assert named.config == model.config
  rmsnorm = {f"blocks.0.{x}.weight": 1 for x in ("norm1", "attn.q_norm")}
  described = timm_vit.describe({}, arch, rmsnorm)
  assert described.options["qk_norm_kw"] == {"eps": 1e-6}
  assert metadata.differences(described, vit.options(model)) == []


def test_vit5_loads(tmp_path):
  """The arrays of the authors' model, with its logits."""
  with np.load(testing.TESTDATA / "recent.npz") as arrays:
    flat = {k: arrays[k] for k in arrays if k.startswith("vit5/")}
  path = testing.write_torch(tmp_path, "vit5", part(flat, "vit5/param/"))
  options = dict(vit5.VARIANTS["vit5-S"], num_heads=2)
  options = {k: options[k] for k in options.keys() - {"width", "depth"}}
  del options["mlp_dim"]
  model, variables, _ = vit.from_pretrained(path, **options)
  logits, _ = model.apply(variables, flat["vit5/in/x"].transpose(0, 2, 3, 1))
  np.testing.assert_allclose(logits, flat["vit5/out/y"], rtol=1e-3, atol=1e-3)
