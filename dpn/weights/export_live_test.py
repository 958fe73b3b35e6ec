"""Converted files in timm's and transformers' own models, where installed.

testing.py has numbers that these models gave, for tests that run everywhere.
"""

import json
import pathlib
import re

import jax
import numpy as np
import pytest

from dpn.models import vit
from dpn.scripts import convert
from dpn.scripts.diagnosis import learned
from dpn.weights import conftest as testing
from dpn.weights import files, timm_vit, vit_params

torch = pytest.importorskip("torch")
vision_transformer = pytest.importorskip("timm.models.vision_transformer")
transformers = pytest.importorskip("transformers")
load_file = pytest.importorskip("safetensors.torch").load_file
save_file = pytest.importorskip("safetensors.torch").save_file

DOCS = pathlib.Path(__file__).parents[2] / "docs/checkpoints.md"
IMAGE = testing.IMAGE
POOLS = {"token": "tok", "avg": "gap", "map": "map"}
MODELS = {
  "tok": {"pool_type": "tok"},
  "dpn": {"pool_type": "tok", "stem_ln": "dpn"},
  "post": {"pool_type": "gap", "stem_ln": "post", "gelu": "exact"},
  "map": {"pool_type": "map", "gelu": "exact"},
  "rows": {"pool_type": "tok", "posemb_join_kw": {"cls": True}},
  "registers": {"pool_type": "tok", "registers": 2},
  "eps": {"pool_type": "tok", "norm_kw": {"eps": 1e-3}},
  "eps_map": {"pool_type": "map", "norm_kw": {"eps": 1e-3}},
  "affine": {"pool_type": "gap", "stem_ln": "only_learnable"},
  "fc_norm": {
    **{"pool_type": "gap", "pool_norm": True, "final_norm": False},
    **{"registers": 2, "norm_kw": {"eps": 1e-3}},
  },
}


def helpers():
  """Returns what the Python in the documentation defines."""
  space = {}
  for block in re.findall(r"```python \w+\n(.*?)```", DOCS.read_text(), re.S):
    exec(block, space)
  return space


def ours(tmp_path, name, num_classes=5, **kw):
  """Returns (path, output) of a random model of ours."""
  options = {**testing.TORCH, **MODELS.get(name, {}), **kw}
  model = vit.Model(num_classes, **options)
  params = testing.draw(testing.shapes_of(model))
  path = testing.save(tmp_path / f"{name}.safetensors", model, params)
  return path, jax.jit(model.apply)({"params": params}, IMAGE)[0]


def check(got, want):
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  ("name", "no_embed_class"),
  [*((name, False) for name in MODELS), ("tok", True)],
)
def test_ours_in_timm(tmp_path, name, no_embed_class):
  path, want = ours(tmp_path, name)
  target = str(tmp_path / "x.safetensors")
  kw = {"no_embed_class": no_embed_class, "extra_modules": name == "dpn"}
  notes = convert.convert(path, target, "timm", **kw)
  made = next(n for n in notes if n.startswith("timm.models"))
  args = eval(made.partition("**")[2][:-1])
  model = vision_transformer.VisionTransformer(**args).eval()
  if name == "dpn":
    model = helpers()["with_ln0"](model, model.patch_embed)
  model.load_state_dict(load_file(target), strict=True)
  check(testing.run_torch(model, IMAGE), want)


@pytest.mark.parametrize("name", ["tok", "dpn", "rows", "eps"])
def test_ours_in_transformers(tmp_path, name):
  path, want = ours(tmp_path, name)
  folder = tmp_path / "hf"
  convert.convert(path, str(folder), "hf", extra_modules=name == "dpn")
  model_class = transformers.ViTForImageClassification
  if name == "dpn":
    model_class = helpers()["DualPatchNormViT"]
  model, info = model_class.from_pretrained(folder, output_loading_info=True)
  assert not any(info.values()), info
  check(testing.run_torch(model.eval(), IMAGE).logits, want)


def test_ours_without_head_in_transformers(tmp_path):
  path, want = ours(tmp_path, "tok", num_classes=None, rep_size=True)
  folder = tmp_path / "hf"
  convert.convert(path, str(folder), "hf")
  model, info = transformers.ViTModel.from_pretrained(
    folder, output_loading_info=True
  )
  assert not any(info.values()), info
  check(testing.run_torch(model.eval(), IMAGE).pooler_output, want)


