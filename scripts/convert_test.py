"""Conversions of tiny models whose logits timm and transformers gave."""

import contextlib
import functools
import json

import jax
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from dpn import trees
from dpn.models import vit
from dpn.scripts import convert
from dpn.trainers import build
from dpn.trainers import conftest as trainers_conftest
from dpn.weights import checkpoint, files, load
from dpn.weights import conftest as testing

HEADS = {"num_heads": 2}


@pytest.fixture
def source(tmp_path):
  """A function from a golden model's name to the path of its file."""

  def write(kind):
    (tmp_path / kind).mkdir()
    return testing.write_torch(tmp_path / kind, kind)

  return write


@functools.cache
def compiled(kind, **kw):
  model = testing.make(kind, **kw)
  return model, testing.shapes_of(model), jax.jit(model.apply)


def logits(path, kind, image=testing.IMAGE, **kw):
  """Returns what our model makes of a file, options compared."""
  model, shapes, apply = compiled(kind, **kw)
  variables = load.load_variables(
    str(path), {"params": shapes}, options=vit.options(model)
  )
  return apply(variables, image)[0]


ROUTES = [
  ("timm_tok", ["big_vision", "hf", "timm"]),
  ("timm_map", ["timm", "big_vision"]),
  ("timm_gap", ["timm", "ours"]),
  ("hf_model", ["hf", "ours"]),
]


@pytest.mark.parametrize(("kind", "route"), ROUTES)
def test_logits_survive_every_route(tmp_path, source, kind, route):
  path = source(kind)
  for i, to in enumerate(route):
    suffix = "npz" if to == "big_vision" else "safetensors"
    target = str(tmp_path / f"{i}.{suffix}")
    convert.convert(path, target, to, options=HEADS if i == 0 else {})
    testing.assert_logits(logits(target, kind), kind)
    path = target


def test_no_position_for_the_class_token(tmp_path, source):
  path = source("timm_no_embed_class")
  target = str(tmp_path / "x.safetensors")
  convert.convert(path, target, "timm", options=HEADS, no_embed_class=True)
  got, want = (safetensors.numpy.load_file(p) for p in (target, path))
  testing.assert_equal(got, want)


def test_metadata_is_recorded_and_honoured(tmp_path, source):
  target = tmp_path / "x.safetensors"
  convert.convert(source("hf_classifier"), str(target), "timm", options=HEADS)
  said = testing.metadata(target)
  assert said["format"] == "pt"
  assert json.loads(said["model"])["norm_kw"] == {"eps": 1e-6}  # timm's
  assert json.loads(said["timm"])["act_layer"] == "gelu"
  assert json.loads(said["cls_row"]) is True
  model, shapes, _ = compiled("timm_tok", gelu="tanh")
  kw = {"options": vit.options(model)}
  variables = {"params": shapes}
  with pytest.raises(ValueError, match=r"config\.model\.gelu='exact'") as error:
    load.load_variables(str(target), variables, **kw)
  assert "norm_kw" not in str(error.value)
  load.load_variables(str(target), variables, dont_check=["gelu"], **kw)


def test_folders_of_both_libraries(tmp_path, source):
  path = source("hf_classifier")
  for to in ("hf", "timm"):
    folder = tmp_path / to
    convert.convert(path, str(folder), to, options=HEADS)
    config = json.loads((folder / "config.json").read_text())
    if to == "hf":
      assert (config["image_size"], config["num_labels"]) == (9, 5)
      assert (config["hidden_act"], config["layer_norm_eps"]) == ("gelu", 1e-12)
    else:
      assert config["pretrained_cfg"]["mean"] == [0.5] * 3
      assert config["model_args"]["img_size"] == 9
    # timm has one epsilon only, for which the arrays are rewritten.
    got = logits(folder, "hf_classifier" if to == "hf" else "timm_tok")
    testing.assert_logits(got, "hf_classifier")


