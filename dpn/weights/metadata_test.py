"""What files say about themselves, and what is made of it."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.numpy

from dpn.models import vit
from dpn.weights import files, hf_vit, metadata, names, pixels, source

SIZE = {"width": 16, "depth": 1, "num_heads": 2, "patch_size": (4, 4)}
HALF = pixels.Pixels((0.5,), (0.5,))


def read(path, layout):
  return source.read_metadata(files.locate(path), layout)


def write(tmp_path, metadata=None, **beside):
  path = str(tmp_path / "model.safetensors")
  safetensors.numpy.save_file({"x": np.zeros(1)}, path, metadata)
  for name, value in beside.items():
    (tmp_path / f"{name}.json").write_text(json.dumps(value))
  return path


def test_metadata_comes_back(tmp_path):
  options = vit.options(vit.Model(3, **SIZE, stem_ln="dpn"))
  said = metadata.metadata(options, HALF, "timm", pp="resize(3)", cls_row=False)
  got = read(write(tmp_path, said), "timm")
  assert got.options == json.loads(json.dumps(options))
  assert (got.pixels, got.pp, got.cls_row) == (HALF, "resize(3)", False)
  np.savez(tmp_path / "x.npz", metadata=np.array(json.dumps(said)))
  assert read(str(tmp_path / "x.npz"), "ours").options == got.options


def test_config_of_timm(tmp_path):
  config = {
    "architecture": "vit_tiny_patch16_224",
    "model_args": {"act_layer": "gelu_tanh", "no_embed_class": True},
    "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3},
  }
  got = read(write(tmp_path, config=config), "timm")
  assert (got.options["gelu"], got.pixels, got.cls_row) == ("tanh", HALF, False)
  # As transformers' TimmWrapper writes it, and what timm has anyway.
  for args in (None, {"norm_layer": "layernorm", "block_fn": None}):
    again = read(write(tmp_path, config=config | {"model_args": args}), "timm")
    assert again.options == {**got.options, "gelu": "exact"}


def check(file, model, values=None, **kw):
  options = vit.options(model)
  differences = metadata.differences(file, options, values)
  metadata.check("x", file, differences, **kw)


def test_pooling_of_timm(tmp_path):
  config = {"global_pool": "avg", "num_classes": 3}
  got = read(write(tmp_path, config=config), "timm")
  assert got.options["pool_type"] == "gap"
  model = vit.Model(3, **SIZE, pool_type="tok", gelu="exact")
  with pytest.raises(ValueError, match=r"config\.model\.pool_type='gap'"):
    check(got, model)
  config["global_pool"] = ""
  got = read(write(tmp_path, config=config), "timm")
  assert got.options["pool_type"] == "none"


def test_what_is_assumed(tmp_path):
  options = vit.options(vit.Model(3, **SIZE, gelu="exact"))
  guessed = {
    "gelu": "gelu='exact'",
    "norm_kw": "norm_kw={'eps': 1e-06}",
    "block_ln_kw": "block_ln_kw={'sa': 'pre', 'mlp': 'pre', 'post': 'branch'}",
    "rope": "rope='none'",
  }
  rest = ["pool_type='gap'", "num_heads=2"]
  got = read(write(tmp_path), "timm")
  assert metadata.assumed(got, options) == [*guessed.values(), *rest]
  # An old model's layer before the head, behind which names show no tanh.
  more = metadata.assumed(got, {**options, "rep_size": 8})
  assert more == [*guessed.values(), *rest, "rep_size=8"]
  path = write(tmp_path, config={"model_args": {"act_layer": "gelu_tanh"}})
  got = read(path, "timm")
  assert got.options["gelu"] == "tanh"
  assert metadata.assumed(got, options)[:3] == [*guessed.values()][1:]
  path = write(tmp_path, config={"architecture": "vit_small_patch16_224"})
  assert metadata.assumed(read(path, "timm"), options) == []
  (tmp_path / "config.json").unlink()
  got = read(write(tmp_path), "ours")
  assert "gelu='exact'" in metadata.assumed(got, options)
  assert "num_heads=2" not in metadata.assumed(got, options)


def test_config_of_hugging_face(tmp_path):
  config = {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}
  config |= {"num_attention_heads": 3, "image_size": 48, "num_channels": 1}
  image = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 48}
  path = write(tmp_path, config=config, preprocessor_config=image)
  got = read(path, "hf")
  assert got.pp.startswith("decode(channels=1)|resize((48, 48)")
  assert got.options == {
    **{"gelu": "tanh", "norm": "layernorm", "norm_kw": {"eps": 1e-5}},
    **{"num_heads": 3, "pool_type": "tok", "posemb_join": "add"},
    "block_ln": "placement",
    "block_ln_kw": {"sa": "pre", "mlp": "pre", "post": "branch"},
    **{"rope": "none", "logit_scale": "sqrt"},
  }
  assert (got.pixels, got.cls_row, got.image_size) == (HALF, True, (48, 48))


def test_other_options_of_hugging_face(tmp_path):
  path = write(
    tmp_path,
    config={"hidden_act": "gelu_python"},
    preprocessor_config={"do_normalize": False, "image_mean": [0.5] * 3},
  )
  got = read(path, "hf")
  assert got.options["gelu"] == "exact"
  assert got.pixels == pixels.Pixels((0,), (1,))
  for image in (
    {"image_mean": [1.0], "image_std": [1.0], "rescale_factor": 2 / 255},
    {"image_mean": [127.5], "image_std": [127.5], "do_rescale": False},
  ):
    path = write(tmp_path, preprocessor_config=image)
    assert read(path, "hf").pixels.close_to(HALF)


def test_metadata_of_others(tmp_path):
  path = write(tmp_path, {"model": "vit", "format": "pt"})
  assert read(path, "timm").options["gelu"] == "exact"


def test_config_of_a_run(tmp_path):
  config = {
    "num_classes": 7,
    "model": {**SIZE, "gelu": "exact"},
    "input": {"pp": "value_range(0, 1)"},
  }
  got = read(write(tmp_path, config=config), "ours")
  assert (got.options["num_classes"], got.options["gelu"]) == (7, "exact")
  assert got.pixels == pixels.Pixels((0,), (1,))
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(
    ValueError, match=r"config\.json is damaged, expected JSON"
  ):
    read(str(tmp_path / "model.safetensors"), "ours")


def test_all_differences_come_with_their_options():
  there = metadata.ModelMetadata(
    "hf",
    {"gelu": "exact", "norm_kw": {"eps": 1e-12}, "stem_ln": "post"},
    pixels.Pixels((0.4, 0.5, 0.6), (0.2, 0.2, 0.2)),
  )
  model = vit.Model(3, **SIZE, stem_ln="dpn")
  with pytest.raises(ValueError, match="was not made for this model") as error:
    check(there, model, HALF)
  message = str(error.value)
  for option in (
    "config.model.gelu='exact'",
    "config.model.norm_kw={'eps': 1e-12}",
    "config.model.stem_ln='post'",
    "vgg_value_range((102.0",
    "dont_check=['gelu', 'norm_kw', 'stem_ln', 'pixels']",
  ):
    assert option in message
  ignored = ["gelu", "norm_kw", "stem_ln", "pixels"]
  check(there, model, HALF, dont_check=ignored)


def test_options_that_parameters_show_may_differ_with_them():
  plain = vit.Model(3, **SIZE)
  there = metadata.ModelMetadata("ours", vit.options(plain), HALF)
  dpn = vit.Model(7, **SIZE, stem_ln="dpn")  # on top of a plain one
  same = pixels.Pixels((0.5,) * 3, (0.5,) * 3)
  check(there, dpn, same, differing=["stem/ln0/scale"])
  with pytest.raises(ValueError, match="stem_ln: none in the file, dpn in the"):
    check(there, dpn, differing=["head/kernel"])


@pytest.mark.parametrize(
  ("option", "there", "here"),
  [
    ("posemb", "sincos2d", "sincos2d_lape"),
    ("posemb", "sincos1d", "sincos2d"),
    ("stem_ln", "no_learnable", "none"),
    ("stem_ln", "post", "post_posemb"),
    ("pool_type", "gap", "0"),
    ("cls_blocks", None, 1),
    ("rope", "none", "axial"),
    ("logit_scale", "sqrt", "one"),
    ("block_ln", "placement", "lns"),
    ("posemb_join", "add", "shared"),
  ],
)
def test_options_without_parameters(option, there, here):
  kw = {**SIZE, "depth": 2}
  kw |= {"pool_type": "tok"} if option == "cls_blocks" else {}
  model = vit.Model(3, **kw, **{option: there})
  file = metadata.ModelMetadata("ours", vit.options(model))
  check(file, model)
  other = vit.Model(3, **kw, **{option: here})
  message = f"{option}: {there} in the file, {here}"
  with pytest.raises(ValueError, match=message):
    check(file, other)
  if option in (*names.BLOCKS, "posemb_join"):  # true of all its models
    assert getattr(model.config, option) == there
    with pytest.raises(ValueError, match=message):
      check(hf_vit.describe({}, {}), other)


def test_where_parameters_start_is_no_difference():
  file = metadata.ModelMetadata("ours", {"layer_scale": 1e-4})
  check(file, vit.Model(3, **SIZE, layer_scale=1e-5))
  check(dataclasses.replace(file, layout="timm"), vit.Model(3, **SIZE))
  with pytest.raises(ValueError, match="0001 in the file, None in the model"):
    check(file, vit.Model(3, **SIZE))


def test_options_of_any_task():
  file = metadata.ModelMetadata("ours", {"tower": {"depth": 2}})
  [difference] = metadata.differences(file, {"tower": {"depth": 3}, "x": 1})
  assert str(difference).strip().startswith("tower: {'depth': 2} in the file")
  assert metadata.differences(file, {"tower": {"depth": 2}}) == []
  assert metadata.differences(file, {}) == []


def _run(**model):
  return {"config": {"model": model, "input": {}, "num_classes": 2}}


@pytest.mark.parametrize(
  ("layout", "beside", "message"),
  [
    ("timm", {"config": []}, "it must be of type dict"),
    (
      "timm",
      {"config": {"model_args": [1]}},
      "model_args must be of type dict",
    ),
    ("timm", {"config": {"mean": ["x"], "std": [1]}}, "mean.0 must be of type"),
    ("timm", {"config": {"mean": [1, 2], "std": [1]}}, "as many of both"),
    ("timm", {"config": {"model_args": {"act_layer": "silu"}}}, "ion 'silu'"),
    ("timm", {"config": {"global_pool": "avgmax"}}, "the pooling 'avgmax'"),
    (
      "timm",
      {"config": {"architecture": "vit_base_patch16_rpn_224"}},
      "other blocks.*: vit_base_patch16_rpn_224",
    ),
    ("timm", {"config": {"model_args": {"block_fn": "x"}}}, "ocks.*: block_fn"),
    ("timm", {"config": {"architecture": "vit_b_rope_ape"}}, "ocks.*: vit_b_r"),
    ("hf", {"config": {"model_type": "beit"}}, "type 'beit'.*Known: dinov2"),
    ("hf", {"config": {"pooler_act": "relu"}}, "pooler's activation 'relu'"),
    ("hf", {"config": {"layer_norm_eps": "x"}}, "layer_norm_eps must be of"),
    ("hf", {"preprocessor_config": {"image_std": {}}}, "image_std must be of"),
    ("ours", {"config": {"model": [], "input": {}}}, "model must be of type"),
    ("ours", _run(depth=[3]), r"depth must be of type int, got \[3\]"),
    (
      "ours",
      {"config": {**_run()["config"], "model_name": "my.models:Mixer"}},
      "model_name names the module 'my.models'.*--trust my.models",
    ),
  ],
)
def test_what_is_refused(tmp_path, layout, beside, message):
  with pytest.raises(ValueError, match=message):
    read(write(tmp_path, **beside), layout)


def test_another_name_than_that_of_the_config(tmp_path):
  path = write(tmp_path, config={"architecture": "vit_tiny_patch16_224"})
  with pytest.raises(
    ValueError, match=r"contradicts .* 'vit_tiny_patch16_224'"
  ):
    source.read_metadata(files.locate(path), "timm", "vit_small_patch16_224")


@pytest.mark.parametrize("value", ["[1]", '{"mean": "x", "std": 1}', "{"])
def test_metadata_of_another_type(tmp_path, value):
  said = {"layout": "ours", "model": "{}", "pixels": value}
  with pytest.raises(ValueError, match="pixels in the metadata of "):
    read(write(tmp_path, said), "ours")