@pytest.mark.parametrize(
  "args",
  [
    {"init_values": 0.5},
    {"qkv_bias": False},
    {"no_embed_class": True, "mlp_ratio": 2.5},
    {"class_token": False, "global_pool": "map", "act_layer": "gelu_tanh"},
    {"global_pool": "avg"},  # with a class token, which is not pooled
    {"global_pool": "avg", "fc_norm": False, "reg_tokens": 2},
    {"global_pool": "map", "no_embed_class": True, "reg_tokens": 2},
  ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_timm_in_ours(tmp_path, args, dtype):
  size = {"img_size": 9, "patch_size": 3, "embed_dim": 8, "depth": 2}
  size |= {"num_heads": 2, "num_classes": 5}
  model = vision_transformer.VisionTransformer(**size, **args)
  model = testing.randomized(model)
  state = {k: x.to(dtype) for k, x in model.state_dict().items()}
  model.load_state_dict(state)
  folder = tmp_path / "timm"
  folder.mkdir()
  save_file(state, folder / "model.safetensors")
  args = {"num_heads": 2, **args}
  (folder / "config.json").write_text(json.dumps({"model_args": args}))
  target = str(tmp_path / "x.safetensors")
  convert.convert(str(folder), target, "ours")
  ours = vit.Model(**json.loads(testing.metadata(target)["model"]))
  check(testing.logits(ours, target), testing.run_torch(model, IMAGE))


def test_timm_folder_makes_its_model(tmp_path):
  timm = pytest.importorskip("timm")
  path, want = ours(tmp_path, "map")
  folder = tmp_path / "timm"
  convert.convert(path, str(folder), "timm")
  model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
  check(testing.run_torch(model, IMAGE), want)


def test_names_of_timm():
  """All of its registry: what names say is so."""
  timm = pytest.importorskip("timm")
  known = 0
  for name in timm.list_models(module="vision_transformer"):
    found = timm_vit.find(name)
    if found is None:
      continue
    known += 1
    with torch.device("meta"):
      model = timm.create_model(name)
    block = model.blocks[0]
    said = timm_vit.describe({}, name, model.state_dict()).options
    # The activation of a gated MLP is its own.
    act = getattr(block.mlp.act, "approximate", type(block.mlp.act).__name__)
    known_acts = {"none": "exact", "QuickGELU": "quick", "SiLU": "exact"}
    known_acts |= {"tanh": "tanh", "GELUTanh": "tanh"}
    assert said["gelu"] == known_acts[act]
    assert said["num_heads"] == block.attn.num_heads, name
    assert said["pool_type"] == POOLS[model.global_pool], name
    assert (found.width, found.depth) == (model.embed_dim, len(model.blocks))
    if model.has_class_token:
      assert found.cls_row == (not model.no_embed_class), name
    norms = {"LayerNorm": "layernorm", "RmsNorm": "rmsnorm"}
    assert said["norm"] == norms[type(block.norm1).__name__], name
    for norm in (block.norm1, block.norm2, model.norm, model.fc_norm):
      if not isinstance(norm, torch.nn.Identity):
        assert said["norm_kw"] == {"eps": norm.eps}, name
    for norm in (model.norm_pre, model.patch_embed.norm):
      if not isinstance(norm, torch.nn.Identity):
        assert said["stem_eps"] == norm.eps, name
    assert type(block) is vision_transformer.Block, name
  assert known == 133


def tiny_timm(folder, name):
  """Returns a small model of an architecture, its side, and writes it."""
  timm = pytest.importorskip("timm")
  with torch.device("meta"):
    patch = timm.create_model(name, depth=1).patch_embed.patch_size[0]
  size = {"embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 5}
  size["img_size"] = 3 * patch
  model = testing.randomized(timm.create_model(name, **size))
  folder.mkdir()
  state = {k: x.clone() for k, x in model.state_dict().items()}
  save_file(state, folder / "model.safetensors")
  config = {"architecture": name, "model_args": {"num_heads": 2}}
  config["global_pool"] = model.global_pool
  (folder / "config.json").write_text(json.dumps(config))
  return model, 3 * patch


@pytest.mark.slow
def test_all_of_timm(tmp_path):
  """Equal logits, or refused; what a name promises is not refused."""
  timm = pytest.importorskip("timm")
  equal, refused = [], []
  for name in timm.list_models(module="vision_transformer"):
    theirs, px = tiny_timm(tmp_path / name, name)
    try:
      model, variables, _ = vit.from_pretrained(tmp_path / name)
    except ValueError:
      assert timm_vit.find(name) is None, name
      refused.append(name)
      continue
    image = np.random.RandomState(0).randn(2, px, px, 3).astype(np.float32)
    want = testing.run_torch(theirs, image)
    got = jax.jit(model.apply)(variables, image)[0]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3, err_msg=name)
    equal.append(name)
  assert len(equal) >= 140
  assert "vit_base_patch16_rpn_224" in refused


@pytest.mark.parametrize(
  "name", ["vit_base_patch32_clip_quickgelu_224", "aimv2_large_patch14_224"]
)
def test_clip_and_aimv2_back_to_timm(tmp_path, name):
  """What their own files become here is theirs again, also trained."""
  timm = pytest.importorskip("timm")
  theirs, px = tiny_timm(tmp_path / name, name)
  image = np.random.RandomState(0).randn(2, px, px, 3).astype(np.float32)
  ours = str(tmp_path / "ours.safetensors")
  convert.convert(str(tmp_path / name), ours, "ours")
  arrays = load_file(ours)
  if "clip" in name:  # a bias that timm's has no place for
    arrays["embedding/bias"] += 0.1
  files.save_params(ours, arrays, metadata=testing.metadata(ours))
  model, variables, _ = vit.from_pretrained(ours)
  want = jax.jit(model.apply)(variables, image)[0]
  folder = tmp_path / "timm"
  notes = convert.convert(ours, str(folder), "timm")
  [made] = [x for x in notes if x.startswith("timm.create_model")]
  made = eval(made).eval()
  made.load_state_dict(load_file(folder / "model.safetensors"), strict=True)
  made2 = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
  for model in (made, made2, *([theirs] if "aimv2" in name else [])):
    got = testing.run_torch(model, image)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
  if "aimv2" in name:
    bias = "Transformer/encoderblock_0/MlpBlock_0/Dense_1/bias"
    arrays[bias] += 1
    files.save_params(ours, arrays, metadata=testing.metadata(ours))
    with pytest.raises(ValueError, match=f"{bias} is not zero"):
      convert.convert(ours, str(tmp_path / "no"), "timm")


def test_what_timm_decays(tmp_path):
  """`count --audit FILE` says what its own optimizer factory does."""
  optim = pytest.importorskip("timm.optim")
  args = {"reg_tokens": 2, "class_token": False, "global_pool": "map"}
  model = vision_transformer.VisionTransformer(
    **{"img_size": 9, "patch_size": 3, "embed_dim": 8, "depth": 2},
    **{"num_heads": 2, "num_classes": 5, "qk_norm": True, **args},
    no_embed_class=True,
  )
  path = str(tmp_path / "x.safetensors")
  save_file(model.state_dict(), path)
  read = vit_params.read(path, {"num_heads": 2})
  rows = learned.decay_groups(read.arrays)
  counts = rows.groupby("timm")["numbers"].sum()
  plain, decayed = optim.param_groups_weight_decay(
    model, 0.1, no_weight_decay_list=model.no_weight_decay()
  )
  total = lambda group: sum(x.numel() for x in group["params"])
  assert counts.to_dict() == {"decays": total(decayed), "-": total(plain)}


def test_image_processor(tmp_path):
  """Pixels are ours: from 0 … 255 to -1 … 1."""
  path, _ = ours(tmp_path, "tok")
  folder = tmp_path / "hf"
  convert.convert(path, str(folder), "hf")
  config = json.loads((folder / "preprocessor_config.json").read_text())
  levels = np.array([0, 255]) * config["rescale_factor"]
  mean, std = config["image_mean"][0], config["image_std"][0]
  np.testing.assert_allclose((levels - mean) / std, [-1, 1])


@pytest.mark.parametrize("kind", ["Dinov2", "Dinov2WithRegisters"])
@pytest.mark.parametrize("size", [(8, 12), (18, 18)])
def test_dinov2_at_another_size_than_its_positions(tmp_path, kind, size):
  config = getattr(transformers, f"{kind}Config")(
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"image_size": 14, "patch_size": 2},
  )
  torch.manual_seed(0)
  theirs = getattr(transformers, f"{kind}Model")(config).eval()
  theirs.embeddings.position_embeddings.data.normal_()
  theirs.save_pretrained(tmp_path)
  crop = {"height": size[0], "width": size[1]}
  processor = {"do_resize": False, "do_center_crop": True, "crop_size": crop}
  processor |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
  (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
  model, variables, _ = vit.from_pretrained(tmp_path)
  image = np.random.RandomState(0).randn(2, *size, 3).astype(np.float32)
  want = testing.run_torch(theirs, image).last_hidden_state[:, 0]
  got = model.apply(variables, image)[0]
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