def test_a_row_of_positions_for_the_class_token(tmp_path):
  want = testing.golden("tok")
  rows = np.random.RandomState(0).randn(1, 10, 16).astype(np.float32)
  old = testing.stack({**want, "pos_embedding": rows})
  want |= {"pos_embedding": rows[:, 1:], "cls": want["cls"] + rows[:, :1]}
  path = testing.write(tmp_path, old, prefix="opt/target/")
  target = str(tmp_path / "new.npz")
  notes = convert.convert(path, target, "big_vision")
  assert any("The first of 10 rows of" in note for note in notes)
  got = dict(np.load(target))
  assert json.loads(str(got.pop("metadata")))["layout"] == "ours"
  testing.assert_equal(got, {f"params/{k}": x for k, x in want.items()})


@pytest.mark.parametrize(
  ("to", "embedding", "ln1"),
  [
    ("timm", "patch_embed", "norm"),
    ("hf", "vit.embeddings.patch_embeddings", "ln1"),
  ],
)
def test_dual_patchnorm_keeps_its_norms(tmp_path, to, embedding, ln1):
  path, params = testing.write_ours(tmp_path)
  target, back = (str(tmp_path / f"{n}.safetensors") for n in "ab")
  notes = "\n".join(convert.convert(path, target, to, extra_modules=True))
  assert "no place for stem/ln0" in notes
  assert "docs/checkpoints.md" in notes
  flat = safetensors.numpy.load_file(target)
  np.testing.assert_array_equal(
    flat[f"{embedding}.{ln1}.weight"], params["stem"]["ln1"]["scale"]
  )
  assert flat[f"{embedding}.ln0.bias"].shape == (27,)
  convert.convert(target, back, "ours")
  got, want = safetensors.numpy.load_file(back), trees.flatten(params)
  testing.assert_equal(got, want)


def test_resolution(tmp_path):
  """The size of the preprocessing may be that of the new positions: DINOv2."""
  crop = "resize_small(17, 'bicubic')|central_crop(15)|value_range(-1, 1)"
  kw = {"stem_ln": "none", "posemb_join_kw": {"cls": True}}
  path, old = testing.write_ours(tmp_path, pp=crop, **kw)
  for px, kept in ((12, None), (15, crop)):
    target = str(tmp_path / f"{px}.safetensors")
    notes = convert.convert(path, target, "timm", resolution=px)
    assert json.loads(testing.metadata(target)["timm"])["img_size"] == px
    assert json.loads(testing.metadata(target)["pp"]) == kept
    left_out = f"Left out, as it is for another size: {crop!r}." in notes
    assert left_out == (kept is None)
  notes = convert.convert(path, str(tmp_path / "old.safetensors"), "ours")
  assert any("--resolution 15 does it as the source's" in x for x in notes)
  new = safetensors.numpy.load_file(target)
  assert new["pos_embed"].shape == (1, 26, 8)
  grid = new["pos_embed"][0, 1:].reshape(5, 5, 8)
  np.testing.assert_array_equal(
    grid[::2, ::2], old["pos_embedding"][0, 1:].reshape(3, 3, 8)
  )


def test_checkpoints_of_a_run(tmp_path):
  """With running statistics, an average and an optimizer's state."""
  config = trainers_conftest.tiny_config(
    **{"model.norm": "batchnorm", "ema_decay": 0.9}
  )
  (tmp_path / "config.json").write_text(config.to_json())
  fresh = build.from_config(config).step.init(jax.random.key(0))
  rng = np.random.RandomState(0)
  noise = lambda x: jax.numpy.asarray(x + rng.rand(*x.shape), x.dtype)
  state = jax.tree.map(noise, fresh)
  folder = str(tmp_path / "checkpoints")
  with contextlib.closing(checkpoint.Checkpointer(folder)) as saved:
    saved.save(3, state, {"examples_seen": 24})
  want = trees.flatten(state.ema) | trees.flatten(state.model_state)
  for i, path in enumerate([str(tmp_path), f"{folder}/3"]):
    target = str(tmp_path / f"{i}.safetensors")
    notes = convert.convert(path, target, "ours")
    got = safetensors.numpy.load_file(target)
    testing.assert_equal(got, want)
  assert any("according to the run's config.json" in note for note in notes)
  with pytest.raises(FileNotFoundError, match=r"step 7 .*steps \[3\]"):
    convert.convert(f"{folder}/7", str(tmp_path / "x.npz"), "big_vision")


