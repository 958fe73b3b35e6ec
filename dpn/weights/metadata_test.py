"""What files say about themselves, and what is made of it."""

import json

import numpy as np
import pytest
import safetensors.numpy

from dpn.models import vit
from dpn.weights import metadata as origin

SIZE = {"width": 16, "depth": 1, "num_heads": 2, "patch_size": (4, 4)}
HALF = origin.Pixels((0.5,), (0.5,))


def write(tmp_path, metadata=None, **beside):
  path = str(tmp_path / "model.safetensors")
  safetensors.numpy.save_file({"x": np.zeros(1)}, path, metadata)
  for name, value in beside.items():
    (tmp_path / f"{name}.json").write_text(json.dumps(value))
  return path


@pytest.mark.parametrize(
  ("pp", "low", "high"),
  [
    ("resize(8)|value_range(-1, 1)|flip_lr", -1, 1),
    ("decode|value_range(-1,1)", -1, 1),
    ("value_range", -1, 1),
    ("value_range()|keep('image')", -1, 1),
    ("value_range(0, 1)", 0, 1),
    ("value_range(vmin=0, vmax=2)", 0, 2),
    ("decode|vgg_value_range|x", -0.485 / 0.229, (1 - 0.485) / 0.229),
  ],
)
def test_pixels_of_preprocessing(pp, low, high):
  got = origin.pixels_of(pp)
  ends = [(x - got.mean[0]) / got.std[0] for x in (0, 1)]
  np.testing.assert_allclose(ends, [low, high], atol=1e-9)


@pytest.mark.parametrize(
  "pp", ["decode|flip_lr", "vgg_value_range(1, 2)", "value_range(0, 1, 0, 1)"]
)
def test_pixels_that_are_not_understood(pp):
  assert origin.pixels_of(pp) is None


def test_pixels_are_written_as_ops():
  assert str(HALF) == "value_range(-1, 1)"
  imagenet = origin.Pixels(*origin.IMAGENET)
  assert str(imagenet).startswith("vgg_value_range((123.675, 116.28, 103.53)")


def test_metadata_comes_back(tmp_path):
  options = origin.describe(vit.Model(3, **SIZE, stem_ln="dpn"))
  said = origin.metadata(options, HALF, "timm", cls_row=False)
  got = origin.read(write(tmp_path, said), "timm")
  assert got.options == json.loads(json.dumps(options))
  assert (got.pixels, got.cls_row) == (HALF, False)
  np.savez(tmp_path / "x.npz", metadata=np.array(json.dumps(said)))
  assert origin.read(str(tmp_path / "x.npz"), "ours").options == got.options


def test_config_of_timm(tmp_path):
  config = {
    "architecture": "vit_tiny_patch16_224",
    "model_args": {"act_layer": "gelu_tanh", "no_embed_class": True},
    "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3},
  }
  got = origin.read(write(tmp_path, config=config), "timm")
  assert (got.options["gelu"], got.pixels, got.cls_row) == ("tanh", HALF, False)
  config["model_args"]["act_layer"] = "silu"
  with pytest.raises(ValueError, match="activation 'silu'"):
    origin.read(write(tmp_path, config=config), "timm")


@pytest.mark.parametrize(
  ("name", "gelu"),
  [
    ("vit_base_patch16_siglip_224", "exact"),
    ("vit_base_patch32_siglip_gap_256", "tanh"),
    ("vit_large_patch16_siglip_384", "exact"),
    ("vit_large_patch16_siglip_gap_512", "tanh"),
    ("vit_so400m_patch14_siglip_384", "exact"),
    ("vit_so400m_patch16_siglip_384", "tanh"),
    ("vit_giantopt_patch16_siglip_256", "tanh"),
  ],
)
def test_gelu_by_architecture_of_timm(tmp_path, name, gelu):
  """As timm 1.0.31 makes these models."""
  path = write(tmp_path, config={"architecture": name})
  assert origin.read(path, "timm").options["gelu"] == gelu


