"""Models by path: those of every library give the logits that they gave."""

import dataclasses
import json
import sys

import flax.linen as nn
import jax
import numpy as np
import pytest
import yaml

from dpn import trees
from dpn.input_pipeline import images
from dpn.models import vit
from dpn.scripts import convert
from dpn.weights import conftest as testing
from dpn.weights import positions, pretrained


def _path(tmp_path, kind):
  if kind in testing.LIBRARIES:
    return testing.write_torch(tmp_path, kind)
  return testing.write(tmp_path, testing.golden(kind))


@pytest.mark.parametrize("kind", [*testing.LIBRARIES, "tok", "map"])
def test_logits(tmp_path, kind):
  torch, path = kind in testing.LIBRARIES, _path(tmp_path, kind)
  told = {"num_heads": 2} if torch else {}
  model, variables, preprocess = vit.from_pretrained(path, **told)
  image = testing.IMAGE if torch else testing.GOLDEN["image"]
  logits, _ = jax.jit(model.apply)(variables, image)
  testing.assert_logits(logits, kind if torch else f"{kind}/out")
  # The grid of big_vision's is oblong, which its file does not tell.
  want = (9, 9, 3) if torch else (None, None, 3)
  assert preprocess.shape == want


def test_fields_have_names(tmp_path):
  loaded = vit.from_pretrained(_path(tmp_path, "tok"))
  assert isinstance(loaded, pretrained.Pretrained)
  assert loaded._fields == ("model", "variables", "preprocess")
  want = vit.options(testing.make("tok", rep_size=16))
  assert vit.options(loaded.model) == want
  assert isinstance(jax.tree.leaves(loaded.variables)[0], jax.Array)


def test_dual_patchnorm_on_a_plain_checkpoint(tmp_path):
  """Zero-shot it is LN(PE(LN(x))) with the file's embedding."""
  path = _path(tmp_path, "tok")
  plain = vit.from_pretrained(path)
  model, variables, _ = vit.from_pretrained(path, stem_ln="dpn")
  added = dict(variables["params"])
  stem = added.pop("stem")
  jax.tree.map(np.testing.assert_array_equal, added, plain.variables["params"])
  for ln, width in (("ln0", 48), ("ln1", 16)):
    np.testing.assert_array_equal(stem[ln]["scale"], np.ones(width))
    np.testing.assert_array_equal(stem[ln]["bias"], np.zeros(width))
  assert model.config.stem_ln == "dpn"
  assert plain.model.config.stem_ln == "none"
  model, more, _ = vit.from_pretrained(path, stem_ln="patch_stats")
  assert (model.config.stem_ln, model.config.stem) == ("dpn", "patch_stats")
  new = {"stem", "patch_stats"}
  assert more["params"].keys() == {*added, *new}
  assert more["params"]["patch_stats"]["kernel"].shape == (2, 16)


def test_a_norm_that_the_file_has_is_kept(tmp_path):
  path, params = testing.write_ours(tmp_path, stem_ln="pre")
  _, variables, _ = vit.from_pretrained(path, stem_ln="dpn")
  np.testing.assert_array_equal(
    variables["params"]["stem"]["ln0"]["scale"], params["stem"]["ln0"]["scale"]
  )
  assert variables["params"]["stem"]["ln1"]["bias"].tolist() == [0] * 8
  plain = vit.from_pretrained(path, stem_ln="none").variables["params"]
  assert "stem" not in plain
  path, _ = testing.write_ours(tmp_path, stem_ln="pre_no_learnable")
  vit.from_pretrained(path, stem_ln="pre")  # whose scale starts as none
  for old, new in (
    ({"stem_ln": "post_posemb"}, "dpn"),
    ({"stem_ln": "post_rmsnorm"}, "dpn"),
    ({"stem_ln": "dpn"}, "no_learnable"),
    ({"stem_ln": "no_learnable"}, "rmsnorm"),
    ({"stem_ln": "whiten"}, "dpn"),
    ({"stem_ln": "none", "stem": "hmlp", "patch_size": (4, 4)}, "patch_stats"),
  ):
    model = vit.Model(5, **{**testing.TORCH, **old})
    variables = model.init(jax.random.key(0), np.zeros((1, 12, 12, 3)))
    testing.save(path, model, **variables)
    with pytest.raises(ValueError, match="whose parameters do not fit stem_ln"):
      vit.from_pretrained(path, stem_ln=new)