def test_statistics_are_loaded(tmp_path):
  stats = {"Transformer": {"norm": {"mean": np.float32([1, 2])}}}
  path = str(tmp_path / "x.safetensors")
  files.save_params(path, {"a": np.float32([3])}, stats)
  variables = {
    "params": {"a": np.float32([0])},
    "batch_stats": {"Transformer": {"norm": {"mean": np.float32([0, 0])}}},
    "other": {"b": 5},
  }
  got = load.load_variables(path, variables)
  assert got["other"] == {"b": 5}
  np.testing.assert_array_equal(
    got["batch_stats"]["Transformer"]["norm"]["mean"], [1, 2]
  )
  with pytest.raises(ValueError, match=r"batch_stats/.*unexpected"):
    load.load_variables(path, {"params": variables["params"]})
  files.save_params(path, {"a": np.float32([3])})
  with pytest.raises(ValueError, match=r"batch_stats/.*missing"):
    load.load_variables(path, variables)


def run(*argv):
  """Returns how a command ended, as text."""
  with pytest.raises(SystemExit) as error:
    convert.main(list(argv))
  return str(error.value)


def test_wrong_inputs_of_the_command(tmp_path, source):
  path, out = source("timm_tok"), str(tmp_path / "x.safetensors")
  heads, tiny = "--set num_heads=2", "--arch vit_tiny_patch16_224"
  for words, message in (
    ("ours", "num_heads=…"),
    ("ours --set gel=1", "Did you mean 'gelu'?"),
    ("ours --set gelu", "expected OPTION=VALUE"),
    (f"ours {heads} --set patch_size=8", "patch_size must be of type"),
    (f"big_vision {heads}", "expected .npz"),
    (f"ours {heads} --resolution 10", "multiple"),
    (f"ours {heads} --resolution 0", "multiple"),
    (f"hf {heads} --no_embed_class", "--to timm"),
    (f"ours {tiny}", "has width 192 and 12 blocks, the file 8 and 2"),
    (
      "ours --arch vit_base_patch16_sigilp_224",
      "ours can be timm's models named",
    ),
    ("ours --arch vit_base_patch16_rpn_224", "other blocks"),
  ):
    assert message in run(path, out, "--to", *words.split())
  flat = testing.golden("timm_tok") | {"fc_norm.weight": np.zeros(8)}
  other = testing.write_torch(tmp_path, "timm_tok", flat)
  assert "fc_norm" in run(other, out, "--to", "ours", *heads.split())
  (tmp_path / "there.npz").touch()
  there = str(tmp_path / "there.npz")
  assert "exists" in run(path, there, "--to", "big_vision", *heads.split())
  dpn, _ = testing.write_ours(tmp_path)
  said = run(dpn, out, "--to", "ours", "--set", "width=16")
  assert "reshaped" in said
  assert "dont_load" not in said
  assert not (tmp_path / "x.safetensors").exists()


def test_full_disk_leaves_nothing(tmp_path, source, monkeypatch):
  path = source("timm_tok")

  def full(descriptor):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(checkpoint.os, "fsync", full)
  before = sorted(tmp_path.iterdir())
  for name in ("x.safetensors", "x"):
    with pytest.raises(OSError, match=r"Cannot write .*No space left"):
      convert.convert(path, str(tmp_path / name), "timm", options=HEADS)
  assert sorted(tmp_path.iterdir()) == before


def test_the_command(tmp_path, source, capsys):
  target = tmp_path / "new/x.npz"
  args = ["--to", "big_vision", "--set", "num_heads=2"]
  convert.main([source("hf_model"), str(target), *args])
  said = capsys.readouterr().out
  assert "layout of Hugging Face transformers" in said
  assert said.endswith(f"Wrote {target}.\n")
  assert "params/pre_logits/kernel" in np.load(target)
