"""Predictions are those of evaluation, with the names of the folders."""

import json

import jax
import numpy as np
import pytest

from dpn import metrics, trees
from dpn.configs import images
from dpn.input_pipeline import conftest as testing
from dpn.input_pipeline import sources
from dpn.models import vit
from dpn.scripts import convert, predict
from dpn.trainers import loop


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory):
  """Returns the folder of a run on pictures, and that of the pictures."""
  root = tmp_path_factory.mktemp("own")
  photos = testing.class_folders(root / "photos")
  arg = f"data={photos},variant=mu/16,res=32,epochs=2,batch=8"
  config = images.get_config(arg)
  assert config.class_names == ["class0", "class1", "class2"]
  want = {"name": f"folder:{photos}", "split": "all[:90%]"}
  assert config.input.data.to_dict() == want
  loop.train(config, str(root / "run"))
  return root / "run", root / "photos"


def test_table_json_and_picture(run, tmp_path, capsys):
  folder, photos = run
  out, picture = tmp_path / "seen.json", tmp_path / "seen.png"
  argv = [str(folder), str(photos), "--top=2"]
  predict.main([*argv, f"--out={out}", f"--picture={picture}"])
  rows = json.loads(out.read_text())
  assert len(rows) == 24
  assert rows[0]["file"] == f"{photos}/class0/0.jpg"
  columns = {"file", "class 1", "probability 1", "class 2", "probability 2"}
  assert rows[0].keys() == columns
  assert capsys.readouterr().out.count(f"{photos}/class1/") == 8
  assert picture.stat().st_size > 10_000


def test_probabilities_are_those_of_evaluation(run, tmp_path):
  """The mean of -log p over the validation split is its loss."""
  folder, photos = run
  source = images.get_config(f"data={photos}").evals.val.data
  held_out = sources.make(source.to_dict())
  paths = [held_out.describe(i) for i in range(len(held_out))]
  _, probabilities, names = predict.predict(str(folder), paths)
  labels = [held_out[i]["label"] for i in range(len(held_out))]
  likely = probabilities[np.arange(len(labels)), labels]
  row = metrics.read(str(folder / "metrics.jsonl"))[-1]
  assert -np.log(likely).mean() == pytest.approx(row["val/loss"], rel=1e-4)
  np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
  convert.convert(str(folder), str(tmp_path / "copy"), "ours")
  _, again, of_copy = predict.predict(str(tmp_path / "copy"), paths)
  np.testing.assert_allclose(again, probabilities, rtol=1e-5)
  assert of_copy == names == ["class0", "class1", "class2"]


def test_hidden_folders_and_no_classes(tmp_path, capsys):
  for name in (".thumbs/a.jpg", "b/.c.jpg", "b/d.jpg", "b/Thumbs.db"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
  assert [*predict.pictures([str(tmp_path)])] == [str(tmp_path / "b/d.jpg")]
  with pytest.raises(SystemExit):
    predict.main(["run", str(tmp_path), "--top", "0"])
  assert "--top: expected 1 or more" in capsys.readouterr().err


def test_a_checkpoint_of_no_run(run, tmp_path):
  model = vit.Model(4, variant="mu/16", pool_type="tok")
  zeros = np.zeros((1, 32, 32, 3), np.float32)
  variables = model.init(jax.random.key(0), zeros)
  flat = trees.flatten(variables["params"])
  kernel = np.random.default_rng(0).normal(size=flat["head/kernel"].shape)
  flat["head/kernel"] = np.float32(kernel)
  np.savez(tmp_path / "vit.npz", **flat)
  paths = [*predict.pictures([str(run[1])])][:3] * 11
  seen, probabilities, names = predict.predict(str(tmp_path / "vit.npz"), paths)
  assert (len(seen), len(probabilities)) == (32, 33)
  assert names == [*"0123"]
  want = model.apply({"params": trees.unflatten(flat)}, seen[:3])[0]
  for found in (probabilities[:3], probabilities[30:]):
    np.testing.assert_allclose(found, jax.nn.softmax(want), rtol=1e-5)
  np.savez(tmp_path / "vit.npz", **flat | {"head/kernel": 1e38 * kernel})
  with pytest.raises(ValueError, match=r"vit.npz gives NaN"):
    predict.predict(str(tmp_path / "vit.npz"), paths)


def test_what_is_no_picture(run, tmp_path):
  (tmp_path / "notes.txt").write_bytes(b"no picture")
  for name, message in (
    ("notes.txt", "notes.txt: .*not a whole image"),
    ("missing.jpg", "No such file or directory: .*missing.jpg"),
  ):
    with pytest.raises(SystemExit, match=message):
      predict.main([str(run[0]), str(tmp_path / name)])


def test_folders_that_will_not_do(tmp_path):
  with pytest.raises(ValueError, match="append data=/path/to/photos"):
    images.get_config("runlocal")
  testing.class_folders(tmp_path / "val")
  with pytest.raises(ValueError, match="holds val, but no 'train'"):
    images.get_config(f"data={tmp_path}")
  testing.class_folders(tmp_path / "train", classes=4)
  config = images.get_config(f"data={tmp_path},init=x.npz")
  assert config.num_classes == 4
  assert config.evals.val.data.split == "val"
  assert (config.model.variant, config.model_init) == ("B/16", "x.npz")