def test_another_head_and_layout(tmp_path):
  path, flat = _path(tmp_path, "tok"), testing.golden("tok")
  kw = {"num_classes": 7, "scan": True, "dropout": 0.1}
  model, variables, _ = vit.from_pretrained(path, **kw)
  params = variables["params"]
  assert params["head"]["kernel"].shape == (16, 7)
  assert not params["head"]["kernel"].any()  # head_zeroinit
  want = flat["Transformer/encoderblock_1/MlpBlock_0/Dense_0/bias"]
  got = params["Transformer"]["encoderblock"]["MlpBlock_0"]["Dense_0"]["bias"]
  np.testing.assert_array_equal(got[1], want)
  assert (model.config.scan, model.config.dropout) == (True, 0.1)
  headless = vit.from_pretrained(path, num_classes=None)
  assert "head" not in headless.variables["params"]
  without = vit.from_pretrained(path, rep_size=False).variables["params"]
  assert "pre_logits" not in without
  same = vit.from_pretrained(path, num_classes=5).variables["params"]["head"]
  np.testing.assert_array_equal(same["bias"], flat["head/bias"])


def test_another_head_has_its_own_sigma(tmp_path):
  path = str(tmp_path / "ours.safetensors")
  for classes in (5, None):
    model = vit.Model(classes, **testing.TORCH, weight_norm="sigma_reparam")
    variables = model.init(jax.random.key(1), np.zeros((1, 9, 9, 3)))
    testing.save(path, model, **variables)
    model, got, _ = vit.from_pretrained(path, num_classes=7)
    head, u = got["params"]["head"], got["batch_stats"]["head"]["u"]
    left, s, _ = np.linalg.svd(head["kernel"])
    assert (model.num_classes, head["bias"].any()) == (7, False)
    np.testing.assert_allclose(head["sigma"], s[:1], rtol=1e-5)
    np.testing.assert_allclose(np.abs(u @ left[:, 0]), 1, rtol=1e-5)


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
def test_norms_of_queries_and_keys(tmp_path, norm):
  path, params = testing.write_ours(tmp_path, qk_norm=norm)
  model, loaded, _ = vit.from_pretrained(path)
  assert model.config.qk_norm == norm
  testing.assert_equal(jax.device_get(loaded["params"]), trees.flatten(params))
  with pytest.raises(ValueError, match="qk_norm"):
    vit.from_pretrained(path, qk_norm="none")


@pytest.mark.parametrize("pp", [None, "resize((6, 12))|value_range(-1, 1)"])
def test_relative_positions_tell_the_size(tmp_path, pp):
  size = (6, 12) if pp else (9, 9)
  path, params = testing.write_ours(tmp_path, (1, *size, 3), pp, posemb="rpe")
  _, variables, preprocess = vit.from_pretrained(path)
  assert preprocess.shape == (*size, 3)
  got = jax.device_get(variables["params"])
  testing.assert_equal(got, trees.flatten(params))


def overlapping(image, ln0, ln1, config, *, stride: int = 2):
  size = config.width, config.patch_size, (stride, stride)
  return ln1(nn.Conv(*size, name="embedding")(ln0(image)))


NGPT = {
  "block_ln": "dpn.models.ngpt:Block",
  "stem_ln": "dpn.models.ngpt:STEM_LN",
  "final_norm": False,
}


