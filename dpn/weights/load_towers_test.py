"""config.model_init of two towers: from one file, or from one for each."""

import jax
import ml_collections
import numpy as np
import pytest
import safetensors.numpy

import dpn.tasks
from dpn import trees
from dpn.weights import conftest as testing
from dpn.weights import files, load, metadata, pixels

SMALL = {"width": 8, "depth": 2, "mlp_dim": 16, "num_heads": 2}
MODEL = {
  "image": {**SMALL, "patch_size": (4, 4)},
  "text": {**SMALL, "vocab_size": 13},
  "out_dim": (None, 8),
}
SHAPES = {"image": (1, 8, 8, 3), "text": (1, 4)}
BATCH = {
  "image": np.zeros(SHAPES["image"], np.float32),
  "text": np.zeros(SHAPES["text"], np.int32),
}


def _arrays(model=MODEL, seed=0):
  """Returns the task of a model, and made-up parameters of it by name."""
  task = dpn.tasks.make({"task": "contrastive", "model": model})
  shapes = jax.eval_shape(task.init, jax.random.key(0), BATCH)["params"]
  rng = np.random.default_rng(seed)
  draw = lambda s: rng.normal(size=s.shape).astype(np.float32)
  return task, {k: draw(s) for k, s in trees.flatten(shapes).items()}


def _load(path, task, **kw):
  _, fresh = _arrays(seed=1)
  kw["options"] = task.model_options()
  variables = {"params": trees.unflatten(fresh)}
  loaded = load.load_towers(path, variables, task.towers, **kw)
  return {k: np.asarray(x) for k, x in trees.flatten(loaded["params"]).items()}


def test_a_file_of_big_vision(tmp_path):
  """Its layout: below params/, blocks stacked, a step and optimizer beside."""
  task, arrays = _arrays()
  file = {f"params/{k}": x for k, x in arrays.items() if "block_" not in k}
  for name, x in arrays.items():
    if "encoderblock_0" in name:
      both = x, arrays[name.replace("block_0", "block_1")]
      file["params/" + name.replace("block_0", "block")] = np.stack(both)
  file |= {"opt/0/count": np.int32(3), "chrono/start_step": np.int32(3)}
  np.savez(tmp_path / "siglip.npz", **file)
  path = str(tmp_path / "siglip.npz")
  testing.assert_equal(_load(path, task), arrays)
  with pytest.raises(ValueError, match=r"\['txt/.*belongs to no tower"):
    _load(path, task, dont_load=["txt/.*"])
  with pytest.raises(ValueError, match=r"is one of all\. Give config\.model_l"):
    _load(path, task, img_load_kw={"arch": "vit_tiny_patch16_224"})


def test_a_file_for_each_tower(tmp_path):
  """An image classifier with a head, and a text tower within a larger file."""
  task, arrays = _arrays()
  of = lambda t: {k[4:]: x for k, x in arrays.items() if k.startswith(t)}
  head = {"head/kernel": np.zeros((8, 5)), "head/bias": np.zeros(5)}
  files.save_params(
    str(tmp_path / "img.safetensors"),
    trees.unflatten(of("img") | head),
    None,
    metadata.metadata(task.model_options()["img"], None),
  )
  # Positions of early text towers were saved in two places, to be added.
  txt = of("txt")
  txt["Encoder_0/pos_embedding"] = txt["pos_embedding"] / 4
  txt["pos_embedding"] = txt["pos_embedding"] * 3 / 4
  np.savez(tmp_path / "lit.npz", **{f"txt/{k}": x for k, x in txt.items()})
  paths = {
    "image": str(tmp_path / "img.safetensors"),
    "txt": str(tmp_path / "lit.npz:txt"),
  }
  kw = ml_collections.ConfigDict({"dont_load": ["head/.*"]})
  got = _load(ml_collections.ConfigDict(paths), task, img_load_kw=kw)
  _, fresh = _arrays(seed=1)
  np.testing.assert_allclose(
    got.pop("txt/pos_embedding"), arrays.pop("txt/pos_embedding"), rtol=1e-6
  )
  testing.assert_equal(got, arrays | {"t": fresh["t"]})
  with pytest.raises(
    ValueError, match=r"\['head/.*Here dont_load is .*img_load_kw\.dont_load"
  ):
    _load(paths, task)
  with pytest.raises(ValueError, match=r"Unknown tower in config\.model_init"):
    _load({"imgs": "x"}, task)
  with pytest.raises(ValueError, match="Give img_load_kw or txt_load_kw"):
    _load(paths, task, dont_load=["head/.*"])
  with pytest.raises(
    ValueError, match=r"img\.safetensors says.*leave arch out"
  ):
    _load(paths, task, img_load_kw={**kw, "arch": "vit_tiny_patch16_224"})
  with pytest.raises(ValueError, match="does not hold all towers"):
    _load(paths["image"], task)
  _load({"txt": paths["txt"]}, task, arch="vit_tiny_patch16_224")  # of images


def test_ours_and_what_differs(tmp_path):
  task, arrays = _arrays()
  path = str(tmp_path / "params.safetensors")
  said = metadata.metadata(task.model_options(), None)
  safetensors.numpy.save_file(arrays, path, said)
  testing.assert_equal(_load(path, task), arrays)
  exact = {**MODEL, "text": {**MODEL["text"], "gelu": "exact"}}
  other, _ = _arrays(exact)
  for source in (path, {"txt": f"{path}:txt"}):
    message = r"(?s)gelu: tanh in .*, exact in .*Set config\.model\.text\.gelu="
    with pytest.raises(ValueError, match=message):
      _load(source, other)
    _load(source, other, dont_check=["gelu"])
  longer = {k: x for k, x in arrays.items() if not k.startswith("img")}
  longer["txt/pos_embedding"] = np.zeros((1, 16, 8), np.float32)
  np.savez(tmp_path / "long.npz", **longer)
  with pytest.raises(ValueError, match=r"\(1, 16, 8\)  reshaped"):
    _load({"txt": f"{tmp_path}/long.npz:txt"}, task)


def test_a_text_tower_sees_no_pixels(tmp_path):
  task, arrays = _arrays()
  path = str(tmp_path / "params.safetensors")
  here, there = pixels.Pixels((0.5,), (0.5,)), pixels.Pixels((0.0,), (1.0,))
  said = metadata.metadata(task.model_options(), there)
  safetensors.numpy.save_file(arrays, path, said)
  with pytest.raises(ValueError, match=f"{path}:img.*was not made for this"):
    _load(path, task, pixels=here)
  kw = {"img_load_kw": {"dont_check": ["pixels"]}}
  testing.assert_equal(_load(path, task, pixels=here, **kw), arrays)
