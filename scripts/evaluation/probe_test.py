"""Probes of one's own data, without a config."""

import jax
import numpy as np
import PIL.Image
import pytest

from dpn import metrics, trees
from dpn.models import vit
from dpn.scripts import convert
from dpn.scripts.evaluation import probe
from dpn.trainers import conftest, loop


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
  """Returns a plain ViT's file, and a folder that timm would write of it."""
  folder = tmp_path_factory.mktemp("plain")
  model = vit.Model(7, variant="mu/16", pool_type="tok")
  image = np.zeros((1, 32, 32, 3), np.float32)
  params = jax.jit(model.init)(jax.random.key(0), image)["params"]
  np.savez(folder / "vit.npz", **trees.flatten(params))
  options = {"num_heads": 2}
  convert.convert(
    str(folder / "vit.npz"), str(folder / "timm"), "timm", options=options
  )
  return folder


def _photos(root, *splits):
  """Makes class folders of dark and of bright pictures of several sizes."""
  for i in range(20):
    for name, level in (("bright", 200), ("dark", 30)):
      folder = root.joinpath(*splits[i % 2 : i % 2 + 1], name)
      folder.mkdir(parents=True, exist_ok=True)
      picture = np.full((40 + i, 50, 3), level + i, np.uint8)
      PIL.Image.fromarray(picture).save(folder / f"{i}.png")
  return root


def test_a_foreign_checkpoint_on_a_folder(plain, tmp_path, capsys):
  photos = str(_photos(tmp_path / "photos"))
  row = probe.probe(str(plain / "timm"), photos, shots=(1, 5))
  # Any features tell dark from bright.
  assert {k: v for k, v in row.items() if "-seed-" not in k} == {
    "step": None,
    "fewshot/photos_1shot": 1.0,
    "fewshot/photos_5shot": 1.0,
  }
  said = (
    f"Learning from 'all[:90%]' of folder:{photos} (36 pictures), tested on "
    "'all[90%:]' (4)."
  )
  assert said in capsys.readouterr().out


def test_rows_that_are_sorted_by_class(plain, tmp_path):
  labels = np.repeat([0, 1], [36, 4])  # the last tenth is all of a class
  images = np.full((40, 32, 32, 3), 30, np.uint8)
  images[labels == 1] = 200
  arrays = {"train/image": images, "train/label": labels}
  np.savez(tmp_path / "sorted.npz", **arrays)
  name = f"arrays:{tmp_path}/sorted.npz"
  row = probe.probe(str(plain / "timm"), name, shots=(1,))
  assert row["fewshot/sorted.npz_1shot"] == 1.0


def test_a_run_is_probed_as_it_probes_itself(tmp_path):
  config = conftest.tiny_config(total_steps=1)
  loop.train(config, str(tmp_path))
  splits = config.evals.fewshot.datasets.digits[1:]
  got = probe.probe(str(tmp_path), conftest.DIGITS, shots=(1, 2), splits=splits)
  [row] = metrics.read(str(tmp_path / "metrics.jsonl"))
  own = {k: v for k, v in row.items() if k.startswith("fewshot/")}
  assert len(own) == 8
  assert got == {"step": 1, **own}


def test_splits_are_found(tmp_path):
  photos = _photos(tmp_path / "photos", "train", "validation")
  assert probe.find_splits(f"folder:{photos}") == ("train", "validation")
  assert probe.find_splits("arrays:digits") == ("train", "test")
  file = tmp_path / "only.npz"
  np.savez(file, **{"train/image": np.zeros((9, 4, 4, 1), np.uint8)})
  splits = ("train[:90%]", "train[90%:]")
  assert probe.find_splits(f"arrays:{file}") == splits


@pytest.mark.parametrize(
  ("data", "kw", "message"),
  [
    ("nowhere/at/all", {}, "--data=nowhere/at/all is no folder here, and as"),
    ("folder:/nowhere", {}, "/nowhere"),
    (conftest.DIGITS, {}, r"arrays:digits are \(8, 8, 1\); the model takes 3"),
    (conftest.DIGITS, {"splits": ("train", "tst")}, "'tst'.*mean 'test'"),
  ],
)
def test_errors(plain, data, kw, message):
  path = str(plain / "timm")
  with pytest.raises((ValueError, OSError), match=message):
    probe.probe(path, data, shots=(1,), **kw)