@pytest.mark.parametrize(
  ("size", "options"),
  [
    ((8, 8), {"stem": f"{__name__}:overlapping"}),
    ((8, 12), {"stem": f"{__name__}:overlapping", "stem_ln": "none"}),
    ((9, 12), {"stem": f"{__name__}:overlapping", "stem_kw": {"stride": 3}}),
    ((9, 9), NGPT),
  ],
)
def test_modules_of_one_s_own(tmp_path, size, options):
  pp = f'decode|resize({size})|value_range(-1, 1)|keep("image")'
  path, params = testing.write_ours(tmp_path, (2, *size, 3), pp, **options)
  model, variables, preprocess = vit.from_pretrained(path)
  assert preprocess.shape == (*size, 3)
  jax.tree.map(np.testing.assert_array_equal, variables["params"], params)
  logits, _ = model.apply(variables, np.zeros((2, *size, 3)))
  assert logits.shape == (2, 5)


def test_pooling_that_rounds_up():
  kw = {"stem": "conv", "stem_kw": {"num_layers": 3}, "posemb": "none"}
  model = vit.Model(variant="mu", pool_type="tok", **kw)
  image = np.zeros((1, 28, 20, 3), np.float32)
  run = lambda key: model.init_with_output(key, image)[0][1]["stem"]
  tokens = jax.eval_shape(run, jax.random.key(0))
  grid = positions.in_patches((28, 20), (8, 8), "conv")
  assert tokens.shape[1:3] == grid == (4, 3)


def test_fixed_positions_are_for_any_size(tmp_path):
  path, _ = testing.write_ours(tmp_path, posemb="sincos2d")
  preprocess = vit.from_pretrained(path).preprocess
  assert preprocess.shape == (222, 222, 3)  # of patches of three pixels
  assert preprocess.pp.startswith("decode|resize_small(253)|central_crop(222)|")


def test_what_is_said_and_what_is_assumed(tmp_path, monkeypatch):
  said = []
  monkeypatch.setattr(
    pretrained.logging, "warning", lambda text, *args: said.append(text % args)
  )
  path = _path(tmp_path, "timm_map")
  preprocess = vit.from_pretrained(path).preprocess
  assert preprocess.assumed == ("resize_small(10)", "central_crop(9)")
  assert len(said) == 1
  assert said[0].endswith("Assumed: resize_small(10), central_crop(9).")
  config = json.loads((tmp_path / "config.json").read_text())
  resized = {"input_size": [3, 9, 9], "interpolation": "bicubic"}
  config["pretrained_cfg"] |= resized
  (tmp_path / "config.json").write_text(json.dumps(config))
  preprocess = vit.from_pretrained(tmp_path).preprocess
  assert preprocess.assumed == ()
  assert 'method="bicubic"' in preprocess.pp
  assert len(said) == 1
  text = json.dumps(config).replace("[3, 9, 9]", "[3, 12, 12]")
  (tmp_path / "config.json").write_text(text)
  vit.from_pretrained(tmp_path)
  assert "from 3×3 to 4×4" in said[1]
  text = json.dumps(config).replace("[3, 9, 9]", "[3, 11, 11]")
  # As SigLIP's 384 px in patches of 14.
  (tmp_path / "config.json").write_text(text)
  preprocess = vit.from_pretrained(tmp_path).preprocess
  assert (preprocess.shape, len(said)) == ((9, 9, 3), 3)
  image = np.random.default_rng(0).integers(0, 256, (11, 11, 3), np.uint8)
  whole = preprocess.pp.removesuffix("|top_left_crop((9, 9))")
  whole = dataclasses.replace(preprocess, pp=whole, shape=(11, 11, 3))
  got, want = (images.prepare([image], x) for x in (preprocess, whole))
  np.testing.assert_array_equal(got, want[:, :9, :9])
  vit.from_pretrained(_path(tmp_path, "tok"))
  assert "Assumed: gelu='tanh', " in said[3]
  same = {"patch_size": (16, 16), "norm_kw": {}, "mlp_dim": None}
  vit.from_pretrained("docs/models/imagenette", gelu="exact", **same)
  assert len(said) == 6
  assert "gelu='exact', not 'tanh' as 'docs/models/" in said[-1]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    (
      {"num_heds": 2},
      "Unknown model option 'num_heds'. Did you mean 'num_heads'",
    ),
    ({"variant": "B/16"}, "Unknown model option 'variant'"),
    ({"num_classes": "ten"}, "num_classes must be of type int or None"),
    ({"width": 32}, "does not fit the model"),
    ({"stem_ln": "whiten"}, "whitens patches by the statistics of training"),
    ({"stem_ln": "dnp"}, "^/.*npz: .*Did you mean 'dpn'"),
  ],
)
def test_wrong_options(tmp_path, options, message):
  with pytest.raises(ValueError, match=message):
    vit.from_pretrained(_path(tmp_path, "tok"), **options)


