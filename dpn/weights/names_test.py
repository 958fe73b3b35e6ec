"""Weights and logits that timm's and transformers' own models gave.

testdata/foreign_vit.npz; see the README beside it.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from dpn import trees
from dpn.conftest import part
from dpn.models import vit
from dpn.weights import (
  big_vision,
  hf_vit,
  metadata,
  names,
  positions,
  source,
  timm_vit,
  vit_params,
)
from dpn.weights import conftest as testing


@pytest.mark.parametrize("kind", testing.LIBRARIES)
def test_their_files_give_their_logits(tmp_path, kind):
  model = testing.make(kind, scan=kind == "hf_model")
  path = testing.write_torch(tmp_path, kind)
  testing.assert_logits(testing.logits(model, path), kind)


def test_registers_take_over_their_positions():
  """Of 1 + 2 + 9 rows; of 9 or 1 + 9 rows, or oblong grids, none is theirs."""
  flat = testing.golden("timm_tok")
  flat["reg_token"] = np.ones((1, 2, 8), np.float32)
  table = np.arange(12 * 8, dtype=np.float32).reshape(1, 12, 8)

  def read(table, **said):
    got = names.to_ours({**flat, "pos_embed": table}, timm_vit.NAMES, 2)
    file = metadata.ModelMetadata("timm", {}, **said)
    return positions.without_register_rows(got, file)

  for size in (None, (9, 9)):
    got = read(table, image_size=size)
    np.testing.assert_array_equal(got["registers"], 1 + table[:, 1:3])
    want = np.concatenate([table[:, :1], table[:, 3:]], axis=1)
    np.testing.assert_array_equal(got["pos_embedding"], want)
  for rows, said in ((9, {}), (10, {}), (12, {"image_size": (9, 12)})):
    got = read(table[:, :rows], **said)
    np.testing.assert_array_equal(got["registers"], np.ones((1, 2, 8)))
  with pytest.raises(ValueError, match=r"2 registers and 11 positions.*config"):
    read(table[:, 1:])
  del flat["cls_token"]
  got = read(table[:, 1:], cls_row=False)
  np.testing.assert_array_equal(got["registers"], 1 + table[:, 1:3])


NORM = testing.golden("timm_gap")["patch_embed.norm.weight"]


@pytest.mark.parametrize(
  ("changed", "heads", "message"),
  [
    ({}, 3, r"attn\.qkv\.weight.*\(24, 8\).*num_heads=3"),
    (
      {"blocks.1.attn.qkv.weight": np.zeros((25, 8), np.float32)},
      *(2, r"blocks\.1\.attn\.qkv\.weight.*\(25, 8\)"),
    ),
    ({"norm_pre.weight": NORM}, 2, "another array is our 'stem/ln1/scale'"),
  ],
)
def test_arrays_that_cannot_be_ours(changed, heads, message):
  flat = testing.golden("timm_gap") | changed
  with pytest.raises(ValueError, match=message):
    names.to_ours(flat, timm_vit.NAMES, heads)


def test_biases_that_no_block_has_are_zero():
  flat = testing.golden("timm_tok")
  del flat["blocks.0.mlp.fc2.bias"]
  name = "Transformer/encoderblock_0/MlpBlock_0/Dense_1/bias"
  assert name not in names.to_ours(flat, timm_vit.NAMES, 2)
  del flat["blocks.1.mlp.fc2.bias"]
  got = names.to_ours(flat, timm_vit.NAMES, 2)
  np.testing.assert_array_equal(got[name], np.zeros(8))


@pytest.mark.parametrize("kind", testing.LIBRARIES)
def test_there_and_back(kind):
  flat = testing.golden(kind)
  library = source.LIBRARIES[kind.partition("_")[0]]
  assert library.matches(flat)
  back = names.from_ours(names.to_ours(flat, library, 2), library)
  prefix = "vit." if kind == "hf_classifier" else ""
  want = {name.removeprefix(prefix): x for name, x in flat.items()}
  testing.assert_equal(back, want)


def test_names_of_transformers_5_in_memory():
  flat = testing.golden("hf_classifier")
  new = {}
  for name, x in flat.items():
    for old, now in (
      ("encoder.layer.", "layers."),
      ("attention.attention.query", "attention.q_proj"),
      ("attention.attention.key", "attention.k_proj"),
      ("attention.attention.value", "attention.v_proj"),
      ("attention.output.dense", "attention.o_proj"),
      ("intermediate.dense", "mlp.fc1"),
      ("output.dense", "mlp.fc2"),
    ):
      name = name.replace(old, now)
    new[name] = x
  assert "vit.layers.1.attention.o_proj.bias" in new
  got, want = (names.to_ours(f, hf_vit.NAMES, 2) for f in (new, flat))
  testing.assert_equal(got, want)


def test_names_of_dinov2_in_wrappers(tmp_path):
  flat, heads = testing.golden("hf_model"), {"num_heads": 2}
  want = vit_params.read(testing.write_torch(tmp_path, "", flat), heads).arrays
  new = {"embeddings.mask_token": np.ones((1, 8), np.float32)}
  for name, x in flat.items():
    name = name.replace("layernorm_before", "norm1")
    name = name.replace("layernorm_after", "norm2")
    new[name.replace("intermediate.dense", "mlp.fc1")] = x
  for i in range(2):
    new[f"encoder.layer.{i}.layer_scale2.lambda1"] = np.full(8, 2, np.float32)
  new = {f"_orig_mod.dinov2.{name}": x for name, x in new.items()}
  got = vit_params.read(testing.write_torch(tmp_path, "", new), heads).arrays
  double = lambda name: 2 if "Dense_1" in name else 1
  testing.assert_equal(got, {k: double(k) * x for k, x in want.items()})


def test_what_is_unknown_is_not_lost(tmp_path):
  """Registers, a norm of heads and one behind the pooling."""
  flat = testing.golden("timm_tok")
  flat["reg_token"] = np.zeros((1, 4, 8), np.float32)
  flat["blocks.0.attn.norm.weight"] = np.zeros(4, np.float32)
  flat["fc_norm.weight"] = flat.pop("norm.weight")
  path = testing.write_torch(tmp_path, "timm_tok", flat)
  with pytest.raises(ValueError, match="does not fit the model") as error:
    testing.read(path, testing.shapes_of(testing.make("timm_tok")))
  rows = [line.split() for line in str(error.value).splitlines()[2:-1]]
  assert rows == [
    ["Transformer/encoder_norm/scale", "(8,)", "-", "missing"],
    ["blocks.0.attn.norm.weight", "-", "(4,)", "unexpected"],
    ["fc_norm/scale", "-", "(8,)", "unexpected"],
    ["registers", "-", "(1,", "4,", "8)", "unexpected"],
  ]


@pytest.mark.parametrize(
  "name", ["norm_post.weight", "fc.norm.bias", "blocks.1.attn.norm.bias"]
)
def test_parts_that_ours_lacks(tmp_path, name):
  flat = testing.golden("timm_tok") | {name: np.zeros(1, np.float32)}
  path = testing.write_torch(tmp_path, "timm_tok", flat)
  message = rf"{name} +- +\(1,\) +unexpected\n.*no decoder"
  with pytest.raises(ValueError, match=message):
    vit_params.read(path, {"num_heads": 2})


@pytest.mark.parametrize("kind", ["timm_reg", "timm_reg_gap"])
def test_registers_and_normalized_queries(tmp_path, kind):
  """With what the file shows, timm's logits; and back, its arrays."""
  with np.load(testing.TESTDATA / "recent.npz") as arrays:
    flat = part(arrays, f"{kind}/param/")
    image = arrays[f"{kind}/in/x"].transpose(0, 2, 3, 1)
    want = arrays[f"{kind}/out/y"]
  path = testing.write_torch(tmp_path, kind, flat)
  model, variables, _ = vit.from_pretrained(path, num_heads=2)
  assert model.config.registers == 3
  assert model.config.qk_norm == "layernorm"
  logits, _ = model.apply(variables, image)
  np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-4)
  # Factors of branches are in the layers before them, or stay.
  model, variables, _ = vit.from_pretrained(path, num_heads=2, layer_scale=0.1)
  logits, _ = model.apply(variables, image)
  np.testing.assert_allclose(logits, want, rtol=1e-4, atol=1e-4)
  ours = trees.flatten(variables["params"])
  back = names.from_ours(ours, timm_vit.NAMES)
  testing.assert_equal(jax.device_get(back), flat)
  flat["register_tokens"] = flat.pop("reg_token")  # as DINOv2's authors do
  path = testing.write_torch(tmp_path, kind, flat)
  _, variables, _ = vit.from_pretrained(path, num_heads=2)
  got = trees.flatten(variables["params"])["registers"]
  np.testing.assert_array_equal(got, ours["registers"])


