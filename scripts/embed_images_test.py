"""Training on embeddings computed before, against embedding at every step."""

import types

import jax
import numpy as np
import pytest

from dpn import metrics, trees
from dpn.configs import common, mini_lit
from dpn.models import vit
from dpn.scripts import embed_images
from dpn.trainers import conftest, loop
from dpn.weights import files, metadata, pixels

SMALL = {"width": 16, "depth": 1, "mlp_dim": 16, "num_heads": 2}


def _config(arg):
  """Returns a tiny run on a few glyphs, without augmentation."""
  config = mini_lit.get_config(arg)
  config.model.text.update(SMALL)
  if "width" in config.model.image:
    config.model.image.update(SMALL)
    config.input.pp = config.input.pp.replace(mini_lit.MOVED, common.PIXELS)
    del config.evals.probe
  del config.evals.retrieval
  with config.ignore_type():
    config.model.out_dim = (None, 16)
  config.input.data.split = "train[:64]"
  config.input.batch_size = 16
  config.evals.zeroshot.datasets = {
    "new_names": (config.input.data.name, "new_names[:40]")
  }
  del config.total_epochs
  config.update(total_steps=3, log_training_steps=1, log_grad_depth=False)
  return config


@pytest.mark.slow
@pytest.mark.usefixtures("compile_fast")
def test_the_same_numbers(tmp_path, monkeypatch):
  # Of three steps, compiling is all the work.
  monkeypatch.setattr(trees, "checksum", lambda tree: 0)
  tower = str(tmp_path / "tower.npz")
  image = np.zeros((1, 32, 32, 1), np.float32)
  model = vit.Model(**_config("").model.image)
  shapes = jax.eval_shape(model.init, jax.random.key(0), image)["params"]
  rng = np.random.default_rng(0)
  draw = lambda shape: rng.normal(size=shape.shape) / 4
  np.savez(tower, **{k: draw(x) for k, x in trees.flatten(shapes).items()})
  locked = _config(f"init={tower}")
  splits = ["train", "new_names"]
  embed_images.embed(locked, splits, common.PIXELS, str(tmp_path))
  made_by = tmp_path / "tower.json"
  made = made_by.read_text()
  for there, ops in (
    (made, "resize(8)"),
    (made.replace(locked.input.data.name, "folder:/other"), common.PIXELS),
  ):
    made_by.write_text(there)
    with pytest.raises(ValueError, match=r"has embeddings by .* Give ano"):
      embed_images.embed(locked, ["train"], ops, str(tmp_path))
  before = _config(f"embedded={tmp_path}")
  rows = {}
  for name, config in {"locked": locked, "before": before}.items():
    loop.train(config, str(tmp_path / name))
    rows[name] = metrics.read(str(tmp_path / name / "metrics.jsonl"))
  for a, b in zip(rows["locked"], rows["before"], strict=True):
    del a["l2_params"], b["l2_params"]  # one has a tower more
    assert a == pytest.approx(b, rel=1e-4, abs=1e-6)
  assert "zeroshot/new_names_prec@1" in rows["before"][-1]
  assert rows["before"][0]["loss"] != rows["before"][-1]["loss"]


def test_pixels_that_the_tower_has_not_seen(tmp_path):
  tower = str(tmp_path / "tower.safetensors")
  model = vit.Model(**_config("").model.image)
  image = np.zeros((1, 32, 32, 1), np.float32)
  params = model.init(jax.random.key(0), image)["params"]
  seen = metadata.metadata(vit.options(model), pixels.Pixels((0.5,), (0.5,)))
  files.save_params(tower, params, metadata=seen)
  config, pp = _config(f"init={tower}"), "value_range(0, 1)"
  with pytest.raises(ValueError, match=r"pixels: value_range.-1, 1. in the"):
    embed_images.embed(config, ["train"], pp, str(tmp_path))


def test_without_evaluators(monkeypatch):
  config = _config("init=unused")
  with config.ignore_type():
    config.evals = None
  flags = {"_CONFIG": config, "_PP": None}
  for name, value in flags.items():
    flag = types.SimpleNamespace(value=value)
    monkeypatch.setattr(embed_images, name, flag, raising=False)
  with pytest.raises(ValueError, match="Give --pp: no evaluator"):
    embed_images.main()


@pytest.mark.parametrize(
  ("split", "ops", "message"),
  [
    ("train[:9]", "", "embed whole splits, train,test"),
    ("train+test", "", "embed whole splits, train,test"),
    ("train", "flip_lr|value_range|random_crop(24)", "flip_lr, random_crop.24"),
    ("train", "", "model_init is missing: whose"),
  ],
)
def test_what_cannot_be(split, ops, message):
  with pytest.raises(ValueError, match=message):
    embed_images.embed(_config(""), [split], ops, "unused")
  classifier = conftest.tiny_config(model_init="unused")
  with pytest.raises(ValueError, match="classification' has no tower"):
    embed_images.embed(classifier, ["train"], "", "unused")