@pytest.fixture
def hub(tmp_path, monkeypatch):
  """Returns a function that puts a folder into a fake cache of the hub."""
  constants = pytest.importorskip("huggingface_hub.constants")
  monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

  def put(name, folder, commit="0123456789abcdef0123456789abcdef01234567"):
    repo = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / commit
    for made in (repo / "blobs", repo / "refs", snapshot):
      made.mkdir(parents=True)
    (repo / "refs/main").write_text(commit)
    for file in folder.iterdir():
      blob = repo / "blobs" / file.name.encode().hex()
      blob.write_bytes(file.read_bytes())
      (snapshot / file.name).symlink_to(blob)

  return put


@pytest.mark.parametrize("kind", ["timm_map", "hf_model", "timm_tok"])
def test_by_name(tmp_path, hub, kind):
  folder = tmp_path / "folder"
  folder.mkdir()
  testing.write_torch(folder, kind)
  hub("org/their-vit.v1", folder)
  for name in ("org/their-vit.v1", "hf-hub:org/their-vit.v1@main"):
    model, variables, _ = vit.from_pretrained(name, num_heads=2)
    logits, _ = jax.jit(model.apply)(variables, testing.IMAGE)
    testing.assert_logits(logits, kind)
  with pytest.raises(FileNotFoundError, match=r"/tree/v2 that are named conf"):
    vit.from_pretrained("org/their-vit.v1", revision="v2")
  refs = tmp_path / "hub" / "models--org--their-vit.v1" / "refs" / "main"
  refs.write_text(str(folder))
  with pytest.raises(FileNotFoundError, match=f"refs lead to {folder}"):
    vit.from_pretrained(name)


@pytest.mark.parametrize(
  ("to", "kind", "library"),
  [
    ("ours", "map", "dual-patchnorm"),
    ("hf", "hf_classifier", "transformers"),
    ("timm", "timm_gap", "timm"),
  ],
)
def test_a_folder_to_be_published(tmp_path, hub, to, kind, library):
  told = {"num_heads": 2}
  path, folder = _path(tmp_path, kind), tmp_path / "our-export"
  convert.convert(path, str(folder), to, options=told)
  hub("org/our-export", folder)
  model, variables, _ = vit.from_pretrained("org/our-export")
  plain = vit.from_pretrained(path, **told)
  image = testing.IMAGE if to != "ours" else testing.GOLDEN["image"]
  got = jax.jit(model.apply)(variables, image)[0]
  want = jax.jit(plain.model.apply)(plain.variables, image)[0]
  np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
  card = (folder / "README.md").read_text()
  head = yaml.safe_load(card.split("---")[1])
  assert head["library_name"] == library
  assert head["pipeline_tag"] == "image-classification"
  options = card.partition("```json")[2].partition("```")[0]
  assert vit.options(vit.Model(**json.loads(options))) == vit.options(model)


def test_no_checkpoint(tmp_path, hub, monkeypatch):
  with pytest.raises(
    FileNotFoundError, match="As a name on the Hugging Face hub"
  ):
    vit.from_pretrained("timm/vit_tiny_patch16_224")
  monkeypatch.setitem(sys.modules, "huggingface_hub", None)
  with pytest.raises(FileNotFoundError, match="pip install huggingface_hub"):
    vit.from_pretrained("timm/vit_tiny_patch16_224")
  # A run's path with a mistake in it.
  (tmp_path / "runs").mkdir()
  monkeypatch.chdir(tmp_path)
  with pytest.raises(FileNotFoundError, match=r"no 'runs/dnp'\. Expected the"):
    vit.from_pretrained("runs/dnp")