def test_no_positions(tmp_path):
  flat = testing.golden("hf_model")
  del flat["embeddings.position_embeddings"]
  path = testing.write_torch(tmp_path, "hf_model", flat)
  with pytest.raises(ValueError, match="always has some"):
    vit_params.read(path, {"num_heads": 2})


def test_layer_scale_is_folded(tmp_path):
  """Factors that undo what is done to the layers before them."""
  flat = testing.golden("timm_tok")
  rng = np.random.RandomState(0)
  for i in range(2):
    for scale, module in (("ls1", "attn.proj"), ("ls2", "mlp.fc2")):
      gamma = rng.uniform(0.5, 2, 8).astype(np.float32)
      flat[f"blocks.{i}.{scale}.gamma"] = gamma
      weight, bias = (f"blocks.{i}.{module}.{x}" for x in ("weight", "bias"))
      flat[weight] = flat[weight] / gamma[:, None]
      flat[bias] = flat[bias] / gamma
  path = testing.write_torch(tmp_path, "timm_tok", flat)
  logits = testing.logits(testing.make("timm_tok"), path)
  testing.assert_logits(logits, "timm_tok")


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_half_precision_is_summed_in_full(tmp_path, dtype):
  flat = {k: x.astype(dtype) for k, x in testing.golden("timm_tok").items()}
  path = testing.write_torch(tmp_path, "timm_tok", flat)
  got = testing.read(path, testing.shapes_of(testing.make("timm_tok")))["cls"]
  cls, rows = (flat[k].astype(np.float32) for k in ("cls_token", "pos_embed"))
  np.testing.assert_array_equal(got, cls + rows[:, :1])