def test_pooling_of_timm(tmp_path):
  config = {"global_pool": "avg", "num_classes": 3}
  got = origin.read(write(tmp_path, config=config), "timm")
  assert got.options["pool_type"] == "gap"
  model = vit.Model(3, **SIZE, pool_type="tok", gelu="exact")
  with pytest.raises(ValueError, match=r"config\.model\.pool_type='gap'"):
    origin.check("x", got, model)
  config["model_args"] = {"global_pool": "avgmax"}
  with pytest.raises(ValueError, match="pools by 'avgmax'"):
    origin.read(write(tmp_path, config=config), "timm")


def test_config_of_hugging_face(tmp_path):
  config = {
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "num_attention_heads": 3,
  }
  image = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
  path = write(tmp_path, config=config, preprocessor_config=image)
  got = origin.read(path, "hf")
  assert got.options == {
    "gelu": "tanh",
    "norm": "layernorm,eps=1e-05",
    "num_heads": 3,
  }
  assert (got.pixels, got.cls_row) == (HALF, True)


def test_other_options_of_hugging_face(tmp_path):
  path = write(
    tmp_path,
    config={"hidden_act": "gelu_python"},
    preprocessor_config={"do_normalize": False, "image_mean": [0.5] * 3},
  )
  got = origin.read(path, "hf")
  assert got.options["gelu"] == "exact"
  assert got.pixels == origin.Pixels((0,), (1,))
  write(tmp_path, config={"pooler_act": "relu"})
  with pytest.raises(ValueError, match="'relu' behind its pooler"):
    origin.read(path, "hf")


def test_metadata_of_others(tmp_path):
  path = write(tmp_path, {"model": "vit", "format": "pt"})
  assert origin.read(path, "timm").options["gelu"] == "exact"


def test_pixels_for_channels():
  assert HALF.of(1) == ([0.5], [0.5])
  assert HALF.of(4) == ([0.5] * 4, [0.5] * 4)
  imagenet = origin.Pixels(*origin.IMAGENET)
  assert imagenet.of(3) == tuple(map(list, origin.IMAGENET))
  with pytest.raises(ValueError, match="3 channels, but the images have 1"):
    imagenet.of(1)


def test_config_of_a_run(tmp_path):
  config = {
    "num_classes": 7,
    "model": {**SIZE, "gelu": "exact"},
    "input": {"pp": "value_range(0, 1)"},
  }
  got = origin.read(write(tmp_path, config=config), "ours")
  assert (got.options["num_classes"], got.options["gelu"]) == (7, "exact")
  assert got.pixels == origin.Pixels((0,), (1,))
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(ValueError, match=r"config\.json'?: expected JSON"):
    origin.read(str(tmp_path / "model.safetensors"), "ours")


def test_all_differences_come_with_their_options():
  there = origin.Origin(
    "hf",
    {"gelu": "exact", "norm": "layernorm,eps=1e-12", "stem_ln": "post"},
    origin.Pixels(*origin.IMAGENET),
  )
  model = vit.Model(3, **SIZE, stem_ln="dpn")
  with pytest.raises(ValueError, match="was not made for this model") as error:
    origin.check("x", there, model, pixels=HALF)
  message = str(error.value)
  for option in (
    "config.model.gelu='exact'",
    "config.model.norm='layernorm,eps=1e-12'",
    "config.model.stem_ln='post'",
    "vgg_value_range((123.675",
    "dont_check=['gelu', 'norm', 'stem_ln', 'pixels']",
  ):
    assert option in message
  origin.check(
    "x",
    there,
    model,
    pixels=HALF,
    dont_check=["gelu", "norm", "stem_ln", "pixels"],
  )


def test_equal_options_may_be_written_differently():
  there = origin.Origin(
    "ours",
    {
      "norm": "layernorm,eps=0.000001",
      "block_ln": "mlp=pre,sa=pre",
      "stem_ln": "none",
    },
    HALF,
  )
  model = vit.Model(3, **SIZE, stem_ln="dpn")  # on top of a plain one
  origin.check("x", there, model, pixels=origin.Pixels((0.5,) * 3, (0.5,) * 3))
  origin.check("x", there, model)