def test_another_number_of_heads(tmp_path):
  path = testing.write_torch(tmp_path, "hf_classifier")
  (tmp_path / "config.json").write_text('{"num_attention_heads": 4}')
  model = testing.make("hf_classifier")
  with pytest.raises(ValueError, match=r"4 attention heads.*num_heads=4"):
    testing.read(path, testing.shapes_of(model))


def test_unknown_layout(tmp_path):
  path = str(tmp_path / "x.safetensors")
  # torchvision's.
  flat = {"conv_proj.weight": np.zeros((8, 3, 3, 3), np.float32)}
  flat["class_token"] = np.zeros((1, 1, 8), np.float32)
  safetensors.numpy.save_file(flat, path)
  with pytest.raises(ValueError, match=r"unknown layout: class_token, conv_p"):
    testing.read(path, {"cls": np.zeros(1)})


def test_no_place():
  flat = {
    "embedding/kernel": np.zeros((3, 3, 3, 8)),
    "Transformer/encoderblock_0/LayerNorm_0_post/scale": np.zeros(8),
  }
  with pytest.raises(ValueError, match=r"LayerNorm_0_post/scale  \(8,\)"):
    names.from_ours(flat, timm_vit.NAMES)


def test_first_norm_is_in_the_order_of_a_convolution():
  """PyTorch's F.unfold lists a patch by channel, row, column."""
  scale = np.arange(2 * 3 * 3.0)  # by row, column, channel
  kernel = np.zeros((2, 3, 3, 8))
  flat = {"embedding/kernel": kernel, "stem/ln0/scale": scale}
  got = names.from_ours(flat, timm_vit.NAMES)
  places = itertools.product(range(3), range(2), range(3))
  want = [9 * row + 3 * col + channel for channel, row, col in places]
  np.testing.assert_array_equal(got["patch_embed.ln0.weight"], want)
  back = names.to_ours(got, timm_vit.NAMES, 2)
  np.testing.assert_array_equal(back["stem/ln0/scale"], scale)


@pytest.mark.parametrize("kind", testing.LIBRARIES)
def test_options_inferred_from_shapes(kind):
  library = source.LIBRARIES[kind.partition("_")[0]]
  flat = names.to_ours(testing.golden(kind), library, 2)
  options = vit.options(testing.make(kind))
  for scanned in (False, True):
    found = vit_params.infer_options(
      big_vision.match_scan(flat, {"encoderblock/x": 0} if scanned else {})
    )
    for name, value in found.items():
      want = options[name]
      assert value == (want and 8 if name == "rep_size" else want), name


def test_scanning_needs_every_block():
  gap = {f"encoderblock_{i}/x": np.ones(2) for i in (0, 1, 3)}
  with pytest.raises(
    ValueError, match=r"has only blocks \[0, 1, 3\]: some are miss"
  ):
    big_vision.match_scan(gap, {"encoderblock/x": 0})


def test_heads_by_variant(tmp_path):
  """Ti/4 has three, of 64 channels each."""
  model = vit.Model(5, variant="Ti/4", gelu="exact")
  params = testing.sevens(testing.shapes_of(model, (1, 8, 8, 3)))
  flat = names.from_ours(trees.flatten(params), timm_vit.NAMES)
  path = testing.write_torch(tmp_path, "timm_gap", flat)
  assert vit_params.read(path, {}).options["num_heads"] == 3


def test_not_a_vision_transformer():
  with pytest.raises(ValueError, match=r"got img, txt\..*file\.npz:img"):
    vit_params.infer_options({"img/x": 0, "txt/x": 0})
